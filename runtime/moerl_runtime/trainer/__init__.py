"""The trainer process: GRPO on batches taken from the buffer, publishes and checkpoints."""
