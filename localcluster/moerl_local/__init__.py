"""Kubernetes and AWS on one machine: launcher, image builder, AWS emulator, demo."""
