"""``ToolSystem``: the plans of threads, run through a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Self, TypedDict, Unpack

from callgate.errors import CallgateError
from callgate.providers.guesses import Explained, explain_camel_case
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.gate import Gate
from callgate.runtime.models import codec
from callgate.runtime.pipeline import batch
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.pipeline.shield import Shielded
from callgate.runtime.tool_system.observations import Observation, ObservationManager, ToolSystemFault, ask, ask_within
from callgate.runtime.tool_system.own_gate import RegistryGate
from callgate.runtime.tool_system.threads import (
    ALL_TOOLS,
    EnabledTools,
    ParsedToolCall,
    StateManager,
)
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ErrorInfo, Outcome, ToolCall, ToolResult, User
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.definition import ToolDefinition
from callgate.tools.execution import CURRENT, ExecutionContext
from callgate.tools.registry import ToolRegistry

PATIENCE = 10.0
"""Default timeout, in seconds, of one call of a state manager or an observation manager."""

Planned = ParsedToolCall | ToolCall | HydrationResult | Mapping[str, object]


@explain_camel_case
class ToolSystem(metaclass=Explained):
    """Runs a thread's plan of calls through a gate: checks enabled tools and records each call.

    Args:
        gate: the open gate of every call; it may deny an enabled tool. Or a ``ToolRegistry``: then the tool system makes
            a gate of its own, opens it before the first plan, and closes it at the end of ``async with`` or in ``close``.
        state: returns the tools that a thread may use; None allows all. An unknown thread or a failure allows none.
        observations: records every call of every plan; None records nothing.
        on_fault: receives the failures of ``state`` and ``observations``; an error that it raises is logged.
        at_once: maximum number of concurrent calls of one plan.
        patience: timeout in seconds of one call of ``state`` or ``observations``; a timeout is a failure.

    Raises:
        ValueError: ``at_once`` or ``patience`` is not positive.
        TypeError: *gate* is neither a gate nor a registry.
    """

    def __init__(
        self,
        gate: Gate | ToolRegistry,
        state: StateManager | None = None,
        observations: ObservationManager | None = None,
        *,
        on_fault: Callable[[ToolSystemFault], object] | None = None,
        at_once: int = 16,
        patience: float = PATIENCE,
    ) -> None:
        if at_once < 1:
            raise ValueError("at_once must be at least 1")
        if not patience > 0:
            raise ValueError("patience must be positive")
        self._own: RegistryGate | None = None
        if isinstance(gate, ToolRegistry):
            self._own = RegistryGate(gate, guarded=state is not None)
            gate = self._own.gate
        elif not isinstance(gate, Gate):
            raise TypeError("ToolSystem takes an open gate or a registry; write ToolSystem(ToolRegistry(tools), state)")
        self.gate = gate
        self.state = state
        self.observations = observations
        self.on_fault = on_fault
        self.at_once = at_once
        self.patience = patience

    async def open(self) -> Self:
        """Open the gate of a tool system that was made of a registry; the first plan does so, too.

        Raises:
            RegistrationError: the gate may not open with these tools; the message has the line to write.
        """
        if self._own is not None:
            await self._own.open()
        return self

    async def close(self) -> None:
        """Close the gate of a tool system that was made of a registry."""
        if self._own is not None:
            await self.gate.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ enabled tools

    async def is_tool_enabled(self, thread_id: str, name: str) -> bool:
        """Return True when the thread may use a tool of that name; the tool itself may not exist."""
        return name in await self._enabled(thread_id)

    async def available_tools(self, thread_id: str, *, user: User = ANONYMOUS) -> list[ToolSchema]:
        """Return the schemas for a planner: the tools enabled for the thread that the user may see, as registered."""
        return [ToolSchema.from_definition(one) for one in await self._visible(thread_id, user)]

    async def definitions(self, thread_id: str, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """Return ``gate.definitions`` of the tools enabled for the thread, for a model of that wire."""
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
        """Run a plan and return one result for each call, in order. No failure of a call raises.

        Each call passes three steps: check that the tool is enabled, call it through the gate, record the result.
        Calls run together as in ``gate.call_many``. ``result.to_status()`` has the shape of the source documents.
        *trace_id* is the request id and the correlation id of errors; *deadline* is in seconds for each call.
        Tools get the thread from ``ctx.thread_id``, hooks from ``ExecutionContext.current()``. ``result.provenance`` shows failed records.

        Raises:
            CancelledError: after every running call has ended and each call of the plan is recorded.
            RegistrationError: the gate of a registry may not open; see ``open``.
        """
        await self.open()
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

    # ------------------------------------------------------------------ internals

    async def _enabled(self, thread_id: str, **ids: Unpack[_Ids]) -> EnabledTools:
        """Return the tools that a thread may use; no tool after a failure."""
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
        if self._own is not None:
            self._own.follow()
        return [definition for definition in self.gate.definitions(user=user) if definition.name in enabled]

    def _tell(self, fault: ToolSystemFault) -> None:
        _log(fault, fault.error)
        if self.on_fault is not None:
            try:
                self.on_fault(fault)
            except Exception as error:  # noqa: BLE001  (the report of a fault changes no result)
                _log(fault, error)


def _log(fault: ToolSystemFault, error: BaseException | None) -> None:
    emit(
        LogEvent.TOOL_SYSTEM_FAILED,
        fault=fault.event,
        thread_id=fault.thread_id,
        trace_id=fault.trace_id,
        call_id=fault.call_id,
        tool=fault.tool,
        error=error,
    )


class _Ids(TypedDict, total=False):
    trace_id: str | None
    call_id: str
    tool: str


class _Slot:
    """One call of a plan, and its result."""

    def __init__(self, given: object) -> None:
        if isinstance(given, Mapping):
            given = ParsedToolCall.of(given)
        if isinstance(given, ParsedToolCall):
            given = given.to_call()
        elif not isinstance(given, ToolCall | HydrationResult):
            given = ToolCall(id="", name="")  # an invalid call has no tool name, but gets a result
        self.given: ToolCall | HydrationResult = given
        self.call: ToolCall = given.call if isinstance(given, HydrationResult) else given
        self.started = False
        self.result: ToolResult | None = None


class _Plan:
    """One plan, with the methods of a gate that ``batch.call_many`` uses."""

    def __init__(self, system: ToolSystem, calls: Iterable[object], context: ExecutionContext) -> None:
        self.system = system
        self.context = context
        self.slots = [_Slot(call) for call in calls]

    def runs_in_parallel(self, slot: _Slot) -> bool:
        """Return True when the call may run beside others."""
        return self.system.gate.runs_in_parallel(slot.given)

    async def call(self, slot: _Slot, *, user: User, **options: Unpack[CallOptions]) -> ToolResult:
        """Check, run and record one call; a cancelled call is recorded, too."""
        began = self.system.gate.services.monotonic()
        cancelled: asyncio.CancelledError | None = None
        try:
            result = await self._run(slot, user, options)
        except asyncio.CancelledError as error:
            cancelled, result = error, _cancelled(slot)
        if result.duration is None:
            result = replace(result, duration=self.system.gate.services.monotonic() - began)
        slot.result = result
        cancelled = _worthier(cancelled, await self._record(slot, self.system.patience))
        if cancelled is not None:
            raise cancelled
        return slot.result

    async def record_the_rest(self) -> asyncio.CancelledError | None:
        """Record calls that did not start, within one timeout; return a cancellation received meanwhile."""
        loop, cancelled = asyncio.get_running_loop(), None
        until = loop.time() + self.system.patience
        for slot in self.slots:
            if slot.result is None:
                slot.result = replace(_cancelled(slot), duration=0.0)
                cancelled = _worthier(cancelled, await self._record(slot, until - loop.time()))
        return cancelled

    async def _run(self, slot: _Slot, user: User, options: CallOptions) -> ToolResult:
        call = slot.call
        enabled = await self.system._enabled(self.context.thread_id, **self._ids(slot))
        if call.name not in enabled:  # before the look-up, to hide which tools exist
            info = ErrorInfo("not_enabled", "This tool is not enabled.", correlation_id=self.context.trace_id)
            return ToolResult(
                call.id, call.name, Outcome.DENIED, error=info, provenance={"not_enabled": enabled.reason}
            )
        slot.started = True
        try:
            return await self.system.gate.call(slot.given, user=user, **options)
        except Exception as error:  # noqa: BLE001  (such as a closed gate: this method never raises)
            self._tell("tool_system.call_failed", slot, error)
            code, public = "error", CallgateError.default_public
            if isinstance(error, CallgateError):
                code, public = error.code, error.public
            info = ErrorInfo(code, public, correlation_id=self.context.trace_id)
            return ToolResult(call.id, call.name, Outcome.ERROR, error=info)

    async def _record(self, slot: _Slot, limit: float) -> asyncio.CancelledError | None:
        """Record the result once, under a shield; return a cancellation received meanwhile."""
        manager = self.system.observations
        if manager is None or slot.result is None:
            return None
        gate = self.system.gate
        at = datetime.fromtimestamp(gate.services.clock.now(), UTC)
        observation = Observation(slot.result, self.context.thread_id, self.context.trace_id, at)
        shielded = Shielded(ask(manager.record, observation), limit=max(limit, 0.0))
        try:
            await shielded.run()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (recording breaks nothing)
            self._unrecorded(slot, error)  # the shield holds outer cancellations, so this one is the manager's
        return shielded.deferred

    def _unrecorded(self, slot: _Slot, error: BaseException) -> None:
        self._tell("tool_system.observation_failed", slot, error)
        if slot.result is not None:
            known = slot.result.provenance
            provenance = {**(known if isinstance(known, Mapping) else {}), "observation": "failed"}
            slot.result = replace(slot.result, provenance=provenance)

    def _tell(self, event: str, slot: _Slot, error: BaseException) -> None:
        self.system._tell(ToolSystemFault(event, self.context.thread_id, error=error, **self._ids(slot)))

    def _ids(self, slot: _Slot) -> _Ids:
        return {"trace_id": self.context.trace_id, "call_id": slot.call.id, "tool": slot.call.name}


def _cancelled(slot: _Slot) -> ToolResult:
    """Return the result of a cancelled call; its error code tells whether the call had started."""
    info = ErrorInfo("not_started", "The call was cancelled before it began.")
    if slot.started:
        info = ErrorInfo("cancelled", "The call was cancelled; it may have taken effect.")
    return ToolResult(slot.call.id, slot.call.name, Outcome.CANCELLED, error=info)


def _worthier(
    first: asyncio.CancelledError | None, later: asyncio.CancelledError | None
) -> asyncio.CancelledError | None:
    """Return the first of two cancellations, or the later if only it has the message of an anyio cancel scope."""
    return later if first is None or (later is not None and later.args and not first.args) else first
