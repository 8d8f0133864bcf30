"""The application of Celery's workers in the engine tests: ``celery -A tests.runtime.jobs.engine_celery worker``."""

from __future__ import annotations

import os
import time

from callgate.runtime.hosts.celery import CeleryJobs, register
from tests.runtime.jobs.engine_app import celery_app, gate, note

prefix = os.environ["CALLGATE_TEST_PREFIX"]
app = celery_app(os.environ["CALLGATE_TEST_BROKER"], prefix)
register(app, gate(CeleryJobs(app, queues=["default", "idle"], queue_prefix=f"{prefix}.")))


@app.task(name="stopped")  # type: ignore[untyped-decorator]
def stopped(who: str) -> None:
    """A task that is none of ours, and does not end before its time limit."""
    try:
        time.sleep(60)
    finally:
        note(f"{who} stopped")
