"""The commands `dalsegno bench` and `dalsegno faultbench`."""
