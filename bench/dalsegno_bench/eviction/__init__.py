"""Benches of what a store that is too small keeps."""
