"""The gate of a service: what an application makes, opens and calls through."""

from __future__ import annotations

from callgate.runtime.gate.gate import Gate

__all__ = ["Gate"]
