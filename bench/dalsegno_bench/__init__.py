"""The commands `dalsegno bench` and `dalsegno faultbench`: measures and faults."""
