"""One governed endpoint for two MCP servers of others; see ``__main__``."""
