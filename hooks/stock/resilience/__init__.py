"""Timeouts, retries and circuit breakers."""
