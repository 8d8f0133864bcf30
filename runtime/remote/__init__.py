"""Remote servers: their tools behind a gate."""
