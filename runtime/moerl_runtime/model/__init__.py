"""Models of `transformers`: the tiny Qwen3-MoE of the examples, loading, saving, and the supervised warm start."""
