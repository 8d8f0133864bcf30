"""The services of a gate: what all its calls share. They are made once, before its plans, and never change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from callgate.errors import StoreUnsupported
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan, PlanParts
from callgate.hooks.state.host import EffectOfTool, Host
from callgate.hooks.state.step import StepCall
from callgate.providers.exits import Exit
from callgate.providers.logs import LogEvent, emit
from callgate.providers.sessions import SessionTable
from callgate.providers.stores.address import in_namespace, signed_by
from callgate.providers.stores.base import Store
from callgate.runtime.pipeline.closing import close, end_scope
from callgate.runtime.pipeline.leases import enter_lease, releases_of
from callgate.runtime.pipeline.no_schema import NoSchemaPolicy
from callgate.runtime.pipeline.shield import RELEASE_LIMIT, Shielded
from callgate.runtime.pipeline.under_way import UnderWay
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.schemas.validation import Engine as ValidatorEngine
from callgate.tools.schemas.validation import Formats


class EffectClaims(Protocol):
    """The effect ledger, as plans need it (``runtime/effects/steps.py``)."""

    def of_tool(self, parts: PlanParts) -> tuple[StepCall, EffectOfTool[InvokeContext]]:
        """Return the step that claims the effect of a tool, and the ledger for its calls."""
        ...


class LeftBehind:
    """The work that outlives its call: abandoned bodies and the ends of sessions. A closing gate waits for it."""

    __slots__ = ("__weakref__", "tasks")

    def __init__(self, sessions: SessionTable) -> None:
        self.tasks: set[asyncio.Task[object]] = set()
        sessions.on_end = self._end_session

    def start(self, work: Coroutine[object, None, None]) -> None:
        """Run work in the background. Needs a running event loop."""
        # asyncio: the work outlives the call that leaves it, which an anyio task group would hold
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def drain(self, seconds: float) -> None:
        """Wait at most so many seconds for the work, so that its leases are released."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=seconds)

    def _end_session(self, session_id: str, reason: str, exits: list[Exit]) -> None:
        emit(LogEvent.SESSION_ENDED, session_id=session_id, reason=reason)
        if exits:
            self.start(close_all(exits))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Services(Host[InvokeContext]):
    """All that the calls of a gate share, or those of a bare ``invoke_tool``."""

    plan_of: Callable[[object], Plan]  # by a tool's name or its object, for nested calls
    effects: EffectClaims | None  # None where no call claims an effect
    under_way: UnderWay
    left_behind: LeftBehind
    closers: dict[Callable[[], Awaitable[None]], object] = field(
        default_factory=dict[Callable[[], Awaitable[None]], object]
    )  # with their hooks
    limits: Limits = DEFAULT_LIMITS
    validator: ValidatorEngine | None = None  # for schemas of the author
    no_schema_policy: NoSchemaPolicy | None = None
    formats: Formats | None = None
    namespace: str = ""  # of the application, in its stores
    gate: Services | None = None  # of a gate with further tools: the gate that it was made from

    @property
    def origin(self) -> Services:
        """See ``Host``."""
        return self.gate or self

    def own_store(self, store: Store) -> Store:
        """See ``Host``. A store that is in a namespace stays in it, so that services can share it on purpose."""
        bound: str = getattr(store, "namespace", "")
        if self.namespace and not bound:
            with suppress(StoreUnsupported):  # of another package; its documentation says what it shares
                store = in_namespace(store, self.namespace)
        return signed_by(store, self.audit_keys)

    def nested(self, ctx: InvokeContext, tool: object, arguments: object, attempt: int) -> Coroutine[object, None, Any]:
        """See ``InvokeContext.call``."""
        from callgate.runtime.pipeline.nesting import nested_call  # few tools call others

        return nested_call(ctx, tool, arguments, attempt, self.plan_of)

    async def lease(self, ctx: InvokeContext, manager: AbstractAsyncContextManager[object]) -> object:
        """See ``InvokeContext.lease``."""
        return await enter_lease(ctx, manager)

    async def send(self, ctx: InvokeContext, partial: object) -> None:
        """Shape part of an output like the whole output, and pass it to the stream; one part at a time, in order."""
        from callgate.runtime.pipeline.partials import shaped  # few tools send parts

        events = ctx.run.events
        assert events is not None
        async with events.in_order:
            await events.partial(ctx, await shaped(ctx, partial))

    def at_close(self, close: Callable[[], Awaitable[None]], hook: object = None) -> Callable[[], object]:
        """See ``Host``. The gate awaits it before it closes its store."""
        self.closers.setdefault(close, hook)
        return lambda: self.closers.pop(close, None)

    def abandon(self, ctx: InvokeContext, body: asyncio.Future[object]) -> None:
        """Keep the leases and the request scope of an abandoned body or hook until it ends, and all that was abandoned."""
        run, closing_time = ctx.run, self.closing
        run.body_left = run.body_left or run.step is run.plan.running
        if run.left is not None:
            run.left.append(body)
            return
        run.left = left = [body]
        ctx.run.request_scope().holds += 1
        held, ctx.run.leases = ctx.run.leases, None
        unit, ctx.run.unit = ctx.run.unit, None
        ctx.run.abandoned = True
        ctx.run.pending_release = bool(held or unit or ctx.run.request_scope().exits)
        emit(LogEvent.CALL_ABANDONED, ctx, holds=len(releases_of(held)))

        async def settle() -> None:
            try:
                while running := [one for one in left if not one.done()]:
                    await asyncio.wait(running)
            finally:  # the loop may end first: no task waits for the body any longer
                ctx.run.left = None
                for one in left:
                    if one.done() and not one.cancelled():
                        one.exception()
                if unit is not None:
                    from callgate.runtime.pipeline.units import leave_abandoned  # few gates have units of work

                    await leave_abandoned(ctx, unit)
                ctx.run.off_fast_path = True
                ctx.run.closes_at = asyncio.get_running_loop().time() + closing_time
                if (closing := close(ctx, releases_of(held))) is not None:
                    await closing
                await end_scope(ctx)
                ctx.run.pending_release = False
                emit(LogEvent.CALL_SETTLED, ctx)

        self.left_behind.start(settle())


async def close_all(exits: Sequence[Exit]) -> None:
    """Close a session's instances, each under a shield; log failures, and raise a cancellation after the last one."""
    deferred: BaseException | None = None
    for one in exits:
        shielded = Shielded(one.leave(), limit=RELEASE_LIMIT)
        try:
            await shielded.run()
        except BaseException as error:  # noqa: BLE001  (the others are closed, too)
            emit(LogEvent.PROVIDER_FAILED, provider=one.recipe.name, phase="close", error=error)
        deferred = shielded.deferred or deferred
    if deferred is not None:
        raise deferred
