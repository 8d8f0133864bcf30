"""The store of A2A tasks, in the gate's store: each row has an owner, a MAC and a version.

It implements the ``VersionedTaskStore`` of the SDK without importing it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any

from callgate.errors import StoreConflict
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState, SuspensionStore
from callgate.runtime.suspensions.pending import LONGEST_WAIT
from callgate.runtime.suspensions.resumption import is_whole, signed

KIND = "a2a_task"
"""The kind of these rows in the store of suspended calls."""
MAX_LISTED = 1000
"""Maximum number of tasks of one user in a list: of those that run, and of those that have ended."""


class TaskStore:
    """Tasks by tenant and id. Other users get the same response as for an unknown task.

    A task expires 30 days after its start. A task that has ended is deleted when the gate prunes its store.
    """

    def __init__(self, rows: Callable[[], SuspensionStore], keys: SigningKeys, now: Callable[[], float]) -> None:
        self._rows, self._keys, self._now = rows, keys, now
        self._watching: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def watching(self, task_id: str) -> Generator[asyncio.Event, None, None]:
        """Return an event that is set when this process writes the task."""
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
        """Return the task with its version; None if the user has no such task."""
        from a2a.server.cluster import StoredTask, TaskVersion

        row = await self._find(task_id, context)
        return None if row is None else StoredTask(_task(row), TaskVersion(row.number))

    async def save(self, task: Any, *, event: Any, prev: Any, prev_version: Any, context: Any) -> Any:
        """Write a task that has not ended.

        The SDK fails a task that several processes write at the same time, for example when results come together.
        ``runtime/suspensions/pending.py`` already lets one process resume a task. Therefore the last write wins here,
        and the messages of both are kept.

        Raises:
            ConcurrentTaskModificationError: the task has ended, or does not exist.
        """
        from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion

        while True:
            found = await self._find(task.id, context)
            if (found is None) is not prev_version.is_missing and not (found is not None and is_cancelled(task)):
                raise ConcurrentTaskModificationError(task.id)
            if found is not None and found.state is not SuspensionState.WAITING:
                raise ConcurrentTaskModificationError(task.id)
            written = self._written(task if found is None else _merged(task, _task(found)), found, context)
            if await self._put(written, found, context):
                for changed in self._watching.get(task.id, ()):
                    changed.set()
                return TaskVersion(written.number)

    async def list(self, params: Any, context: Any) -> Any:
        """List the tasks of the user, filtered and paged by the SDK's store in memory."""
        from a2a.server.tasks import InMemoryTaskStore

        user = context.user.principal
        page = InMemoryTaskStore(use_copying=False)
        for state in (SuspensionState.WAITING, SuspensionState.USED):
            rows = await self._rows().list(user.tenant or "", state=state, user=user.id, limit=MAX_LISTED)
            for row in rows:
                if self._is_ours(row, user):
                    await page.save(_task(row), context)
        return await page.list(params, context)

    async def delete(self, task_id: str, context: object) -> None:
        """Not supported: the gate prunes tasks."""
        raise NotImplementedError

    # ------------------------------------------------------------------ inside

    async def _find(self, task_id: str, context: Any) -> SuspensionRecord | None:
        user = context.user.principal
        row = await self._rows().get(user.tenant or "", f"a2a:{task_id}")
        return row if row is not None and self._is_ours(row, user) else None

    def _is_ours(self, row: SuspensionRecord, user: Any) -> bool:
        mine = row.kind == KIND and row.user == user.id and row.state in (SuspensionState.WAITING, SuspensionState.USED)
        fresh = row.expires_at is not None and self._now() < row.expires_at
        return mine and fresh and is_whole(self._keys, user.tenant or "", row)

    async def _put(self, written: SuspensionRecord, found: SuspensionRecord | None, context: Any) -> bool:
        tenant = context.user.principal.tenant or ""
        if found is not None:
            return await self._rows().replace(tenant, written)
        try:
            await self._rows().put(tenant, written)
        except StoreConflict:
            return False
        return True

    def _written(self, task: Any, found: SuspensionRecord | None, context: Any) -> SuspensionRecord:
        from google.protobuf.json_format import MessageToJson

        user = context.user.principal
        made_at = self._now() if found is None else found.made_at
        row = SuspensionRecord(
            f"a2a:{task.id}",
            KIND,
            "",
            user.id,
            made_at,
            made_at + LONGEST_WAIT,
            MessageToJson(task, indent=None).encode(),
            "",
            SuspensionState.USED if is_over(task) else SuspensionState.WAITING,
            1 if found is None else found.number + 1,
        )
        return signed(self._keys, user.tenant or "", row)


def _merged(task: Any, stored: Any) -> object:
    """Add the messages of the stored version that are missing in a task."""
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
    """Tell whether a task was cancelled."""
    from a2a.types import TaskState

    return bool(task.status.state == TaskState.TASK_STATE_CANCELED)


def is_over(task: Any) -> bool:
    """Tell whether a task has ended."""
    from a2a.types import TaskState

    ended = ("COMPLETED", "CANCELED", "FAILED", "REJECTED")
    return task.status.state in {TaskState.Value(f"TASK_STATE_{name}") for name in ended}


def _task(row: SuspensionRecord) -> Any:
    from a2a.types import Task
    from google.protobuf.json_format import Parse

    return Parse(row.body, Task())
