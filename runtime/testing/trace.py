"""The trace of one call: its stages, the verdict of each step, and its leases."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from callgate.errors import UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.stock.records.masking import ShownInput
from callgate.runtime.gate import Gate
from callgate.runtime.pipeline.options import BadCall, CallOptions
from callgate.runtime.testing.trace_log import TracedLease, TraceLog, step_name
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step: a hook's stage method, or a built-in step, whose name is in brackets.

    ``verdict`` is ``"ok"``, ``"skipped"`` if a filter excluded it, or the name of the exception it raised, such as
    ``"Denied"``. The ``seconds`` of a wrapper include the steps inside it.
    """

    stage: Stage
    hook: str
    verdict: str
    seconds: float


class Trace:
    """The trace of one call; ``print`` it, or pass it to rich.

    ``result`` is the result of ``gate.call``. ``error`` is the exception that ``gate.invoke`` raises for the same call,
    or None; its ``__cause__`` is the exception of the tool or hook, which a model never sees.
    """

    def __init__(self, result: ToolResult, ctx: InvokeContext | None, log: TraceLog) -> None:
        self.result = result
        self.error: BaseException | None = None if ctx is None else ctx.run.error
        if ctx is None and result.error is not None:
            unknown = result.error.code == UnknownTool.code
            text = f"there is no tool {result.tool!r}" if unknown else result.error.public
            self.error = UnknownTool(text) if unknown else BadCall(text)
        self._ctx = ctx
        self._log = log

    @property
    def output(self) -> object:
        """The output, or None."""
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
        """The stages that ran, in order; a stage that ran again, as in a retry, is repeated."""
        found: list[Stage] = []
        for step in self.steps:
            if found[-1:] != [step.stage]:
                found.append(step.stage)
        return tuple(found)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each step: ``{"ManagersOnly.will_authorize": "Denied"}``; a repeated step has the suffix ``#2``."""
        verdicts: dict[str, str] = {}
        times: dict[str, int] = {}
        for row, step in self._log.rows_and_steps():
            name = step_name(step)
            times[name] = times.get(name, 0) + 1
            verdicts[name if times[name] == 1 else f"{name}#{times[name]}"] = row[2]
        return verdicts

    @property
    def leases(self) -> tuple[TracedLease, ...]:
        """The call's leases, in order. Each access reads them again, so that a later release shows."""
        return self._log.leases(self._ctx)

    @property
    def held(self) -> tuple[TracedLease, ...]:
        """The leases that are not released."""
        return tuple(lease for lease in self.leases if lease.held)

    @property
    def given_back_in_reverse(self) -> bool:
        """True if every lease was released exactly once, in reverse order."""
        leases = sorted(self.leases, key=lambda lease: lease.taken)
        order = [lease.given_back for lease in reversed(leases)]
        return all(len(releases) == 1 for releases in order) and order == sorted(order)

    def __str__(self) -> str:
        lines = [self._title(), *self._notes()]
        lines += [f"  {step.stage:<28} {step.hook:<24} {step.verdict}" for step in self.steps]
        lines += ["leases", *(f"  {lease}" for lease in self.leases)] if self.leases else ["no leases"]
        return "\n".join(lines)

    def _notes(self) -> list[str]:
        """The lines about arguments that were not validated, or that a repairer wrote, with secrets masked."""
        if self._ctx is None:
            return []
        rules = self._ctx.run.plan.builtins.unvalidated
        notes = [] if rules is None else [f"  validated=false, no_schema_mode={rules.mode_of(self._ctx.run.no_schema)}"]
        repair = ShownInput().repair(self._ctx)
        if repair is None:
            return notes
        before, after = (json.dumps(repair[name]) for name in ("before", "after"))
        return [*notes, f"  repaired by {repair['by']}: {before} -> {after}"]

    def __repr__(self) -> str:
        return f"<Trace of {self.result.tool}: {self.result.outcome}, {len(self.steps)} steps>"

    def __rich__(self) -> object:
        """A table for rich, with times."""
        from rich.table import Table
        from rich.text import Text  # otherwise rich reads a name in brackets as markup

        table = Table("stage", "step", "verdict", "ms", title=Text(self._title()))
        for step in self.steps:
            table.add_row(step.stage.value, Text(step.hook), Text(step.verdict), f"{step.seconds * 1000:.2f}")
        for lease in self.leases:
            table.add_row("lease", Text(lease.step), Text(lease.summary), "")
        return table

    def _title(self) -> str:
        why = "" if self.error is None else f" ({type(self.error).__name__}: {self.error})"
        return f"{self.result.tool}: {self.result.outcome}{why}"


async def trace(
    gate: Gate,
    call: ToolCall | HydrationResult | object,
    arguments: Mapping[str, object] | str | None = None,
    *,
    user: User = ANONYMOUS,
    as_text: bool = True,
    **options: Unpack[CallOptions],
) -> Trace:
    """Run one call through *gate* and return its trace.

    The plan of the call records each step, and is otherwise the same. Steps of nested calls are left out.

    Args:
        gate: the gate.
        call: a ``ToolCall``, a result of ``hydrate``, or a tool by name or object.
        arguments: the arguments of a tool by name or object.
        user: the caller.
        as_text: send *arguments* as JSON text, as providers do; False sends the object itself.
        options: the options of ``gate.call``.

    Raises:
        TypeError: *arguments* are not JSON; ``as_text=False`` sends them as they are.
        GateClosed: the gate is not open.
        asyncio.CancelledError: the call was cancelled.
    """
    if not isinstance(call, ToolCall | HydrationResult):
        name = call if isinstance(call, str) else gate.registry.id_of(call)
        if as_text and isinstance(arguments, Mapping):
            arguments = json.dumps(dict(arguments))
        call = ToolCall(id=f"call_{secrets.token_hex(8)}", name=name, arguments=arguments, synthetic_id=True)
    elif arguments is not None:
        raise TypeError("a ToolCall has its own arguments: pass the tool's name instead to use other arguments")
    log = TraceLog()
    result = await gate.call(call, user=user, trace=log.follow, **options)
    return Trace(result, log.ctx, log)
