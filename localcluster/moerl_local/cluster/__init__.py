"""A Kubernetes on one machine: the real programs, built from pinned Go modules, and nothing emulated but nodes."""
