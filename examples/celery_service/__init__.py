"""The small shop in a Celery worker: a task for each call."""
