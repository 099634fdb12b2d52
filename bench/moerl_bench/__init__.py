"""Benchmarks of the control plane and the data plane, and the reports they write."""
