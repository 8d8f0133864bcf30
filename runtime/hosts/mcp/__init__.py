"""MCP (extra ``mcp``): a gate as a server for editors, desktop assistants and agent SDKs, over stdio and HTTP.

Only ``face`` is imported before a server is made: the SDK takes more than half a second to import.
"""
