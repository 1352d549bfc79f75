"""The far tier: a directory that hosts share, against raw files on the same mount."""
