"""Rate limits, concurrency limits and the cache."""
