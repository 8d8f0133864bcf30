"""Calls that wait for a person or a client."""
