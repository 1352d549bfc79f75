"""Bench of a store that several processes share, against TCP and ZeroMQ."""
