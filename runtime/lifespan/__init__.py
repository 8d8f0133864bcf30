"""Opening and closing a gate, and its background tasks."""
