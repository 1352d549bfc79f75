"""Benches and faultbench adapters that need LMCache."""
