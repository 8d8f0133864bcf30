"""A gate over HTTP: an ASGI application, and a dependency for FastAPI.

``application`` is what ``callgate.asgi`` makes, ``user_dependency`` what ``gate.bound`` is. Starlette's request objects
are what ``authenticate`` sees; they are imported where they are made.
"""

from __future__ import annotations

from callgate.runtime.hosts.asgi.app import GateApp, application
from callgate.runtime.hosts.asgi.dependency import user_dependency

__all__ = ["GateApp", "application", "user_dependency"]
