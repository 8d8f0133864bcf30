"""MCP (extra ``mcp``): the tools of remote MCP servers behind a gate.

Only ``face`` is imported before a server is mounted: the SDK takes more than half a second to import.
"""
