"""A2A's tasks in the store of the gate: each beside what waits, its owner's alone, under a MAC, with a version (B6, B8).

It is a ``VersionedTaskStore`` of the SDK in all but name: the SDK is not imported before it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any

from callgate.errors import StoreConflict
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import Wait, WaitState, WaitStore
from callgate.runtime.suspensions.pending import LONGEST_WAIT
from callgate.runtime.suspensions.resumption import is_whole, sealed

KIND = "a2a_task"
"""The kind of these records among all that waits."""
MOST_LISTED = 1000
"""Tasks of one user that are looked at for a list, in each of the two: those that go on and those that are over."""


class Tasks:
    """Tasks by tenant and id, for their owner alone: to anybody else they are not there.

    A task is forgotten 30 days after it began; one that is over, when the gate prunes its store.
    """

    def __init__(self, waits: Callable[[], WaitStore], keys: SigningKeys, now: Callable[[], float]) -> None:
        self._waits, self._keys, self._now = waits, keys, now
        self._watching: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def watching(self, task_id: str) -> Generator[asyncio.Event, None, None]:
        """Set whenever this process writes the task."""
        changed = asyncio.Event()
        watchers = self._watching.setdefault(task_id, set())
        watchers.add(changed)
        try:
            yield changed
        finally:
            watchers.discard(changed)
            if not watchers and self._watching.get(task_id) is watchers:
                del self._watching[task_id]

    async def get(self, task_id: str, context: Any) -> Any:
        """The task with its version, None if there is none of that owner."""
        from a2a.server.cluster import StoredTask, TaskVersion

        wait = await self._find(task_id, context)
        return None if wait is None else StoredTask(_task(wait), TaskVersion(wait.number))

    async def save(self, task: Any, *, event: Any, prev: Any, prev_version: Any, context: Any) -> Any:
        """Write a task. What has ended is never changed.

        The SDK gives up on a task that several processes write to at once, such as for results that come together. Who
        goes on with a task is settled elsewhere (``runtime/suspensions/pending.py``), so here the last word counts, and no message
        is lost.

        Raises:
            ConcurrentTaskModificationError: the task has ended meanwhile, or is not there.
        """
        from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion

        while True:
            found = await self._find(task.id, context)
            if (found is None) is not prev_version.is_missing and not (found is not None and is_cancelled(task)):
                raise ConcurrentTaskModificationError(task.id)
            if found is not None and found.state is not WaitState.WAITING:
                raise ConcurrentTaskModificationError(task.id)
            written = self._written(task if found is None else _joined(task, _task(found)), found, context)
            if await self._put(written, found, context):
                for changed in self._watching.get(task.id, ()):
                    changed.set()
                return TaskVersion(written.number)

    async def list(self, params: Any, context: Any) -> Any:
        """The owner's tasks, filtered and cut into pages as the SDK does it in memory."""
        from a2a.server.tasks import InMemoryTaskStore

        user = context.user.principal
        page = InMemoryTaskStore(use_copying=False)
        for state in (WaitState.WAITING, WaitState.USED):
            waits = await self._waits().list(user.tenant or "", state=state, user=user.id, limit=MOST_LISTED)
            for wait in waits:
                if self._is_ours(wait, user):
                    await page.save(_task(wait), context)
        return await page.list(params, context)

    async def delete(self, task_id: str, context: Any) -> None:
        """Tasks are not deleted: they are pruned."""
        raise NotImplementedError

    # ------------------------------------------------------------------ inside

    async def _find(self, task_id: str, context: Any) -> Wait | None:
        user = context.user.principal
        wait = await self._waits().get(user.tenant or "", f"a2a:{task_id}")
        return wait if wait is not None and self._is_ours(wait, user) else None

    def _is_ours(self, wait: Wait, user: Any) -> bool:
        mine = wait.kind == KIND and wait.user == user.id and wait.state in (WaitState.WAITING, WaitState.USED)
        fresh = wait.expires_at is not None and self._now() < wait.expires_at
        return mine and fresh and is_whole(self._keys, user.tenant or "", wait)

    async def _put(self, written: Wait, found: Wait | None, context: Any) -> bool:
        tenant = context.user.principal.tenant or ""
        if found is not None:
            return await self._waits().replace(tenant, written)
        try:
            await self._waits().put(tenant, written)
        except StoreConflict:
            return False
        return True

    def _written(self, task: Any, found: Wait | None, context: Any) -> Wait:
        from google.protobuf.json_format import MessageToJson

        user = context.user.principal
        made_at = self._now() if found is None else found.made_at
        wait = Wait(
            f"a2a:{task.id}",
            KIND,
            "",
            user.id,
            made_at,
            made_at + LONGEST_WAIT,
            MessageToJson(task, indent=None).encode(),
            "",
            WaitState.USED if is_over(task) else WaitState.WAITING,
            1 if found is None else found.number + 1,
        )
        return sealed(self._keys, user.tenant or "", wait)


def _joined(task: Any, stored: Any) -> Any:
    """A task with the messages of its stored version that whoever made it had not seen."""
    from a2a.types import Task

    known = {message.message_id for message in (*task.history, task.status.message)}
    missed = [message for message in stored.history if message.message_id not in known]
    if not missed:
        return task
    joined = Task()
    joined.CopyFrom(task)
    joined.history.extend(missed)
    return joined


def is_cancelled(task: Any) -> bool:
    """Whether a task was cancelled."""
    from a2a.types import TaskState

    return bool(task.status.state == TaskState.TASK_STATE_CANCELED)


def is_over(task: Any) -> bool:
    """Whether a task has ended."""
    from a2a.types import TaskState

    ended = ("COMPLETED", "CANCELED", "FAILED", "REJECTED")
    return task.status.state in {TaskState.Value(f"TASK_STATE_{name}") for name in ended}


def _task(wait: Wait) -> Any:
    from a2a.types import Task
    from google.protobuf.json_format import Parse

    return Parse(wait.body, Task())
