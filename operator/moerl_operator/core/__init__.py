"""Pure policy: what should be there, given what is. No clock, no randomness, no I/O."""
