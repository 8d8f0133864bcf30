"""What a task of a client waits for, whatever wire the client speaks: calls that were suspended, by call id (contract 39, 40, C8).

A task that cannot go on is one record in the store of suspended calls: the conversation that it belongs to, if any, and
what is still wanted, each with its own expiry. It outlives the process. A MAC binds it to its owner and to every byte of
it; whatever does not fit is as good as not there, so that unknown, foreign, late and tampered tell nobody anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from callgate.errors import NotPending, StoreConflict
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import Wait, WaitState, WaitStore
from callgate.runtime.suspensions.resumption import is_whole, sealed
from callgate.tools.values import dump

KIND = "conversation"
"""The kind of these records among all that waits."""
VERSION = 1
LONGEST_WAIT = 30 * 86_400.0
"""Seconds after which a task is given up whatever it waits for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client says of one call: a JSON value, or why there is none; and of which tool, if it says that."""

    value: Any = None
    error: str | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One suspended call, and what is wanted for it to go on.

    ``kind`` is that of the suspension, ``handle`` what ``gate.resume`` takes: it is never shown. ``arguments`` are for
    whoever runs the call, ``prompt`` is for people, ``schema`` of the answer. ``expires_at`` is in seconds since the
    epoch. ``result`` is what came of the call once it is decided: the JSON of a ``ToolResult``. ``again`` says that it was
    decided and is to be made again: a read whose output went to whoever approved it.
    """

    call_id: str
    tool: str
    kind: str
    handle: str
    arguments: Any = None
    prompt: str = ""
    schema: Mapping[str, Any] | None = None
    expires_at: float | None = None
    answer: Answer | None = None
    result: Mapping[str, Any] | None = None
    again: bool = False

    @property
    def settled(self) -> bool:
        """Whether there is an answer, or a decision."""
        return self.answer is not None or self.result is not None or self.again

    def open(self, now: float) -> bool:
        """Whether it can still be answered."""
        return not self.settled and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Pending:
    """A task that waits. ``state`` is that of its conversation, None for a call by itself; ``tools`` are the client's own.

    ``taken_at`` is when somebody took it to go on with it, which is done once and by one process; None while it waits.
    Times are seconds since the epoch.
    """

    task: str
    context: str
    user: str
    tenant: str
    wanted: tuple[Wanted, ...]
    state: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    taken_at: float | None = None
    made_at: float = 0.0
    number: int = field(default=0, compare=False)  # of its last version in the store

    def open(self, now: float) -> tuple[Wanted, ...]:
        """What is still wanted."""
        return tuple(one for one in self.wanted if one.open(now))

    def find(self, call_id: str) -> Wanted | None:
        """What is, or was, wanted for a call."""
        return next((one for one in self.wanted if one.call_id == call_id), None)


