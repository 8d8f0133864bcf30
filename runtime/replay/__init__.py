"""Recorded calls, evaluated against another set of hooks."""
