"""Benches and faultbench adapters that need vLLM."""
