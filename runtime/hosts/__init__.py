"""Hosts that expose a gate or run its jobs: ASGI, A2A, Celery, Procrastinate, DBOS."""
