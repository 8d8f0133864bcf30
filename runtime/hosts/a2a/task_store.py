"""The store of A2A tasks, in the gate's store: each row has an owner, a MAC and a version.

It implements the ``VersionedTaskStore`` of the SDK without importing it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from callgate.errors import StoreConflict
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.turns import KeyedTurns
from callgate.runtime.hosts.a2a.messages import BadMessage
from callgate.runtime.hosts.a2a.task_list import KIND, TaskList
from callgate.runtime.hosts.a2a.task_states import STORED, AgentCall, is_cancelled, is_over
from callgate.runtime.suspensions.crowding import put_in_turn
from callgate.runtime.suspensions.pending import LONGEST_WAIT, PendingTasks
from callgate.runtime.suspensions.resumption import is_whole, signed
from callgate.tools.calls import User

if TYPE_CHECKING:
    from a2a.server.cluster import StoredTask, TaskVersion
    from a2a.types import ListTasksRequest, ListTasksResponse, Task


MAX_OPEN = 1000
"""Maximum number of tasks of one user that have not ended, in all processes of a store."""
TOO_MANY = "you have too many tasks that have not ended: finish or cancel some"
_PLACE = "callgate.place"
"""The key of the owner of a reserved place in the state of a call."""


class TaskStore:
    """Tasks by tenant and id. Other users get the same response as for an unknown task.

    A task expires 30 days after its start. A task that has ended is deleted when the gate prunes its store.
    """

    def __init__(self, store: Callable[[], Store], keys: SigningKeys, now: Callable[[], float]) -> None:
        self._store, self._keys, self._now = store, keys, now
        self._watching: dict[str, set[asyncio.Event]] = {}
        self._turns, self._starting = KeyedTurns(), dict[tuple[str, str], int]()
        self._pending = PendingTasks(lambda: store().suspensions, keys, now)

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

    async def get(self, task_id: str, context: AgentCall) -> StoredTask | None:
        """Return the task with its version; None if the user has no such task."""
        from a2a.server.cluster import StoredTask, TaskVersion

        row = await self._find(task_id, context)
        return None if row is None else StoredTask(_task(row), TaskVersion(row.number))

    async def save(
        self, task: Task, *, event: object, prev: object, prev_version: TaskVersion, context: AgentCall
    ) -> TaskVersion | None:
        """Write a task that has not ended.

        The SDK fails a task that several processes write at the same time, for example when results come together.
        ``runtime/suspensions/pending.py`` already lets one process resume a task. Therefore the last write wins here,
        and the messages of both are kept. A process that writes late changes no state of a task that was taken up again.

        Raises:
            BadMessage: the task is new, and its user has as many open tasks as one may have.
            ConcurrentTaskModificationError: the task has ended, or does not exist.
        """
        version: TaskVersion | None = None
        try:
            version = await self._save(task, prev_version, context)
        finally:
            stored = context.state.pop(STORED, None)
            if stored is not None and not stored.done():
                stored.set_result(version is not None)
        return version

    async def _save(self, task: Task, prev_version: TaskVersion, context: AgentCall) -> TaskVersion:
        from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion

        while True:
            found = await self._find(task.id, context)
            if (found is None) is not prev_version.is_missing and not (found is not None and is_cancelled(task)):
                raise ConcurrentTaskModificationError(task.id)
            if found is not None and found.state is not SuspensionState.WAITING:
                raise ConcurrentTaskModificationError(task.id)
            merged = task if found is None else _merged(task, _task(found))
            written = self._written(await self._as_it_is(merged, context), found, context)
            if await self._put(written, found, context):
                for changed in self._watching.get(task.id, ()):
                    changed.set()
                return TaskVersion(written.number)

    async def _as_it_is(self, task: Task, context: AgentCall) -> Task:
        """Return the task to write: if a process has taken it up meanwhile, it is at work and asks for no answer.

        The pending task is read after the row. So that process writes later, or this write finds a conflict.
        """
        from a2a.types import Task, TaskState

        if task.status.state != TaskState.TASK_STATE_INPUT_REQUIRED:
            return task
        pending = await self._pending.look(context.user.principal.tenant or "", task.id, ended=True)
        if pending is None or pending.taken_at is None:
            return task
        shown = Task()
        shown.CopyFrom(task)
        shown.status.state = TaskState.TASK_STATE_WORKING
        shown.status.ClearField("message")
        return shown

    async def may_start(self, context: AgentCall) -> bool:
        """Tell whether the user may start a further task, and reserve its place until it is stored; see ``release``.

        So a message over the limit costs little. ``save`` counts again, with the tasks of other processes.
        """
        owner = _owner(context)
        async with self._turns.of(owner):
            stored = await self._store().suspensions.count(*owner, MAX_OPEN, kind=KIND)
            if stored + (starting := self._starting.get(owner, 0)) >= MAX_OPEN:
                return False
            self._starting[owner] = starting + 1
            context.state[_PLACE] = owner
            return True

    def release(self, context: AgentCall) -> None:
        """Give back the place of a task that is stored, or was not started."""
        owner = context.state.pop(_PLACE, None)
        if owner is not None:
            self._starting[owner] -= 1
            if not self._starting[owner]:
                del self._starting[owner]

    async def list(self, params: ListTasksRequest, context: AgentCall) -> ListTasksResponse:
        """Return a page of the tasks of the user; see ``TaskList``."""
        user = context.user.principal

        def is_ours(row: SuspensionRecord) -> bool:
            return self._is_ours(row, user)

        return await TaskList(self._store().suspensions, self._keys, user, is_ours, _task).page(params)

    async def delete(self, task_id: str, context: AgentCall) -> None:
        """Not supported: the gate prunes tasks."""
        raise NotImplementedError

    # ------------------------------------------------------------------ inside

    async def _find(self, task_id: str, context: AgentCall) -> SuspensionRecord | None:
        user = context.user.principal
        row = await self._store().suspensions.get(user.tenant or "", f"a2a:{task_id}")
        return row if row is not None and self._is_ours(row, user) else None

    def _is_ours(self, row: SuspensionRecord, user: User) -> bool:
        mine = row.kind == KIND and row.user == user.id and row.state in (SuspensionState.WAITING, SuspensionState.USED)
        fresh = row.expires_at is not None and self._now() < row.expires_at
        return mine and fresh and is_whole(self._keys, user.tenant or "", row)

    async def _put(self, written: SuspensionRecord, found: SuspensionRecord | None, context: AgentCall) -> bool:
        owner = _owner(context)
        if found is not None:
            return await self._store().suspensions.replace(owner[0], written)
        try:
            if not await put_in_turn(self._store(), self._turns, *owner, [written], MAX_OPEN, KIND):
                raise BadMessage(TOO_MANY)
        except StoreConflict:
            return False
        self.release(context)
        return True

    def _written(self, task: Task, found: SuspensionRecord | None, context: AgentCall) -> SuspensionRecord:
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


def _owner(context: AgentCall) -> tuple[str, str]:
    user = context.user.principal
    return user.tenant or "", user.id


def _merged(task: Task, stored: Task) -> Task:
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


def _task(row: SuspensionRecord) -> Task:
    from a2a.types import Task
    from google.protobuf.json_format import Parse

    task = Task()
    Parse(row.body, task)
    return task