class PendingTasks:
    """The tasks that wait, in a store. Every method is one step: of two that do the same at once, one fails."""

    def __init__(self, waits: Callable[[], WaitStore], keys: SigningKeys, now: Callable[[], float]) -> None:
        self._waits, self._keys, self._now = waits, keys, now

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now()

    async def find(self, user: User, task: str) -> Pending | None:
        """The task of this user that waits; None if there is none, or it is taken, somebody else's, over or damaged."""
        pending = await self.look(user.tenant or "", task)
        free = pending is not None and pending.taken_at is None and pending.user == user.id
        return pending if free else None

    async def look(self, tenant: str, task: str, *, ended: bool = False) -> Pending | None:
        """The same without asking whose it is and whether it is taken; with *ended*, one that waits no more as well."""
        wait = await self._waits().get(tenant, _place(task))
        states = (WaitState.WAITING, WaitState.USED) if ended else (WaitState.WAITING,)
        if wait is None or wait.kind != KIND or wait.state not in states:
            return None
        if wait.expires_at is None or wait.expires_at <= self.now or not is_whole(self._keys, tenant, wait):
            return None
        return _read(tenant, task, wait)

    async def hold(self, pending: Pending) -> Pending:
        """Keep a task that cannot go on: a new one, or one that has gone on since it waited before.

        Raises:
            StoreConflict: somebody else has changed it meanwhile, such as cancelled it, or a new one has the id of another.
        """
        if pending.number:
            return await self._replaced(replace(pending, taken_at=None))
        new = replace(pending, made_at=self.now, number=1)
        await self._waits().put(new.tenant, self._written(new, WaitState.WAITING))
        return new

    async def answer(self, pending: Pending, answers: Mapping[str, Answer]) -> Pending:
        """Note what a client says of calls that wait; all of it, or nothing.

        Raises:
            NotPending: for one of the ids nothing is wanted (any more).
            StoreConflict: somebody else has changed the task meanwhile: look again.
        """
        tools = {one.call_id: one.tool for one in pending.open(self.now)}
        for call_id, answer in answers.items():
            if call_id not in tools or answer.tool not in (None, tools[call_id]):
                raise NotPending("no call of that id and tool waits for an answer")
        wanted = [replace(one, answer=answers.get(one.call_id, one.answer)) for one in pending.wanted]
        return await self._replaced(replace(pending, wanted=tuple(wanted)))

    async def settle(self, pending: Pending, call_id: str, result: Mapping[str, Any]) -> Pending:
        """Note what came of a call that somebody has decided about.

        Raises:
            NotPending, StoreConflict: as ``answer``.
        """
        found = pending.find(call_id)
        if found is None or found.settled:
            raise NotPending("no call of that id waits")
        return await self.change(pending, replace(found, result=result))

    async def change(self, pending: Pending, one: Wanted) -> Pending:
        """Note what is wanted for a call in the place of what was.

        Raises:
            StoreConflict: somebody else has changed the task meanwhile.
        """
        wanted = [one if known.call_id == one.call_id else known for known in pending.wanted]
        return await self._replaced(replace(pending, wanted=tuple(wanted)))

    async def take(self, pending: Pending) -> Pending:
        """Take a task, to go on with it: nobody else will.

        Raises:
            StoreConflict: somebody else has it, or has changed it meanwhile.
        """
        return await self._replaced(replace(pending, taken_at=self.now))

    async def end(self, pending: Pending) -> bool:
        """The task waits for nothing any more; whether it was still there as it was known."""
        done = replace(pending, number=pending.number + 1)
        return await self._waits().replace(done.tenant, self._written(done, WaitState.USED))

    async def _replaced(self, pending: Pending) -> Pending:
        changed = replace(pending, number=pending.number + 1)
        if not await self._waits().replace(changed.tenant, self._written(changed, WaitState.WAITING)):
            raise StoreConflict("the task was changed by somebody else meanwhile")
        return changed

    def _written(self, pending: Pending, state: WaitState) -> Wait:
        body = dump(
            {
                "v": VERSION,
                "context": pending.context,
                "taken_at": pending.taken_at,
                "state": pending.state,
                "tools": list(pending.tools),
                "wanted": [_wanted_json(one) for one in pending.wanted],
            }
        )
        wait = Wait(
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
        return sealed(self._keys, pending.tenant, wait)


def _place(task: str) -> str:
    """Where a task's record lies: no handle of a call that waits can have such a name."""
    return f"task:{task}"


def _wanted_json(one: Wanted) -> dict[str, Any]:
    answer = None if one.answer is None else asdict(one.answer)
    return {
        "call_id": one.call_id,
        "tool": one.tool,
        "kind": one.kind,
        "handle": one.handle,
        "arguments": one.arguments,
        "prompt": one.prompt,
        "schema": one.schema,
        "expires_at": one.expires_at,
        "answer": answer,
        "result": one.result,
        "again": one.again,
    }


def _read(tenant: str, task: str, wait: Wait) -> Pending | None:
    """The record of this version of Callgate; its MAC says that we wrote it, so it is whole."""
    body = json.loads(wait.body)  # not orjson: it makes floats of integers beyond 64 bits
    if body["v"] != VERSION:
        return None
    wanted = [Wanted(**one | {"answer": one["answer"] and Answer(**one["answer"])}) for one in body["wanted"]]
    return Pending(
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
