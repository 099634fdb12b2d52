"""Verifiable tasks: prompts, the held-out split and the score of a response. No torch."""
