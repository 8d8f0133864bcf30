"""Reconnection of a Celery worker that loses its broker while all its slots are busy.

With Redis (kombu 5.7), a worker without a free slot does not read its connection. If the connection is lost meanwhile, the
acknowledgements of the running tasks fail. kombu logs that, and counts their messages as running for ever. No slot becomes
free again, so the worker never reads its connection: it runs nothing until a manual restart, with all probes green. With
RabbitMQ a lost connection is always noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VERBS = ("basic_ack", "basic_reject")
"""The methods of a channel that acknowledge a message at the end of its task."""


def reconnect_on_lost_ack(app: Any) -> None:
    """Add a step to the workers of an application: a failed acknowledgement counts as a lost connection.

    The consumer then reconnects, as for any other loss. It gets its messages again; the task finds that their jobs have
    ended.
    """
    from celery.bootsteps import StartStopStep
    from celery.worker.consumer import Tasks

    watch = _AckWatch()

    class Reconnect(StartStopStep):  # type: ignore[misc]  # Celery has no types
        requires = (Tasks,)

        def start(self, parent: Any) -> None:
            if parent.hub is not None:  # without a hub the pool has green threads, which a gate does not support
                watch.watch_channel(parent.task_consumer.channel, parent.connection_errors, parent.hub.on_tick)

    app.steps["consumer"].add(Reconnect)


class _AckWatch:
    """Watches the acknowledgements on the channel of a worker."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def watch_channel(
        self, channel: object, errors: tuple[type[Exception], ...], ticks: set[Callable[[], None]]
    ) -> None:
        """Watch the channel of a new connection. The worker's event loop calls *ticks* in each iteration."""
        self._error = None
        for verb in VERBS:
            setattr(channel, verb, self._watched(getattr(channel, verb), errors))
        ticks.add(self._raise_if_lost)  # a set: added once

    def _watched(self, verb: Callable[..., object], errors: tuple[type[Exception], ...]) -> Callable[..., object]:
        def acknowledge(*args: object, **options: object) -> object:
            try:
                return verb(*args, **options)
            except errors as error:  # the caller logs it and continues
                self._error = error
                raise

        return acknowledge

    def _raise_if_lost(self) -> None:
        """Raise the error in the event loop, as a read from a lost connection does."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
