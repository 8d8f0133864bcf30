"""``ListTasks``: a user's tasks in pages, the last changed first. A page token is a signed position in that order."""

from __future__ import annotations

import asyncio
import heapq
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import orjson

from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionPosition, SuspensionRecord, SuspensionState, SuspensionStore
from callgate.runtime.hosts.a2a.messages import BadMessage
from callgate.tools.calls import User

if TYPE_CHECKING:
    from a2a.types import ListTasksRequest, ListTasksResponse, Task


KIND = "a2a_task"
"""The kind of the rows of tasks in the store of suspended calls."""
MAX_LISTED = 1000
"""Maximum number of ended tasks in a list: those that were started last."""
SLICE = 100
"""Rows that one statement reads. Of them, only the tasks of the page stay in memory."""
PIECE = 65_536
"""Bytes of rows that are read in one step of the event loop."""
MAX_SHOWN = 65_536
"""Bytes of tasks on one page, after which it ends: the SDK serialises a page in one step. It has one task at least."""
_NO_STATE = "TASK_STATE_UNSPECIFIED"

_Key: TypeAlias = tuple[int, str]
"""The position of a task in a list: the nanoseconds of its last change, and its id."""


class _Cursor(NamedTuple):
    """The end of a page. *floor* is the oldest ended task of a list of ``MAX_LISTED``; None if the list has all of them."""

    end: _Key
    floor: SuspensionPosition | None


class _Head(NamedTuple):
    """The members of a task that a list sorts and filters by. To make the message of a large task takes milliseconds."""

    key: _Key
    context_id: str
    state: str


class TaskList:
    """The list of one user's tasks. *is_ours* says whether a row is valid; *task_of* makes the task of a row."""

    def __init__(
        self,
        rows: SuspensionStore,
        keys: SigningKeys,
        user: User,
        is_ours: Callable[[SuspensionRecord], bool],
        task_of: Callable[[SuspensionRecord], Task],
    ) -> None:
        self._rows, self._keys, self._user, self._is_ours, self._task_of = rows, keys, user, is_ours, task_of

    async def page(self, params: ListTasksRequest) -> ListTasksResponse:
        """Return a page.

        A task that is added or deleted between two pages moves no other task. A task that changes moves to the front:
        no later page shows it again, and ``status_timestamp_after`` finds it.

        Raises:
            BadMessage: the page token was made for another user or filter, or by no key of ours; or the user has started
                more than ``MAX_LISTED`` tasks since the first page.
        """
        from a2a.types import ListTasksResponse
        from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE, MAX_LIST_TASKS_PAGE_SIZE

        size = min(params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE, MAX_LIST_TASKS_PAGE_SIZE)
        cursor = self._read_token(params) if params.page_token else None
        matching, kept = set[str](), dict[str, tuple[_Key, SuspensionRecord]]()
        ended, floor, more, read = 0, None if cursor is None else cursor.floor, False, 0
        async for row in self._read(cursor):
            if (read := read + len(row.body)) > PIECE:
                read = 0
                await asyncio.sleep(0)
            if row.state is SuspensionState.USED:
                ended += 1
                floor = (row.made_at, row.id) if cursor is None and ended == MAX_LISTED else floor
            if not self._is_ours(row):
                continue
            head = _head(row)
            id = head.key[1]
            matching.discard(id)  # read while it was open, and ended since
            kept.pop(id, None)
            if not _matches(head, params):
                continue
            matching.add(id)
            if cursor is None or head.key < cursor.end:
                kept[id] = head.key, row
            if len(kept) > size + SLICE:
                kept, more = {key[1]: (key, one) for key, one in _first(size, kept)}, True
        shown = _within(MAX_SHOWN, _first(size, kept))
        more = bool(shown) and (more or len(kept) > len(shown))
        tasks = []
        for _, row in shown:
            tasks.append(self._task_of(row))
            await asyncio.sleep(0)
        return ListTasksResponse(
            tasks=tasks,
            next_page_token=self._token(params, _Cursor(shown[-1][0], floor)) if more else "",
            total_size=len(matching),
            page_size=size,
        )

    async def _read(self, cursor: _Cursor | None) -> AsyncGenerator[SuspensionRecord]:
        """Yield the rows of open tasks, then those of ended ones: a task that ends meanwhile is read twice, not missed."""
        for state in (SuspensionState.WAITING, SuspensionState.USED):
            ended = state is SuspensionState.USED
            floor = cursor.floor if ended and cursor is not None else None
            left = MAX_LISTED if ended and cursor is None else 2 * MAX_LISTED
            after: SuspensionPosition | None = None
            while True:
                rows = await self._rows.list(
                    self._user.tenant or "",
                    state=state,
                    user=self._user.id,
                    limit=SLICE,
                    after=after,
                    kind=KIND,
                    newest=True,
                )
                for row in rows:
                    if floor is not None and (row.made_at, row.id) < floor:
                        return
                    if left == 0 and ended and cursor is None:
                        return
                    if left == 0:
                        raise BadMessage("too many tasks were started since the first page; begin with the first page")
                    left -= 1
                    yield row
                if len(rows) < SLICE:
                    break
                after = rows[-1].made_at, rows[-1].id
                await asyncio.sleep(0)  # a store in memory never waits, and other requests would

    def _token(self, params: ListTasksRequest, cursor: _Cursor) -> str:
        body = urlsafe_b64encode(json.dumps(cursor).encode()).decode()
        return f"{body}.{self._keys.sign(*self._bound(params), body.encode())}"

    def _read_token(self, params: ListTasksRequest) -> _Cursor:
        body, _, mac = params.page_token.rpartition(".")
        if not self._keys.verify(mac, *self._bound(params), body.encode("utf-8", "replace")):
            raise BadMessage("the page token is not one of this list; begin with the first page")
        (changed, id), floor = json.loads(urlsafe_b64decode(body))  # ours: it has our MAC
        return _Cursor((changed, id), None if floor is None else (floor[0], floor[1]))

    def _bound(self, params: ListTasksRequest) -> tuple[bytes, bytes]:
        """Return what a token is bound to: the user, and the filter. The size of a page may change."""
        after = params.status_timestamp_after.ToNanoseconds() if params.HasField("status_timestamp_after") else None
        bound = [self._user.tenant or "", self._user.id, params.context_id, params.status, after]
        return b"a2a list", json.dumps(bound).encode()


