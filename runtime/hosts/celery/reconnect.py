"""What a worker of Celery does when its broker went away while all its places were taken: begin again, as otherwise.

With Redis (kombu 5.7), a worker whose places are all taken does not look at its connection. If that is lost meanwhile,
the acknowledgements of what it was running fail, kombu says so in the log and counts their messages as under way for
ever: no place is free again, and a worker that has none never looks. It would run nothing more until it is begun again
by hand, with every probe green. With RabbitMQ a lost connection is always noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VERBS = ("basic_ack", "basic_reject")
"""What a channel is told of a message at the end of its task."""


def outlast_outages(app: Any) -> None:
    """Give the workers of an application a step more: an acknowledgement that cannot be sent is a connection that is lost.

    The consumer connects again then, as it does for every other loss, and gets its messages once more: their jobs are
    over, which the task sees.
    """
    from celery.bootsteps import StartStopStep
    from celery.worker.consumer import Tasks

    watch = _Watch()

    class Reconnect(StartStopStep):  # type: ignore[misc]  # Celery has no types
        requires = (Tasks,)

        def start(self, parent: Any) -> None:
            if parent.hub is not None:  # else the pool has green threads, which gates do not run in
                watch.begin(parent.task_consumer.channel, parent.connection_errors, parent.hub.on_tick)

    app.steps["consumer"].add(Reconnect)


class _Watch:
    """Looks at what the channel of a worker is told."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def begin(self, channel: Any, errors: tuple[type[Exception], ...], turns: set[Callable[[], None]]) -> None:
        """Look at another channel: each connection has its own. *turns* are done in each turn of the worker's loop."""
        self._error = None
        for verb in VERBS:
            setattr(channel, verb, self._noticing(getattr(channel, verb), errors))
        turns.add(self._end_if_lost)  # it is there once, however many connections there were

    def _noticing(self, verb: Callable[..., Any], errors: tuple[type[Exception], ...]) -> Callable[..., Any]:
        def told(*args: Any, **options: Any) -> Any:
            try:
                return verb(*args, **options)
            except errors as error:  # whoever called logs it, and goes on
                self._error = error
                raise

        return told

    def _end_if_lost(self) -> None:
        """End a turn of the event loop with the error, as one that reads from a lost connection does."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
