"""Jobs that do not fit a worker, such as those of a tool that another version has: it leaves them to other workers.

A worker learns from the first such job how the others begin, and asks the store for jobs without them. It looks at one of
them again from time to time, because its tools may have changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from callgate.providers.logs import LogEvent, emit
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import EXPLAIN_BATCH, Group, Job
from callgate.runtime.jobs.calls import JobCalls
from callgate.runtime.jobs.records import JobRequest, is_intact, key_id_of

WAITS = "waits for a worker"
"""What the ``reason`` of a job begins with that a worker has left."""
LEAVE_PAUSE, LONGEST_PAUSE = 5.0, 120.0
"""Seconds until a job that was left may be taken again: at first, and at most. In this time workers take others."""
LOOK_AGAIN = 30.0
"""Seconds until a worker takes one job again of a group that it left."""
MAX_GROUPS = 64
"""The maximum number of groups that a worker leaves out at once."""
_EXPLAINED = 100
"""The maximum number of statements that explain the jobs of one group."""

_HEAD = re.compile(rb'\{"v":\d+,"tool":"(?:[^"\\]|\\.)*","version":"[^"\\]+","key_id":"[^"\\]+","deadline_at":null,')


class Misfits:
    """The groups of jobs that do not fit a worker. Its takes leave out each of the ``groups`` until a time."""

    def __init__(
        self, store: Callable[[], Store], keys: SigningKeys, now: Callable[[], float], calls: JobCalls
    ) -> None:
        self._store, self._keys, self._now, self._calls = store, keys, now, calls
        self._until: dict[Group, float] = {}

    def groups(self) -> list[Group]:
        """Return the groups that this worker leaves out now."""
        if self._until:
            now = self._now()
            self._until = {group: until for group, until in self._until.items() if until > now}
        return list(self._until)

    def request_of(self, tenant: str, job: Job) -> JobRequest | str | None:
        """Return the call of a job; the reason if it does not fit this worker; None if it was changed without the key."""
        if not is_intact(self._keys, tenant, job):
            return None if key_id_of(job) in self._keys.ids else f"{WAITS} with its signing key"
        try:
            request = JobRequest.load(job.body)
        except (ValueError, TypeError, KeyError):
            return f"{WAITS} with the version of Callgate that wrote it"
        late = request.deadline_at is not None and request.deadline_at <= self._now()
        if late or self._calls.fits(request):
            return request
        return f"{WAITS} with its definition of the tool" if self._calls.has(job.tool) else f"{WAITS} with its tool"

    def pause(self, job: Job, reason: str) -> float:
        """Return the seconds until a job that is left may be taken again: about as long as it has waited."""
        emit(LogEvent.JOB_LEFT, job=job.id, tool=job.tool, reason=reason)
        if not (job.reason or "").startswith(WAITS):
            return LEAVE_PAUSE
        return min(max(LEAVE_PAUSE, self._now() - job.made_at), LONGEST_PAUSE)

    async def leave_out(self, job: Job, reason: str) -> None:
        """Take no more jobs like this one for a while, and record why they wait.

        Jobs with a deadline are not left out: any worker ends those that are late.

        Raises:
            StoreError: the store failed.
        """
        head = _HEAD.match(job.body)
        if head is None or len(self._until) >= MAX_GROUPS:
            return
        group, now, jobs = Group(job.tool, head[0]), self._now(), self._store().jobs
        self._until[group] = now + LOOK_AGAIN
        for _ in range(_EXPLAINED):
            if await jobs.explain(group, now, reason) < EXPLAIN_BATCH:
                return
