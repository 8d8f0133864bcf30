"""A gate over HTTP: an ASGI application, and a dependency for FastAPI.

``callgate.asgi`` returns ``application``, and ``callgate.bound`` returns ``user_dependency``. ``authenticate`` gets
Starlette's request objects, which are imported at their first use.
"""

from __future__ import annotations

from callgate.runtime.hosts.asgi.app import GateApp, application
from callgate.runtime.hosts.asgi.fastapi_dependency import user_dependency

__all__ = ["GateApp", "application", "user_dependency"]
