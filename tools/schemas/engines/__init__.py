"""Validator engines, which check a value against a JSON Schema."""
