"""Fixtures of the data plane's tests: one real redis-server per session, emptied for each test."""

from support.redis import buffer, redis

__all__ = ["buffer", "redis"]
