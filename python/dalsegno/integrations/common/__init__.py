"""What the integrations share; nothing here imports an engine."""
