"""Validation against JSON Schema, and admission of schemas from outside."""
