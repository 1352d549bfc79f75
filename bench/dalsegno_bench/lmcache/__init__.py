"""What is measured and broken through LMCache."""
