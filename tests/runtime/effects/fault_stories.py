"""Calls with an effect whose store fails in the middle, and what must be true of them when it works again."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from callgate import (
    Approval,
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Options,
    ToolCall,
    ToolContext,
    User,
    tool,
)
from callgate.errors import CallgateError
from callgate.hooks import Audit
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import OPEN_STATES
from tests.providers.stores.backends import Backend, Now, made

LEASE = 10_000.0
"""Of virtual time; so long that the gate's own upkeep, in real time, never comes into a story."""
KEYS = ["a signing key for tests"]
KEY = "the order"
NOT_RUN = ("not_recorded", "audit_failed", "failed", "in_flight")
"""What a caller is told whose call did not come to run."""


class Broken(AssertionError):
    """A promise is broken."""


class OnClock:
    """The clock of the stores as that of a gate."""

    def __init__(self, now: Now) -> None:
        self.monotonic = self.time = now


@dataclass
class Ran:
    """A body that has taken effect: what it was given, what it returned, and which wait it used."""

    arguments: dict[str, Any]
    output: str
    request_id: str
    wait: str | None


@dataclass
class Told:
    """What a caller was told."""

    outcome: str
    output: Any = None


class Shop:
    """Tools that note in ``ran`` each time they take effect, by tenant."""

    def __init__(self) -> None:
        self.ran: dict[str, list[Ran]] = {}

    def note(self, ctx: ToolContext, **arguments: Any) -> str:
        view: Any = ctx
        resumed = view._ctx.run.resumed
        wait = None if resumed is None else resumed.id
        output = uuid.uuid4().hex
        self.ran.setdefault(ctx.tenant or "", []).append(Ran(arguments, output, ctx.request_id, wait))
        return output

    def tools(self) -> list[Any]:
        @tool(effect="irreversible")
        async def pay(cents: int, ctx: ToolContext) -> str:
            """Pay."""
            return self.note(ctx, cents=cents)

        @tool(effect="irreversible", requires_approval=True)
        async def refund(cents: int, ctx: ToolContext) -> str:
            """Give money back."""
            return self.note(ctx, cents=cents)

        @tool(effect="irreversible", requires_approval=Approval(quorum=2))
        async def close(cents: int, ctx: ToolContext) -> str:
            """Close an account."""
            return self.note(ctx, cents=cents)

        @tool(effect="irreversible", resumable=True)
        async def ship(cents: int, ctx: ToolContext) -> str:
            """Ask where to, then send it."""
            where = ctx.suspend("input", "Where to?", schema={"type": "string"})
            return self.note(ctx, cents=cents, where=where)

        @tool(effect="irreversible")
        async def greet(cents: int, ctx: ToolContext) -> str:
            """A policy asks before it."""
            return self.note(ctx, cents=cents)

        return [pay, refund, close, ship, greet]


class Asks(Hook):
    """A policy that asks the caller before it lets ``greet`` run."""

    tools = ("greet",)

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        ctx.suspend("input", "By which name?", schema={"type": "string"})


@asynccontextmanager
async def gate_on(store: Store, now: Now, shop: Shop, *hooks: Any) -> AsyncGenerator[Gate, None]:
    """An open gate on a store."""
    async with Gate(
        shop.tools(),
        [Audit(), Asks(), *hooks],
        store=store,
        options=Options(clock=OnClock(now)),
        signing_keys=KEYS,
        effects=Effects(durable=False, lease=LEASE, wait=0.0),
        allow_unguarded=True,
    ) as gate:
        yield gate


def another(backend: Backend) -> Store:
    """The same store as another process opens it; memory is everybody's."""
    if backend.kind == "memory":
        return backend.store
    return made(backend.kind, backend.address, backend.prefix, backend.now)


# ---------------------------------------------------------------------- one story


