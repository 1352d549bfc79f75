"""The demonstration: a real model, a long document, two questions and an engine that is killed."""
