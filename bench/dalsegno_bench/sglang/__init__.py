"""What is measured and broken through SGLang."""