@dataclass
class Story:
    """One tenant's calls: what each was told, and the handles of those that wait."""

    shop: Shop
    store: Store
    tenant: str
    told: list[Told] = field(default_factory=list[Told])
    handles: list[str] = field(default_factory=list[str])

    @property
    def user(self) -> User:
        """Who calls."""
        return User("ann", tenant=self.tenant)

    @property
    def boss(self) -> User:
        """Who approves."""
        return User("bob", tenant=self.tenant)

    @property
    def chief(self) -> User:
        """Who approves, too."""
        return User("cat", tenant=self.tenant)

    @property
    def ran(self) -> list[Ran]:
        """The effects so far."""
        return self.shop.ran.get(self.tenant, [])

    async def ask(self, gate: Gate, name: str, key: str | None = KEY) -> Told:
        """Call a tool."""
        call = ToolCall(id=f"c{len(self.told)}", name=name, arguments={"cents": 7})
        return self._told(await gate.call(call, user=self.user, idempotency_key=key))

    async def decide(self, gate: Gate, handle: str, decision: Any, by: User | None = None) -> Told:
        """Resume a call that waits."""
        try:
            result = await gate.resume(handle, decision, approver=by or self.boss)
        except (CallgateError, OSError) as error:
            return self._keep(Told(getattr(error, "code", "failed")))
        return self._told(result)

    def _told(self, result: Any) -> Told:
        if result.pending is not None and result.pending.handle not in self.handles:
            self.handles.append(result.pending.handle)
        code = None if result.error is None else result.error.code
        return self._keep(Told(code or str(result.outcome), result.output))

    def _keep(self, told: Told) -> Told:
        self.told.append(told)
        return told

    async def find_waiting(self, gate: Gate) -> None:
        """What waits although nobody was told its handle: an approver sees it all the same."""
        for viewer in (self.boss, self.user):
            self.handles += [one.handle for one in await gate.waits.pending(viewer) if one.handle not in self.handles]

    # ------------------------------------------------------------------ what must be true

    async def check(self, path: Path, *, repaired: bool) -> None:
        """All that is true of every story, asked without faults; *repaired*: it ended where one fault can be made good.

        Raises:
            Broken: something is not.
        """
        if path.keyed and len(self.ran) > 1:
            raise Broken(f"{len(self.ran)} effects under one key")
        used = [one.wait for one in self.ran if one.wait is not None]
        if len(set(used)) < len(used):
            raise Broken("two effects of one approval")
        real = {one.output for one in self.ran}
        if any(told.output not in real for told in self.told if told.outcome == "success"):
            raise Broken("a caller was told a success that there was not")
        if running := await self.store.effects.list(self.tenant, states=OPEN_STATES):
            raise Broken(f"an effect stays {running[0][1].state}")
        intents = {row.body["request_id"] async for row in self.store.audit.read(self.tenant) if _is_intent(row)}
        effects = {found.request_id for _, found in await self.store.effects.list(self.tenant)}
        if any({one.request_id} - (intents & effects) for one in self.ran):
            raise Broken("an effect without an intent")
        self._check_told(path, repaired=repaired)

    def _check_told(self, path: Path, *, repaired: bool) -> None:
        outcomes = [told.outcome for told in self.told]
        if path.never:
            if "declined" in outcomes and self.ran:
                raise Broken("what was declined has run")
            return
        if repaired and "outcome_unknown" in outcomes:
            raise Broken("one fault has made a success unknown")
        if not {"success", "outcome_unknown"}.intersection(outcomes) and (path.keyed or "not_pending" not in outcomes):
            raise Broken(f"it never ends: {outcomes}")
        if "success" in outcomes:
            later = set(outcomes[outcomes.index("success") :])
            if not later <= {"success", "outcome_unknown", "not_pending", "suspended", *NOT_RUN}:
                raise Broken(f"a success became {later}")
            if outcomes[-1] in NOT_RUN:
                raise Broken(f"it still is {outcomes[-1]}")


def _is_intent(row: Any) -> bool:
    return bool(row.body["kind"] == "intent")


# ---------------------------------------------------------------------- its way

Act: TypeAlias = Callable[[Story, Gate], Awaitable[Any]]


@dataclass(frozen=True)
class Path:
    """A way through the ledger: what comes before, what the faults strike, and how it is tried again afterwards.

    ``keyed``: all its calls have one key. ``never``: nothing may run once the decision was told as taken. ``least``: how
    many operations of a SQL store it makes at the least.
    """

    name: str
    act: Act
    again: Act
    before: Act | None = None
    keyed: bool = True
    never: bool = False
    least: int = 2
