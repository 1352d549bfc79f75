"""Benches of eviction: what a store keeps that is smaller than its load."""
