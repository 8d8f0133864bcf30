"""Celery as an engine for jobs, for teams that have it (design 8). Extra ``celery``."""

from __future__ import annotations

from callgate.runtime.hosts.celery.backend import CeleryJobs
from callgate.runtime.hosts.celery.worker import register

__all__ = ["CeleryJobs", "register"]
