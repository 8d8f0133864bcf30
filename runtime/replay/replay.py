"""Replay of recorded calls against other hooks, to find verdicts that change. No tool runs."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from callgate.errors import Control, ControlRespond, InvocationError, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, gather_registrations, register, select_by_stage
from callgate.hooks.stages import STAGES, Section, Stage
from callgate.hooks.state.facts import FROZEN, Suspension
from callgate.hooks.state.host import Execute
from callgate.hooks.state.step import PlanStep
from callgate.providers.clock import GateClock
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.pipeline.around import nested
from callgate.runtime.pipeline.builtin import BuiltIns
from callgate.runtime.pipeline.compile import compile_plan
from callgate.runtime.pipeline.plans import ELSEWHERE
from callgate.runtime.pipeline.results import surface_original
from callgate.runtime.pipeline.run import run, walk
from callgate.runtime.pipeline.services import Services, close_all
from callgate.runtime.replay.context import ReplayContext
from callgate.runtime.replay.report import Replayed, ReplayReport, ReplayVerdict, RowSource
from callgate.tools.calls import Outcome, User
from callgate.tools.registry import ToolRegistry

_RECORDERS = frozenset({"audit", "metrics", "tracing"})
_UNDONE = frozenset({Stage.WILL_REDACT_INPUT, Stage.WILL_INJECT_SECRETS})
_SHAPING = frozenset({Stage.WILL_PARSE_INPUT, Stage.WILL_VALIDATE_INPUT, Stage.WILL_NORMALIZE_INPUT})
_DECIDED = frozenset({Outcome.DENIED, Outcome.RETRY_LATER, Outcome.SUSPENDED})


class _Clock:
    """The clock of the replayed row, so that quota windows pass as recorded."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds since the epoch."""
        return self.now

    time = monotonic


class _Waits:
    """The suspensions of a replay: they are verdicts, and nothing is stored."""

    async def keep(self, _ctx: InvokeContext, asked: Suspension) -> Suspension:
        """Return the suspension that a store would keep."""
        return asked

    async def was_edited(self, _ctx: InvokeContext, _asked: str, _ran: str) -> bool:
        """Return False: a replay reads no ledger."""
        return False


_REACHED = "the replay reached the tool"
_NOT_REPLAYED = ("records", "on_error", "on_give_up", "shaping", "after_response", "unchecked_shaping")
"""Sections of a plan that a replay leaves out."""


class ReplayedGate(Protocol):
    """The parts of a gate that a replay reads."""

    @property
    def services(self) -> Services:
        """The services of its calls."""
        ...

    @property
    def registry(self) -> ToolRegistry:
        """Its tools."""
        ...

    @property
    def providers(self) -> ProviderRegistry:
        """Its providers."""
        ...


