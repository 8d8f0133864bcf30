"""The verb: what runs a tool call through its lifecycle."""
