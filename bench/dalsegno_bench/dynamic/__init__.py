"""The bench `dynamic`: a workload that changes, on several backends in turn."""