class _Replaying:
    def __init__(self, gate: ReplayedGate, hooks: Iterable[object]) -> None:
        self.gate = gate
        self.clock = _Clock()
        store, clock = MemoryStore(self.clock.monotonic), GateClock(self.clock, None)
        self.services = replace(
            gate.services, store=store, clock=clock, monotonic=self.clock.monotonic, suspensions=_Waits(), closers={}
        )
        self.shared = [one for one in (register(hook, "replay") for hook in hooks) if not _records(one)]
        self.plans: dict[str, Plan] = {}
        self.run_id = f"replay {id(self):x}"

    def plan(self, name: str) -> Plan:
        """Return a tool's plan with the new hooks, but without its body, recorders and error observers."""
        plan = self.plans.get(name)
        if plan is None:
            record, services = self.gate.registry.get(name), self.gate.services
            hooks = gather_registrations(record.definition, record, self.shared)
            whole = compile_plan(record, hooks, services, builtins=BuiltIns.of(record, services))
            none: dict[str, Any] = dict.fromkeys(_NOT_REPLAYED, ())
            plan = self.plans[name] = replace(
                whole,
                **none,
                host=self.services,
                now=self.clock.monotonic,
                surface=surface_original,
                fast_path=None,
                watched=False,
                before=tuple(_before(whole)),
                execute=_stop_inside(whole),
                closing=whole.finals,
            )
        return plan

    async def one(self, row: AuditRow) -> Replayed:
        body = row.body
        was = _recorded(body)
        if was is None:
            return Replayed(row, ReplayVerdict(str(body["outcome"])), None, "it was cancelled before any verdict")
        if body.get("code") == "unknown_tool":
            there = body["called"] in self.gate.registry
            return Replayed(row, was, None if there else was, "there is such a tool now" if there else None)
        if body["tool"] == ELSEWHERE and body["definition"] is None:
            return Replayed(row, was, was)  # no policy ran
        try:
            plan = self.plan(body["tool"])
        except UnknownTool:
            return Replayed(row, was, None, "there is no such tool any more")
        self.clock.now = body["started_us"] / 1_000_000
        user = User(body["user"], body["tenant"], body["roles"], body["scopes"])
        ctx = ReplayContext(plan, user, self.clock.now, body, self.run_id)
        ctx.run.session_id, ctx.run.request_id, ctx.run.depth = body["session_id"], body["request_id"], body["depth"]
        ctx.run.parse_rules, ctx.run.step = tuple(body["rules"]), plan.start
        try:
            await run(plan, ctx)
        except (Exception, Control):
            if ctx.run.error is None:
                raise
        return self._judge(row, was, ctx)

    def _judge(self, row: AuditRow, was: ReplayVerdict, ctx: ReplayContext) -> Replayed:
        if ctx.why is not None:
            return Replayed(row, was, None, ctx.why)
        if isinstance(ctx.run.error, _Unread):
            return self._unread(row, was, ctx)
        if ctx.run.error is None:
            what = "allowed" if ctx.run.output is _REACHED or ctx.run.cache_hit else "answered"
            return Replayed(row, was, ReplayVerdict(what))
        if ctx.row["masked"] and not isinstance(ctx.run.error, InvocationError):
            return Replayed(
                row,
                was,
                None,
                f"{ctx.run.failed_in.name} failed, and arguments are masked" if ctx.run.failed_in else "failed",
            )
        return Replayed(row, was, _refused(ctx))

    def _unread(self, row: AuditRow, was: ReplayVerdict, ctx: ReplayContext) -> Replayed:
        """Judge a call that reaches argument parsing, if the record has no valid arguments."""
        plan = ctx.run.plan
        if was.what == "invalid":
            if any(step.stage in _SHAPING and step.hook is not None for _, _, step in plan.before):
                return Replayed(row, was, None, "its arguments are not recorded, and a hook might change them")
            return Replayed(row, was, was)
        later = [step for _, _, step in (*plan.before, *plan.around, *plan.will_execute) if _decides_later(step)]
        if later:
            who = f"{later[0].name} at {later[0].stage}"
            return Replayed(
                row, was, None, f"it gets past {was.hook}, and {who} may refuse its arguments, which are not recorded"
            )
        return Replayed(row, was, ReplayVerdict("allowed, if its arguments are valid"))


class _Unread(InvocationError):
    """The replay has to read arguments, and the record has none."""


def _decides_later(step: PlanStep) -> bool:
    position = STAGES[Stage.WILL_PARSE_INPUT].position
    return step.hook is not None and not step.shadow and step.row.position >= position


def _records(one: Registration) -> bool:
    return one.option("concern") in _RECORDERS


def _before(plan: Plan) -> Iterable[tuple[int, Callable[..., object], PlanStep]]:
    """Yield the steps up to the tool; recorded arguments are valid, so one step replaces parsing and validation."""
    admitted = False
    for kind, call, step in plan.before:
        if step.stage in _UNDONE or step.stage in (Stage.WILL_EXECUTE, Stage.AROUND_EXECUTE):  # of the ledger
            continue
        own = step.hook is None and step.stage in _SHAPING
        if (own or step.row.position > STAGES[Stage.WILL_NORMALIZE_INPUT].position) and not admitted:
            yield 0, _admit, plan.start
            admitted = True
        if not own:
            yield kind, call, step
    if not admitted:
        yield 0, _admit, plan.start