def _first(size: int, kept: dict[str, tuple[_Key, SuspensionRecord]]) -> list[tuple[_Key, SuspensionRecord]]:
    return heapq.nlargest(size, kept.values(), key=lambda one: one[0])


def _within(limit: int, found: Iterable[tuple[_Key, SuspensionRecord]]) -> list[tuple[_Key, SuspensionRecord]]:
    """Return the first tasks, up to the one with which they have *limit* bytes."""
    shown = list[tuple[_Key, SuspensionRecord]]()
    for one in found:
        if limit <= 0:
            break
        limit -= len(one[1].body)
        shown.append(one)
    return shown


def _head(row: SuspensionRecord) -> _Head:
    """Read the JSON of a task."""
    from google.protobuf.timestamp_pb2 import Timestamp

    task: dict[str, Any] = orjson.loads(row.body)
    status: dict[str, Any] = task.get("status", {})
    changed = -1
    if "timestamp" in status:
        (time := Timestamp()).FromJsonString(status["timestamp"])
        changed = time.ToNanoseconds()
    return _Head((changed, task["id"]), task.get("contextId", ""), status.get("state", _NO_STATE))


def _matches(task: _Head, params: ListTasksRequest) -> bool:
    """Tell whether a list with these parameters has a task."""
    from a2a.types import TaskState

    if params.context_id and task.context_id != params.context_id:
        return False
    if params.status and TaskState.Value(task.state) != params.status:
        return False
    if not params.HasField("status_timestamp_after"):
        return True
    return bool(task.key[0] >= max(0, params.status_timestamp_after.ToNanoseconds()))
