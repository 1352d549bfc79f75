"""Benches of the on-disk index, compiled from `bench/programs`."""
