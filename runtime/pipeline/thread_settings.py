"""Code around plain functions in their worker threads: by default, the database connections of Django."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from callgate.hooks.state.host import AroundThreads, ThreadContext

T = TypeVar("T")
_DJANGO = "django.db"


def around_threads(setting: AroundThreads) -> ThreadContext | None:
    """Return what surrounds the plain code of an attempt: with ``"auto"``, ``django_connections`` where Django is loaded."""
    if setting is None or not isinstance(setting, str):
        return setting
    return django_connections if _DJANGO in sys.modules else None


def surrounded_call(around: ThreadContext, call: Callable[[], T]) -> Callable[[], T]:
    """Return *call* inside the context manager of *around*."""

    def surrounded() -> T:
        with around():
            return call()

    return surrounded


@contextmanager
def django_connections() -> Generator[None]:
    """Close the connections of this thread that Django can no longer use, before and after the code of an attempt.

    Django does so around a request, in the thread of the request only. A worker thread would keep a connection that the
    database has closed, and each later call would fail. An open transaction keeps its connection.
    """
    from django.conf import settings
    from django.db import close_old_connections

    if not settings.configured:
        yield
        return
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def explain_sync_only(error: BaseException, place: str) -> None:
    """Add the line to write to Django's error about code that blocks the event loop."""
    error.add_note(
        f"{place} runs on the event loop. Plain hooks and async functions do: write `async def`, and await the ORM's "
        "async methods (`aget`, `acreate`) or `sync_to_async(...)`. Plain tools, and plain providers that they take, "
        "run in threads and may use the ORM as it is."
    )
