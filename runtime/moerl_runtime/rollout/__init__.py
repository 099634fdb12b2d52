"""Rollouts: the driver (no torch) and the engine behind one HTTP protocol."""
