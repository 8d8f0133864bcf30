"""A scripted model behind a real HTTP server: the five wire forms, spelled without the adapters' help."""
