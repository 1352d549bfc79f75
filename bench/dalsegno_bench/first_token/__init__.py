"""The bench of decisions to load: time to the first token, and how long a step waits for layers."""
