"""The application of Celery's workers in the kill runs: ``celery -A tests.runtime.jobs.kill_celery worker``."""

from __future__ import annotations

from callgate.runtime.hosts.celery import register
from tests.runtime.jobs import kill_app
from tests.runtime.jobs.engine_app import celery_app

place = kill_app.here()
if place.sabotaged:
    kill_app.sabotage()
app = celery_app(place.broker, place.prefix)
register(app, kill_app.gate(place, kill_app.engine(place, app)))
