"""Durable state: checkpoints in DCP format, their complete markers, and s3:// and file:// locations."""
