"""Stock hooks: policies that a gate registers by name."""
