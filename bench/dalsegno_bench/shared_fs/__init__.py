"""Private clusters of real shared file systems, each mounted twice: for benches and tests."""
