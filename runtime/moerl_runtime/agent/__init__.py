"""The trainer pod's agent: health, metrics and the report."""
