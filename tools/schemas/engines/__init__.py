"""Validator engines: what checks a value against a JSON Schema (contract 18, C7)."""
