"""Celery as a job engine, for teams that already run it. Extra ``celery``."""

from __future__ import annotations

from callgate.runtime.hosts.celery.backend import CeleryJobs
from callgate.runtime.hosts.celery.worker import register

__all__ = ["CeleryJobs", "register"]
