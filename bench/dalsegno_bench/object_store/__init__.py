"""Object stores for tests and benches: real servers on loopback, and a proxy that makes faults."""
