"""Rate limits of queues, which all workers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callgate.providers.stores.base import Limit, Store

MAX_SPREAD = 300.0
"""Seconds that a job is put off at most before a worker looks at it again."""


class QueueRates:
    """Takes one unit of the rate limit of its queue for each job.

    Jobs that a worker puts off get times one after another at the rate of the queue. So a long queue is not looked at
    again and again.
    """

    def __init__(self, store: Callable[[], Store], rates: Mapping[str, tuple[int, float]]) -> None:
        self._store, self._rates = store, rates
        self._next: dict[str, float] = {}

    async def pause_of(self, queue: str, now: float) -> float | None:
        """Return None if a job of this queue may run now, or the seconds to put it off.

        Raises:
            StoreError: the store failed.
        """
        rate = self._rates.get(queue)
        if rate is None:
            return None
        number, seconds = rate
        taken = await self._store().quotas.take("", f"jobs of the queue {queue}", Limit(number, seconds))
        if taken.ok:
            return None
        at = max(self._next.get(queue, 0.0), now + taken.retry_after)
        self._next[queue] = min(at + seconds / number, now + MAX_SPREAD)
        return at - now
