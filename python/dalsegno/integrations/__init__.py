"""Translations between engines and the store; the only modules that import an engine."""