def _admit(ctx: ReplayContext) -> None:
    if not ctx.row["frozen"]:
        raise _Unread
    ctx.run.input, ctx.run.input_state = {}, FROZEN


def _stop_inside(plan: Plan) -> Execute[InvokeContext]:
    """Return the wrappers and ``will_execute`` with a stop in place of the tool."""

    async def stop(ctx: InvokeContext) -> object:
        await walk(ctx, plan.will_execute)
        raise ControlRespond(_REACHED)  # compared by identity

    chosen = select_by_stage(plan.definition, plan.registrations)[Stage.AROUND_EXECUTE]
    return nested(zip(plan.around, chosen, strict=True), stop)


def _recorded(body: Mapping[str, Any]) -> ReplayVerdict | None:
    """Return the recorded verdict of the hooks; None if the call was cancelled before it."""
    outcome, stage = body["outcome"], str(body.get("stage"))
    if outcome == Outcome.SUCCESS:
        return ReplayVerdict("allowed" if body["executed"] or body["cache_hit"] else "answered")
    refusal = ReplayVerdict(outcome, body["code"], stage, body["hook"])
    section = STAGES[Stage(stage)].section
    if section in (Section.BEFORE, Section.CACHE):
        return None if outcome == Outcome.CANCELLED else refusal
    if section is Section.EXECUTE and not body["own"] and outcome in _DECIDED:
        return refusal
    return ReplayVerdict("allowed")  # the hooks before the tool allowed it, whatever its outcome


def _refused(ctx: InvokeContext) -> ReplayVerdict:
    error, outcome = ctx.run.error, ctx.run.outcome
    code = getattr(error, "code", None) if isinstance(error, InvocationError) else None
    if code is None:
        code = "policy_error" if outcome is Outcome.DENIED else "hook_failed"
    at = ctx.run.failed_in
    assert outcome is not None
    assert at is not None
    return ReplayVerdict(outcome.value, code, at.stage.value, at.name)


async def _all(gate: ReplayedGate, rows: Any) -> AsyncIterator[AuditRow]:
    if isinstance(rows, tuple) and len(rows) == 2 and not any(isinstance(one, AuditRow) for one in rows):
        since, until = (one.timestamp() if isinstance(one, datetime) else one for one in rows)
        rows = gate.services.store.audit.read(None, since=since or 0.0, until=until)
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


async def replay(gate: ReplayedGate, rows: RowSource, hooks: Iterable[object]) -> ReplayReport:
    """Run recorded calls against *hooks* in place of the gate's hooks, and report every verdict that flips.

    *rows* are audit rows, or ``(since, until)`` for the gate's store: seconds since the epoch or aware datetimes, None
    for an open end. Tools keep their own hooks. No tool runs, no secret is read, and nothing is written.
    Hooks see an empty store in memory, the recorded time and principal, and masked arguments. Recorders are off. If a
    policy reads masked or unrecorded data, the verdict is undecidable. The gate must be open for hooks with dependencies.

    Raises:
        HookError: a hook is refused.
    """
    work, report = _Replaying(gate, hooks), ReplayReport()
    ended: list[AuditRow] = [row async for row in _all(gate, rows) if row.body.get("kind") == "outcome"]
    sessions: set[str] = set()
    for row in sorted(ended, key=lambda one: one.body["started_us"]):
        report.rows += 1
        done = await work.one(row)
        if row.body["session_id"] is not None:
            sessions.add(f"{work.run_id} {row.body['session_id']}")
        if done.now is None:
            report.undecidable.append(done)
        elif done.flips:
            report.flips.append(done)
    for session in sessions:
        await close_all(gate.providers.sessions.end(session))
    return report
