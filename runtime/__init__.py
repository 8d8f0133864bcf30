"""The runtime: it runs a tool call through its lifecycle."""
