"""The control plane: reconciles MoERLJob resources into EKS node groups and Kubernetes workloads."""

__version__ = "0.1.0"
