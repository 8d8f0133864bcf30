"""The audit log, metrics and traces."""
