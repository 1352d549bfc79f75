"""Long runs: a day of mixed load, and disks that hang."""
