"""Container images without a registry: a Debian base made here, our Dockerfiles on top, loaded into containerd."""
