"""``ToolSystem``: the plans of threads, run through a gate (contract 71-78, C11, C12, C28, C29)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from callgate.errors import CallgateError
from callgate.runtime.call import batch
from callgate.runtime.call.leases import Carried
from callgate.runtime.gate import Gate
from callgate.runtime.models import codec
from callgate.runtime.tool_system.observations import Observation, ObservationManager, ToolSystemFault, ask, ask_within
from callgate.runtime.tool_system.threads import (
    ALL_TOOLS,
    CURRENT,
    EnabledTools,
    ExecutionContext,
    ParsedToolCall,
    StateManager,
)
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ErrorInfo, Outcome, ToolCall, ToolResult, User
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.definition import ToolDefinition

__all__ = ["ToolSystem"]

PATIENCE = 10.0
"""Seconds that one question to a state manager, or one record of an observation, may take by default."""

Planned = ParsedToolCall | ToolCall | HydrationResult | Mapping[str, Any]


class ToolSystem:
    """Runs a thread's plan of calls through an open gate: which tools are enabled, what came of each call.

    Args:
        gate: every call passes it; what it denies stays denied, enabled or not.
        state: says which tools a thread may use; None means all. A thread it does not know, or a failure, means none.
        observations: records every call of every plan; None means that nothing is recorded.
        on_fault: is told when ``state`` or ``observations`` fail, as is nobody else; what it raises is dropped.
        at_once: how many calls of one plan run together at most.
        patience: seconds that ``state`` may take for an answer, and ``observations`` for a record; more is a failure.

    Raises:
        ValueError: ``at_once`` or ``patience`` is not positive.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        state: StateManager | None = None,
        observations: ObservationManager | None = None,
        on_fault: Callable[[ToolSystemFault], object] | None = None,
        at_once: int = 16,
        patience: float = PATIENCE,
    ) -> None:
        if at_once < 1:
            raise ValueError("at_once must be at least 1")
        if not patience > 0:
            raise ValueError("patience must be positive")
        self.gate = gate
        self.state = state
        self.observations = observations
        self.on_fault = on_fault
        self.at_once = at_once
        self.patience = patience

    # ------------------------------------------------------------------ what a thread may see and run

    async def is_tool_enabled(self, thread_id: str, name: str) -> bool:
        """Whether the thread may use a tool of that name (contract 73); says nothing of whether there is one."""
        return name in await self._enabled(thread_id)

    async def available_tools(self, thread_id: str, *, user: User = ANONYMOUS) -> list[ToolSchema]:
        """What a planner may be told: the tools enabled for the thread that the user may see, as registered (contract 72)."""
        return [ToolSchema.from_definition(one) for one in await self._visible(thread_id, user)]

    async def definitions(self, thread_id: str, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """``gate.definitions`` of the tools enabled for the thread: the same list, as a model of that wire is told."""
        visible = await self._visible(thread_id, user)
        return visible if wire is None else codec(wire).translate(visible).request

    # ------------------------------------------------------------------ running

    async def execute_tools(
        self,
        calls: Iterable[Planned],
        thread_id: str,
        trace_id: str,
        *,
        user: User = ANONYMOUS,
        session_id: str | None = None,
        deadline: float | None = None,
    ) -> list[ToolResult]:
        """Run a plan: one result for each call, in the order of the plan; never raises but for cancellation (contract 74).

        Each call, when its turn comes, is checked to be enabled, then passes the gate (look-up, validation, hooks, the
        tool), then is recorded. Calls run together as in ``gate.call_many``. ``result.to_status()`` is the documents'
        shape. *trace_id* is the request id, and so the correlation id of errors; *deadline* is in seconds, a call.
        Inside, ``ExecutionContext.current()`` tells the thread. A record that failed shows in ``result.provenance``.

        Raises:
            CancelledError: once every call that ran has ended; each call of the plan is recorded before.
        """
        user_id = None if user == ANONYMOUS else user.id
        plan = _Plan(self, calls, ExecutionContext(thread_id, trace_id, user_id, session_id))
        options = {"session_id": session_id, "request_id": trace_id, "deadline": deadline}
        outer = CURRENT.get()
        CURRENT.set(plan.context)
        cancelled: asyncio.CancelledError | None = None
        try:
            await batch.call_many(plan, plan.slots, user, self.at_once, options)
        except asyncio.CancelledError as error:
            cancelled = error
        finally:
            CURRENT.set(outer)
        cancelled = _worthier(cancelled, await plan.record_the_rest())
        if cancelled is not None:
            raise cancelled
        return [slot.result for slot in plan.slots if slot.result is not None]

    # ------------------------------------------------------------------ inside

    async def _enabled(self, thread_id: str, **ids: Any) -> EnabledTools:
        """The one place that knows which tools a thread may use; when in doubt, none (contract C28)."""
        if self.state is None:
            return ALL_TOOLS
        try:
            enabled = EnabledTools.of(await ask_within(self.patience, self.state.enabled_tools, thread_id))
        except Exception as error:  # noqa: BLE001  (whatever an application's store raises, the answer is no)
            self._tell(ToolSystemFault("tool_system.state_failed", thread_id, error=error, **ids))
            return EnabledTools(frozenset(), "state_failed")
        if enabled.reason == "not_configured":
            self._tell(ToolSystemFault("tool_system.state_missing", thread_id, **ids))
        return enabled

    async def _visible(self, thread_id: str, user: User) -> list[ToolDefinition]:
        enabled = await self._enabled(thread_id)
        return [definition for definition in self.gate.definitions(user=user) if definition.name in enabled]

    def _tell(self, fault: ToolSystemFault) -> None:
        if self.on_fault is not None:
            try:
                self.on_fault(fault)
            except Exception:  # noqa: BLE001, S110  (who is told of a fault may not become one)
                pass


class _Slot:
    """One call of a plan, and what came of it."""

    def __init__(self, given: Any) -> None:
        if isinstance(given, Mapping):
            given = ParsedToolCall.of(given)
        if isinstance(given, ParsedToolCall):
            given = given.to_call()
        elif not isinstance(given, ToolCall | HydrationResult):
            given = ToolCall("", "")  # what is no call names no tool, and has its result like any other
        self.given: ToolCall | HydrationResult = given
        self.call: ToolCall = given.call if isinstance(given, HydrationResult) else given
        self.started = False
        self.result: ToolResult | None = None


class _Plan:
    """A gate as one plan sees it: ``batch.call_many`` drives it in the gate's place."""

    def __init__(self, system: ToolSystem, calls: Iterable[Any], context: ExecutionContext) -> None:
        self.system = system
        self.context = context
        self.slots = [_Slot(call) for call in calls]

    def runs_in_parallel(self, slot: _Slot) -> bool:
        """Whether it may run beside others."""
        return self.system.gate.runs_in_parallel(slot.given)

    async def call(self, slot: _Slot, *, user: User, **options: Any) -> ToolResult:
        """One call: verified, run, recorded; a cancelled one is recorded as well."""
        began = self.system.gate._now()
        cancelled: asyncio.CancelledError | None = None
        try:
            result = await self._run(slot, user, options)
        except asyncio.CancelledError as error:
            cancelled, result = error, _cancelled(slot)
        if result.duration is None:
            result = replace(result, duration=self.system.gate._now() - began)
        slot.result = result
        cancelled = _worthier(cancelled, await self._record(slot, self.system.patience))
        if cancelled is not None:
            raise cancelled
        return slot.result

    async def record_the_rest(self) -> asyncio.CancelledError | None:
        """Record what a cancelled plan never came to, all within one patience; the cancellation that arrived meanwhile."""
        loop, cancelled = asyncio.get_running_loop(), None
        until = loop.time() + self.system.patience
        for slot in self.slots:
            if slot.result is None:
                slot.result = replace(_cancelled(slot), duration=0.0)
                cancelled = _worthier(cancelled, await self._record(slot, until - loop.time()))
        return cancelled

    async def _run(self, slot: _Slot, user: User, options: Any) -> ToolResult:
        call = slot.call
        enabled = await self.system._enabled(self.context.thread_id, **self._ids(slot))
        if call.tool not in enabled:  # before the look-up: whether there is such a tool is not said (contract C29)
            told = ErrorInfo("not_enabled", "This tool is not enabled.", correlation_id=self.context.trace_id)
            return ToolResult(
                call.id, call.tool, Outcome.DENIED, error=told, provenance={"not_enabled": enabled.reason}
            )
        slot.started = True
        try:
            return await self.system.gate.call(slot.given, user=user, **options)
        except Exception as error:  # noqa: BLE001  (a closed gate, for one: this surface never raises, contract C12)
            self._tell("tool_system.call_failed", slot, error)
            code, public = "error", CallgateError.default_public
            if isinstance(error, CallgateError):
                code, public = error.code, error.public
            told = ErrorInfo(code, public, correlation_id=self.context.trace_id)
            return ToolResult(call.id, call.tool, Outcome.ERROR, error=told)

    async def _record(self, slot: _Slot, limit: float) -> asyncio.CancelledError | None:
        """Give the result to the observation manager, once, and see that through; the cancellation held back meanwhile."""
        manager = self.system.observations
        if manager is None or slot.result is None:
            return None
        gate = self.system.gate
        at = datetime.fromtimestamp(gate._now() + gate._engine.wall_offset, UTC)
        observation = Observation(slot.result, self.context.thread_id, self.context.trace_id, at)
        carried = Carried(ask(manager.record, observation), limit=max(limit, 0.0))
        try:
            await carried.run()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (recording breaks nothing, contract C29)
            self._unrecorded(slot, error)  # nor is this a cancellation from outside: such are held
        return carried.held

    def _unrecorded(self, slot: _Slot, error: BaseException) -> None:
        self._tell("tool_system.observation_failed", slot, error)
        if slot.result is not None:
            known = slot.result.provenance
            provenance = {**(known if isinstance(known, Mapping) else {}), "observation": "failed"}
            slot.result = replace(slot.result, provenance=provenance)

    def _tell(self, event: str, slot: _Slot, error: BaseException) -> None:
        self.system._tell(ToolSystemFault(event, self.context.thread_id, error=error, **self._ids(slot)))

    def _ids(self, slot: _Slot) -> dict[str, Any]:
        return {"trace_id": self.context.trace_id, "call_id": slot.call.id, "tool": slot.call.tool}


def _cancelled(slot: _Slot) -> ToolResult:
    """For a call that was cut short, or never begun: the difference matters to whoever reads the record."""
    told = ErrorInfo("not_started", "The call was cancelled before it began.")
    if slot.started:
        told = ErrorInfo("cancelled", "The call was cancelled; it may have taken effect.")
    return ToolResult(slot.call.id, slot.call.tool, Outcome.CANCELLED, error=told)


def _worthier(first: asyncio.CancelledError | None, later: asyncio.CancelledError | None) -> Any:
    """Of two cancellations the first, unless only the later has the message by which an anyio scope knows its own."""
    return later if first is None or (later is not None and later.args and not first.args) else first
