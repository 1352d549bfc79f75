"""What is measured and broken through vLLM."""
