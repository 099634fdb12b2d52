"""What a person sees of a running operator: metrics, health, logs, events."""
