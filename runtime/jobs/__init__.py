"""Calls that a worker runs."""
