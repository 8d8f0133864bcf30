"""A2A (extra ``a2a``): ``agent`` makes an A2A agent of a gate, ``remote_tools`` makes tools of a remote agent's skills.

The SDK is imported in the functions that need it. What it asks to be subclassed is registered with it instead, when an
agent is made.
"""

from __future__ import annotations

from callgate.runtime.hosts.a2a.agent import agent
from callgate.runtime.hosts.a2a.card import EXTENSION
from callgate.runtime.hosts.a2a.remote import remote_tools

__all__ = ["EXTENSION", "agent", "remote_tools"]
