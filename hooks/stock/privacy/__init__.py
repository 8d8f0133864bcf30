"""Redaction, secrets and output limits."""
