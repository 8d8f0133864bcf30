"""The state of a call in typed parts, and what the runtime keeps for it."""
