"""Pending tasks of clients, for every wire: the suspended calls of a task, by call id.

A pending task is one record in the store of suspended calls, and outlives the process. It holds the state of its
conversation, if any, and its suspended calls, each with an expiry. A MAC binds the record to its owner and content.
Unknown, foreign, expired and tampered records all look the same to a client: not found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace

from callgate.errors import NotPending, StoreConflict
from callgate.providers.ids import flaw_of
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState, SuspensionStore
from callgate.runtime.suspensions.resumption import is_whole, signed
from callgate.tools.values import dump

KIND = "conversation"
"""The kind of these records in the store of suspended calls."""
VERSION = 1
LONGEST_WAIT = 30 * 86_400.0
"""Seconds after which a pending task expires."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's answer to one call: a JSON value or an error, and optionally the name of the tool."""

    value: object = None
    error: str | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One suspended call, and the answer or decision that it waits for.

    ``kind`` is the kind of the suspension. ``handle`` is the argument of ``gate.resume`` and stays secret.
    ``arguments`` are for the client that runs the call, ``prompt`` is for people, ``schema`` describes the answer.
    ``expires_at`` is in seconds since the epoch. ``result`` is the ``ToolResult`` of a decided call, as JSON.
    ``again`` marks a decided call that ``gate.proceed`` runs: no process has run it, or its approver got the output.
    ``asked`` is the number of earlier questions of the call.
    """

    call_id: str
    tool: str
    kind: str
    handle: str
    arguments: object = None
    prompt: str = ""
    schema: Mapping[str, object] | None = None
    expires_at: float | None = None
    answer: Answer | None = None
    result: Mapping[str, object] | None = None
    again: bool = False
    asked: int = 0

    @property
    def id(self) -> str:
        """The id by which the client names this question: a further question of a call has another one than the call.

        Otherwise an answer that is delivered twice would answer the next question, too. A call of a client's tool keeps
        its own id: it has one result.
        """
        return f"{self.call_id}#{self.asked}" if self.asked and self.kind != "client_tool" else self.call_id

    @property
    def settled(self) -> bool:
        """True once the call has an answer or a decision."""
        return self.answer is not None or self.result is not None or self.again

    def open(self, now: float) -> bool:
        """Return whether the call still accepts an answer."""
        return not self.settled and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A pending task. ``state`` is the state of its conversation, None for a single call; ``tools`` are the client's.

    ``taken_at`` is when a process took the task to resume it; None while it waits. Only one process can take
    a task. Times are seconds since the epoch.
    """

    task: str
    context: str
    user: str
    tenant: str
    wanted: tuple[Wanted, ...]
    state: Mapping[str, object] | None = None
    tools: Sequence[Mapping[str, object]] = ()
    taken_at: float | None = None
    made_at: float = 0.0
    number: int = field(default=0, compare=False)  # the version of the record in the store

    def open(self, now: float) -> tuple[Wanted, ...]:
        """Return the calls that still wait for an answer."""
        return tuple(one for one in self.wanted if one.open(now))

    def find(self, call_id: str) -> Wanted | None:
        """Return the entry of a call, settled or not; None if there is none."""
        return next((one for one in self.wanted if one.call_id == call_id), None)

    def named(self, id: str) -> Wanted | None:
        """Return the question that a client names, settled or not; None if there is none."""
        return next((one for one in self.wanted if one.id == id), None)


