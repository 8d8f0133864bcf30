"""DBOS: a call of a gate as a step of a durable workflow. Extra ``dbos``."""

from __future__ import annotations

from callgate.runtime.hosts.dbos.steps import call_as_step

__all__ = ["call_as_step"]
