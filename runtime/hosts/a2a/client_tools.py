"""Tools that a client offers with a message and runs itself: what their schemas may cost, and their records."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from callgate.errors import DefinitionError, RegistrationError
from callgate.providers.logs import log_warnings
from callgate.runtime.gate import Gate
from callgate.tools.calls import User
from callgate.tools.client.client import ClientToolProvider
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.allowance import MESSAGE_ALLOWANCE

TAG = "client"
"""The tag of every client tool."""
PERIOD = 60.0
"""Seconds after which the CPU time of users and tenants is counted anew."""
USER_SECONDS = 10.0
"""CPU seconds in one period for reading and compiling the tools of one user."""
TENANT_SECONDS = 30.0
"""The same for all users of a tenant."""
MAX_SENDERS = 10_000
"""Users and tenants whose time is remembered; the oldest are forgotten first."""
AT_ONCE = 2
"""Messages of all users whose tools are compiled at the same time."""


class ClientTools:
    """Compiles the tools of clients in threads, one message of a user at a time, within budgets of CPU time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._senders: OrderedDict[tuple[str | None, ...], _Sender] = OrderedDict()
        self._all = asyncio.Semaphore(AT_ONCE)  # asyncio: as ``asyncio.to_thread``, which it limits

    async def records(
        self, definitions: Sequence[Mapping[str, object]], user: User, *, accepted: bool = False
    ) -> list[ToolRecord]:
        """Validate the tools of a client. A call of such a tool is suspended until the client answers.

        *accepted* tools are those of a running task: their time counts, and does not stop the task.

        Raises:
            DefinitionError: a definition is refused, or a budget is used up.
        """
        if not definitions:
            return []
        own, tenant = self._sender(user.tenant, user.id), self._sender(user.tenant)
        async with own.one, self._all:
            if not accepted:
                own.check(USER_SECONDS, self._now())
                tenant.check(TENANT_SECONDS, self._now())
            # asyncio: the work is bounded by the allowance of a message, and nothing waits for a thread that was left
            made, seconds = await asyncio.to_thread(_measured, definitions)
            own.spent += seconds
            tenant.spent += seconds
        if isinstance(made, DefinitionError):
            raise made
        return made

    def _sender(self, *names: str | None) -> _Sender:
        found = self._senders.setdefault(names, _Sender(self._now()))
        self._senders.move_to_end(names)
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)
        return found


@dataclass(slots=True)
class _Sender:
    """The CPU time of a user or a tenant in this period."""

    since: float
    spent: float = 0.0
    one: asyncio.Lock = field(default_factory=asyncio.Lock)  # asyncio: as the semaphore

    def check(self, seconds: float, now: float) -> None:
        if now - self.since >= PERIOD:
            self.spent, self.since = 0.0, now
        if self.spent >= seconds:
            raise DefinitionError(f"Invalid client tool definitions: too many for now; try again in {PERIOD:g} seconds")


def _measured(definitions: Sequence[Mapping[str, object]]) -> tuple[list[ToolRecord] | DefinitionError, float]:
    began = time.thread_time()
    made: list[ToolRecord] | DefinitionError
    try:
        made = client_tools(definitions)
    except DefinitionError as error:
        made = error
    return made, time.thread_time() - began


def client_tools(definitions: Sequence[Mapping[str, object]]) -> list[ToolRecord]:
    """Validate the tools of one message. They have the tag ``client``, for policies; a client cannot set tags.

    Raises:
        DefinitionError: a definition is refused.
    """
    records: list[ToolRecord] = []
    for record in ClientToolProvider(list(definitions), None, allowance=MESSAGE_ALLOWANCE).tools():
        tagged = replace(record, definition=replace(record.definition, tags={TAG}))
        tagged.validators.update(record.validators)
        records.append(tagged)
    return records


def refuse_duplicates(gate: Gate, definitions: Iterable[Mapping[str, object]]) -> None:
    """Refuse client tools whose names the gate already has, before anything is compiled.

    Raises:
        DefinitionError: lists the names.
    """
    inner = (one.get("function") if isinstance(one.get("function"), Mapping) else one for one in definitions)
    names = [str(one.get("name")) for one in inner if isinstance(one, Mapping)]
    known = {name.lower() for name in gate.registry.names}  # a reader takes names that differ in case for one
    taken = [name for name in names if name.lower() in known]
    if taken:
        raise DefinitionError(f"Invalid client tool definitions: names that are taken: {', '.join(taken)}")


def refuse_unready_tools(gate: Gate, records: Iterable[ToolRecord]) -> None:
    """Refuse client tools that the gate would not open with, before their task starts. The log says what is missing.

    Raises:
        DefinitionError: such as if no hook authorises them.
    """
    try:
        gate.with_tools(records)
    except RegistrationError as error:
        log_warnings("*", [f"a client's tools are refused: {error}"])
        raise DefinitionError("Invalid client tool definitions: this agent takes no tools of clients") from error
