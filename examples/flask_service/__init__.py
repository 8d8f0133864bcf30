"""The small shop in Flask."""
