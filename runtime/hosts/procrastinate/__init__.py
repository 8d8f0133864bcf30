"""Procrastinate as a job engine, on the PostgreSQL of the gate's store. Extra ``worker``."""

from __future__ import annotations

from callgate.runtime.hosts.procrastinate.backend import ProcrastinateJobs

__all__ = ["ProcrastinateJobs"]
