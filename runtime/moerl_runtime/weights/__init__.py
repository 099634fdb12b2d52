"""Weight versions: immutable objects and one manifest per publish, and the puller (which needs no torch)."""
