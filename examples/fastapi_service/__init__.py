"""The small shop in FastAPI: an endpoint of your own, and all tools under /agent."""
