"""Procrastinate as an engine for jobs, on the PostgreSQL of the gate's store (design 8). Extra ``worker``."""

from __future__ import annotations

from callgate.runtime.hosts.procrastinate.backend import ProcrastinateJobs

__all__ = ["ProcrastinateJobs"]
