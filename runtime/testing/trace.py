"""One call, seen step by step: which stages ran, how each step ended, what was held and given back."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack, cast

from callgate.errors import UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.runtime.engine import CallOptions
from callgate.runtime.gate import Gate
from callgate.runtime.testing.trace_log import TracedLease, TraceLog, WatchedContext, step_name
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step: a hook's stage method, or a built-in one, whose name stands in brackets.

    ``verdict`` is ``"ok"``, ``"skipped"`` where a filter said no, or the name of what it raised: ``"Denied"``,
    ``"ControlRespond"``. ``seconds`` includes what a wrapper waited for.
    """

    stage: Stage
    hook: str
    verdict: str
    seconds: float


class Trace:
    """What ``trace`` saw of one call; ``print`` it, or give it to rich.

    ``result`` is what ``gate.call`` returned; ``error`` what ``gate.invoke`` would have raised, or None: its
    ``__cause__`` is what the tool or a hook raised, which a model is not told.
    """

    def __init__(self, result: ToolResult, ctx: InvokeContext | None, log: TraceLog) -> None:
        self.result = result
        self.error: BaseException | None = None if ctx is None else ctx.error
        if ctx is None and result.error is not None:
            self.error = UnknownTool(f"there is no tool {result.tool!r}")
        self._ctx = ctx
        self._log = log

    @property
    def output(self) -> Any:
        """The output, or None where there is none."""
        return self.result.output

    @property
    def steps(self) -> tuple[TracedStep, ...]:
        """Every step that began, in order."""
        return tuple(
            TracedStep(step.stage, f"[{step.name}]" if step.hook is None else step.name, row[2], row[3])
            for row, step in self._log.rows_and_steps()
        )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that ran, in order; a stage that came again later, as in a retry, is there again."""
        found: list[Stage] = []
        for step in self.steps:
            if found[-1:] != [step.stage]:
                found.append(step.stage)
        return tuple(found)

    @property
    def verdicts(self) -> dict[str, str]:
        """How each step ended: ``{"ManagersOnly.will_authorize": "Denied"}``. One that ran again has ``#2`` after it."""
        told: dict[str, str] = {}
        times: dict[str, int] = {}
        for row, step in self._log.rows_and_steps():
            name = step_name(step)
            times[name] = times.get(name, 0) + 1
            told[name if times[name] == 1 else f"{name}#{times[name]}"] = row[2]
        return told

    @property
    def leases(self) -> tuple[TracedLease, ...]:
        """What the call acquired, in order; read anew each time, so that what is given back later shows."""
        return self._log.leases(self._ctx)

    @property
    def held(self) -> tuple[TracedLease, ...]:
        """Leases that are not given back."""
        return tuple(lease for lease in self.leases if lease.held)

    @property
    def given_back_in_reverse(self) -> bool:
        """Whether every lease was given back exactly once, the last taken first."""
        leases = sorted(self.leases, key=lambda lease: lease.taken)
        order = [lease.given_back for lease in reversed(leases)]
        return all(len(places) == 1 for places in order) and order == sorted(order)

    def __str__(self) -> str:
        lines = [self._title()]
        lines += [f"  {step.stage:<28} {step.hook:<24} {step.verdict}" for step in self.steps]
        lines += ["leases", *(f"  {lease}" for lease in self.leases)] if self.leases else ["no leases"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Trace of {self.result.tool}: {self.result.outcome}, {len(self.steps)} steps>"

    def __rich__(self) -> Any:
        """A table for rich, with times."""
        from rich.table import Table
        from rich.text import Text  # a name in brackets is no markup

        table = Table("stage", "step", "verdict", "ms", title=Text(self._title()))
        for step in self.steps:
            table.add_row(step.stage.value, Text(step.hook), Text(step.verdict), f"{step.seconds * 1000:.2f}")
        for lease in self.leases:
            table.add_row("lease", Text(lease.step), Text(lease.told), "")
        return table

    def _title(self) -> str:
        why = "" if self.error is None else f" ({type(self.error).__name__}: {self.error})"
        return f"{self.result.tool}: {self.result.outcome}{why}"


async def trace(
    gate: Gate,
    call: ToolCall | HydrationResult | Any,
    arguments: Mapping[str, Any] | str | None = None,
    *,
    user: User = ANONYMOUS,
    **options: Unpack[CallOptions],
) -> Trace:
    """Run one call through *gate* and give what happened (design 4).

    *call* is a ``ToolCall``, what ``hydrate`` returned, or a tool by name or object, with its *arguments*. Options are
    those of ``gate.call``. The plan is compiled with a record of each step and otherwise the same; steps of nested
    calls are not in it.

    Raises:
        GateClosed: not inside ``async with gate``.
        asyncio.CancelledError: it was cancelled.
    """
    if not isinstance(call, ToolCall | HydrationResult):
        name = call if isinstance(call, str) else gate.registry.id_of(call)
        call = ToolCall(f"call_{secrets.token_hex(8)}", name, arguments, synthetic_id=True)
    elif arguments is not None:
        raise TypeError("a ToolCall has its own arguments; give a tool's name to give others")
    log = TraceLog()
    seen: list[InvokeContext] = []
    made = gate._context

    def watched(*args: Any, **named: Any) -> Any:
        ctx = made(*args, **named)
        if isinstance(ctx, InvokeContext):
            ctx.__class__ = WatchedContext
            ctx.trace = log.of(cast("WatchedContext", ctx))
            seen.append(ctx)
        return ctx

    lens = copy.copy(gate)  # the same tools, plans and engine; only its contexts are watched
    lens._context = watched  # type: ignore[method-assign]
    result = await lens.call(call, user=user, trace=True, **options)
    return Trace(result, seen[0] if seen else None, log)
