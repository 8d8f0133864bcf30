"""Client tools, which a client supplies and runs."""
