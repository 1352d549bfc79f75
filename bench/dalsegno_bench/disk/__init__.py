"""Benches of the path to the disk: bandwidth, latency, compression, merging of extents."""