class PendingTasks:
    """The pending tasks in a store. Every change is atomic: of two concurrent changes, one fails."""

    def __init__(self, waits: Callable[[], SuspensionStore], keys: SigningKeys, now: Callable[[], float]) -> None:
        self._waits, self._keys, self._now = waits, keys, now

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now()

    async def find(self, user: User, task: str) -> PendingTask | None:
        """Return the pending task of this user; None if it is unknown, taken, another user's, expired or damaged."""
        pending = await self.look(user.tenant or "", task)
        free = pending is not None and pending.taken_at is None and pending.user == user.id
        return pending if free else None

    async def look(self, tenant: str, task: str, *, ended: bool = False) -> PendingTask | None:
        """Return a task of any user in the tenant, taken or not; with *ended*, also a task that has ended."""
        if flaw_of(task) is not None:  # a client gave the id; no store keeps such a task
            return None
        wait = await self._waits().get(tenant, _place(task))
        states = (SuspensionState.WAITING, SuspensionState.USED) if ended else (SuspensionState.WAITING,)
        if wait is None or wait.kind != KIND or wait.state not in states:
            return None
        if wait.expires_at is None or wait.expires_at <= self.now or not is_whole(self._keys, tenant, wait):
            return None
        return _read(tenant, task, wait)

    async def hold(self, pending: PendingTask) -> PendingTask:
        """Store a pending task: a new task, or a resumed task that waits again.

        Raises:
            StoreConflict: another process has changed or cancelled the task, or the id of a new task is in use.
        """
        if pending.number:
            return await self._replaced(replace(pending, taken_at=None))
        new = replace(pending, made_at=self.now, number=1)
        await self._waits().put(new.tenant, self._written(new, SuspensionState.WAITING))
        return new

    async def answer(self, pending: PendingTask, answers: Mapping[str, Answer]) -> PendingTask:
        """Record a client's answers to suspended calls: all of them or none.

        Raises:
            NotPending: a call id is unknown, or its call no longer waits.
            StoreConflict: another process has changed the task meanwhile; look it up again.
        """
        tools = {one.call_id: one.tool for one in pending.open(self.now)}
        for call_id, answer in answers.items():
            if call_id not in tools or answer.tool not in (None, tools[call_id]):
                raise NotPending("no call of that id and tool waits for an answer")
        wanted = [replace(one, answer=answers.get(one.call_id, one.answer)) for one in pending.wanted]
        return await self._replaced(replace(pending, wanted=tuple(wanted)))

    async def settle(self, pending: PendingTask, call_id: str, result: Mapping[str, object]) -> PendingTask:
        """Record the result of a decided call.

        Raises:
            NotPending, StoreConflict: as ``answer``.
        """
        found = pending.find(call_id)
        if found is None or found.settled:
            raise NotPending("no call of that id waits")
        return await self.change(pending, replace(found, result=result))

    async def change(self, pending: PendingTask, one: Wanted) -> PendingTask:
        """Replace the entry of one call.

        Raises:
            StoreConflict: another process has changed the task meanwhile.
        """
        wanted = [one if known.call_id == one.call_id else known for known in pending.wanted]
        return await self._replaced(replace(pending, wanted=tuple(wanted)))

    async def take(self, pending: PendingTask) -> PendingTask:
        """Take a task in order to resume it; no other process can take it.

        Raises:
            StoreConflict: another process has taken or changed the task meanwhile.
        """
        return await self._replaced(replace(pending, taken_at=self.now))

    async def end(self, pending: PendingTask) -> bool:
        """End a task; False if another process has changed it meanwhile."""
        done = replace(pending, number=pending.number + 1)
        return await self._waits().replace(done.tenant, self._written(done, SuspensionState.USED))

    async def _replaced(self, pending: PendingTask) -> PendingTask:
        changed = replace(pending, number=pending.number + 1)
        if not await self._waits().replace(changed.tenant, self._written(changed, SuspensionState.WAITING)):
            raise StoreConflict("another process changed the task meanwhile")
        return changed

    def _written(self, pending: PendingTask, state: SuspensionState) -> SuspensionRecord:
        body = dump(
            {
                "v": VERSION,
                "context": pending.context,
                "taken_at": pending.taken_at,
                "state": pending.state,
                "tools": list(pending.tools),
                "wanted": [_wanted_json(one) for one in pending.wanted],
                "asked": {one.call_id: one.asked for one in pending.wanted if one.asked},
            }
        )
        wait = SuspensionRecord(
            _place(pending.task),
            KIND,
            "",
            pending.user,
            pending.made_at,
            pending.made_at + LONGEST_WAIT,
            body,
            "",
            state,
            pending.number,
        )
        return signed(self._keys, pending.tenant, wait)


def _place(task: str) -> str:
    """Return the store id of a task's record; no handle of a suspended call has this form."""
    return f"task:{task}"


def _wanted_json(one: Wanted) -> dict[str, object]:
    answer = None if one.answer is None else asdict(one.answer)
    # ``asked`` is a member of the body: a process of an earlier version reads no other members of a question
    known = {each.name: getattr(one, each.name) for each in fields(one) if each.name != "asked"}
    return {**known, "answer": answer}


def _read(tenant: str, task: str, wait: SuspensionRecord) -> PendingTask | None:
    """Return the task in a record; None for another version. The MAC is valid, so the body is complete."""
    body = json.loads(wait.body)  # not orjson: it makes floats of integers beyond 64 bits
    if body["v"] != VERSION:
        return None
    asked = body.get("asked", {})
    wanted = [
        Wanted(**one | {"answer": one["answer"] and Answer(**one["answer"]), "asked": asked.get(one["call_id"], 0)})
        for one in body["wanted"]
    ]
    return PendingTask(
        task,
        body["context"],
        wait.user,
        tenant,
        tuple(wanted),
        body["state"],
        body["tools"],
        body["taken_at"],
        wait.made_at,
        wait.number,
    )
