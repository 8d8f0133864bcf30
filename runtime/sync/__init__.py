"""Synchronous callers: an event loop in a thread of its own, and what a waiting thread holds of it."""
