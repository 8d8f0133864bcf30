"""Start a worker: ``make example-celery``. It needs Redis on its usual port, or ``CELERY_BROKER_URL``."""

from __future__ import annotations

from examples.celery_service.app import app

app.worker_main(["worker", "--concurrency=2", "--loglevel=info", "--without-gossip", "--without-mingle"])
