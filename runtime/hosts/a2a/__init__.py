"""A2A (extra ``a2a``): ``agent`` serves a gate as an A2A agent, ``remote_tools`` calls a remote agent's skills as tools.

The SDK is imported in the functions that need it. ``agent`` registers our classes as virtual subclasses of its abstract
classes.
"""

from __future__ import annotations

from callgate.runtime.hosts.a2a.agent import agent
from callgate.runtime.hosts.a2a.card import EXTENSION
from callgate.runtime.hosts.a2a.remote import remote_tools

__all__ = ["EXTENSION", "agent", "remote_tools"]
