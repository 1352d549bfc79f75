"""The machine under a bench: what the kernel and the processor spend, and disks that misbehave."""
