"""The control of the tests of outages: the same application, whose workers take kombu's word for it."""

from __future__ import annotations

from tests.runtime.jobs.engine_celery import app

app.steps["consumer"].clear()
