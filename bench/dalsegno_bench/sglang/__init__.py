"""Benches and faultbench adapters that need SGLang."""
