"""Runs programs of misbehaving hooks and tools on virtual time, and holds what was seen against the promises."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any

from callgate import Gate, InvocationError, Stage, ToolCall, ToolError, User
from callgate.errors import ControlRespond
from callgate.providers.stores.effects import EffectState
from callgate.runtime.effects.idempotency_keys import given_key
from callgate.runtime.pipeline.shadow import SHADOW_LIMIT
from callgate.runtime.pipeline.streams import Partial, Result
from callgate.runtime.testing.virtual_time import StepLoop
from tests.runtime.pipeline.misbehaving import Program, smaller
from tests.runtime.pipeline.misbehaving_deeds import INTERNAL, SECRET
from tests.runtime.pipeline.misbehaving_gates import CLOSING, gate_of
from tests.runtime.pipeline.misbehaving_world import CURRENT, Called, Ran, World

LATE = 0.03
"""Seconds by which a successful call may overrun its deadline: what its last callbacks take."""
AGAIN = ".2"
Broken = list[tuple[str, str]]


# ---------------------------------------------------------------------- running


def seen_in(program: Program, loop: StepLoop) -> World:
    """Run a program, and return what was seen."""
    loop.start_over()
    world = World(program, loop)
    loop.run_until_complete(_run(world))
    return world


async def _run(world: World) -> None:
    program = world.program
    async with gate_of(world) as gate:
        calls = [_called(f"r{number}") for number in range(program.users)]
        world.calls += calls
        tasks = [asyncio.ensure_future(_call(world, gate, one, program.kind)) for one in calls]
        if program.cancel is not None:
            world.loop.acts[world.loop.steps + program.cancel] = lambda: _cancel(tasks[0], calls[0])
        await asyncio.wait(tasks)
        world.loop.acts.clear()
        if tasks[0].cancelled():  # before it began
            calls[0].raised = asyncio.CancelledError()
        await _look_at_effects(gate, calls)
        for one in calls:
            again = _called(one.request + AGAIN)
            world.calls.append(again)
            await asyncio.wait([asyncio.ensure_future(_call(world, gate, again, "call"))])
        await _settle(world, gate)
        await _look_at_effects(gate, world.calls[len(calls) :])
        _look_at_what_is_left(world, gate)


def _called(request: str) -> Called:
    family = request.partition(".")[0]
    return Called(request, User(f"user of {family}", tenant="acme"))


def _cancel(task: asyncio.Task[Any], called: Called) -> None:
    if not task.done():
        called.cancelled = True
        task.cancel()


async def _call(world: World, gate: Gate, called: Called, kind: str) -> None:
    CURRENT.set(called.request)
    family, program = called.request.partition(".")[0], world.program
    note = f"note of {family}"
    given: Any = {"n": 7, "note": note, "items": [{"deep": [note]}]}
    text = f'{{"n": 7, "note": "{note}", "items": [{{"deep": ["{note}"]}}]}}'
    call = ToolCall(id="c1", name="outer", arguments=text if program.as_text else given)
    options: Any = {"session_id": f"session of {family}", "request_id": called.request, "deadline": program.deadline}
    options |= {"user": called.user, "idempotency_key": f"key of {family}"}
    called.began = world.loop.time()
    try:
        if kind == "invoke":
            called.output = await gate.invoke(call, **options)
        elif kind == "stream":
            async for event in gate.stream(call, **options):
                called.parts += [event.value] if isinstance(event, Partial) else []
                called.result = event.result if isinstance(event, Result) else None
        else:
            called.result = await gate.call(call, trace=kind == "traced", **options)
    except BaseException as error:  # noqa: BLE001  (a promise is held against it)
        called.raised = error
    called.ended = world.loop.time()
    called.bodies = [replace(one) for one in world.of_body(called.request)]  # as they are now
    if given != {"n": 7, "note": note, "items": [{"deep": [note]}]}:
        world.broke("what is refused shows nowhere", "the arguments of the caller were changed")


async def _look_at_effects(gate: Gate, calls: list[Called]) -> None:
    for called in calls:
        key = given_key(called.user, "outer", f"key of {called.request.partition('.')[0]}", "")
        called.effect = await gate.store.effects.get(called.user.tenant or "", key)


async def _settle(world: World, gate: Gate) -> None:
    """Let everything end that programs have left behind."""
    world.released.set()
    wait(world.futures, 60)
    while running := [task for task in world.tasks if not task.done()]:
        _, hanging = await asyncio.wait(running, timeout=60.0)
        for task in hanging:
            task.cancel()
    await gate._services.left_behind.drain(10.0)


def _look_at_what_is_left(world: World, gate: Gate) -> None:
    engine, sessions = gate._services, gate.providers.sessions
    left = [f"under way: {len(engine.under_way)}"] if engine.under_way else []
    left += [f"left behind: {len(engine.left_behind.tasks)}"] if engine.left_behind.tasks else []
    left += [f"{one} is in use" for one, session in sessions._live.items() if session.calls or session.visits]
    left += [f"shared bindings: {gate.providers.ended.bindings}"] if gate.providers.ended.bindings else []
    left += world.loop.faults
    for one in left:
        world.broke("nothing is left", one)


# ---------------------------------------------------------------------- the promises


def ends_once(world: World) -> None:
    """A call ends with a result, or with a documented error; only a cancellation from outside is raised."""
    for called in world.calls:
        error = called.raised
        if isinstance(error, asyncio.CancelledError):
            if not called.cancelled:
                world.broke("a call ends with a result", f"{called.request} was cancelled by nobody")
        elif isinstance(error, InvocationError):
            if called.result is not None or _kind(world, called) != "invoke":
                world.broke("a call ends with a result", f"{called.request} raised {error!r}")
        elif error is not None:
            world.broke("a call ends with a result", f"{called.request} raised {error!r}")
        elif called.result is None and _kind(world, called) != "invoke":
            world.broke("a call ends with a result", f"{called.request} has none")


def _kind(world: World, called: Called) -> str:
    return "call" if called.request.endswith(AGAIN) else world.program.kind


def closes_once(world: World) -> None:
    """Each closing stage runs once, in order, in each call."""
    for seen in world.runs.values() if world.program.witness != "hardly" else ():
        for name in ("early", "late"):
            closing = [stage for who, stage in seen.stages if who == name and stage in CLOSING]
            if closing != list(CLOSING):
                world.broke("closing stages run once", f"{seen.request} {seen.tool} {name}: {closing}")


def runs_what_was_authorised(world: World) -> None:
    """A tool gets the arguments that were validated, authorised and frozen, at each attempt."""
    for ran in world.bodies:
        seen = world.runs.get(id(ran.run))
        if seen is None or seen.authorised is None:
            world.broke("what was authorised runs", f"{ran.tool} ran with {ran.got} and nobody authorised it")
        elif ran.got != seen.authorised:
            world.broke("what was authorised runs", f"{ran.got} instead of {seen.authorised}")
        if not (isinstance(ran.got.get("n"), int) and isinstance(ran.got.get("note"), str)):
            world.broke("what was authorised runs", f"{ran.got} is not valid")


def refusals_hold(world: World) -> None:
    """What a hook refused, or failed to permit, does not run, and has no output."""
    for seen in world.runs.values():
        if seen.stopped is None:
            continue
        if any(one.run is seen.run for one in world.bodies):
            world.broke("a refusal holds", f"{seen.stopped} ended {seen.request} {seen.tool}, which ran")
        called = next(one for one in world.calls if one.request == seen.request)
        if seen.tool == "outer" and called.result is not None and called.result.ok:
            world.broke("a refusal holds", f"{seen.stopped} ended {seen.request}, which succeeded")


def releases_once(world: World) -> None:
    """What was acquired is released exactly once, the last acquired first."""
    for seen in world.runs.values():
        taken = Counter(name for what, name in seen.leases if what == "took")
        given = Counter(name for what, name in seen.leases if what == "gave")
        if taken != given:
            world.broke("leases are released once", f"{seen.request} {seen.tool}: {seen.leases}")


def closes_instances_once(world: World) -> None:
    """The instances of a request are closed once, the last made first."""
    for request, notes in world.instances.items():
        opened = [name for what, name in notes if what == "opened"]
        closed = [name for what, name in notes if what == "closed"]
        if closed != opened[::-1]:
            world.broke("instances close once, in reverse", f"{request}: {notes}")


def redacts_parts(world: World) -> None:
    """What a consumer or a caller gets has passed the hooks that redact it."""
    for called in world.calls:
        output = called.output if called.result is None else called.result.output
        if SECRET in repr(output):
            world.broke("outputs are redacted", f"{called.request}: {output}")
        for part in called.parts:
            if SECRET in repr(part):
                world.broke("outputs are redacted", f"{called.request}: {part}")
        for value in (output, *called.parts):
            world.scan(called.request, "what the caller got", value)


def keeps_parts_in_order(world: World) -> None:
    """Parts come in the order in which each sender sent them, each once, and none of a shadow."""
    shadows = {hook.name for hook in world.program.hooks if hook.shadow}
    for called in world.calls:
        numbered = [part for part in called.parts if isinstance(part, dict) and "number" in part]
        for sender in {part["sender"] for part in numbered}:
            numbers = [part["number"] for part in numbered if part["sender"] == sender]
            if numbers != sorted(set(numbers)) or sender in shadows:
                world.broke("parts come in order", f"{called.request} {sender}: {numbers}")
        delivered = sum(len(sent) for (request, _), sent in world.sent.items() if request == called.request)
        wanted = _kind(world, called) == "stream" and called.result is not None and not shadows
        if wanted and world.program.body.form != "generator" and len(called.parts) < delivered:
            world.broke("parts come in order", f"{called.request}: {delivered} sent, {len(called.parts)} came")


def keeps_deadlines(world: World) -> None:
    """A call that succeeds has done so within its deadline, unless it suppressed a cancellation from outside, too.

    The deadline stands still while a hook in shadow mode runs, until that is left behind.
    """
    deadline = world.program.deadline
    spare = LATE + SHADOW_LIMIT * sum(hook.shadow for hook in world.program.hooks)  # their time does not count
    for called in world.calls if deadline is not None else ():
        succeeded = called.raised is None if called.result is None else called.result.ok
        for seen in world.runs.values() if succeeded and not called.cancelled else ():
            late = (seen.closing_at or 0.0) - called.began - (deadline or 0.0)
            if seen.request == called.request and seen.tool == "outer" and late > spare:
                world.broke("a deadline ends a call", f"{called.request} succeeded {late:.3f} s too late")


def tells_no_internals(world: World) -> None:
    """An error that goes to a model contains no value and no text of an exception."""
    for called in world.calls:
        told: Any = None if called.result is None else called.result.error
        if isinstance(called.raised, InvocationError):
            told = (called.raised.public, getattr(called.raised, "issues", ()), called.raised.code)
        if any(text in repr(told) for text in (INTERNAL, SECRET, "note of")):
            world.broke("errors tell no internals", f"{called.request}: {told}")


def keeps_the_ledger_true(world: World) -> None:
    """The ledger says what the bodies did, and what had or may have had an effect does not run again."""
    kind, elsewhere = world.program.body.effect, world.program.body.form in {"own task", "thread"}
    wraps = any(stage is Stage.AROUND_EXECUTE for hook in world.program.hooks for stage, _ in hook.acts)
    for called in world.calls if kind != "read" else ():
        first = next(one for one in world.calls if called.request.startswith(one.request))
        before = [] if first is called else first.bodies
        wanted, state = expected_state(called, before, elsewhere or wraps), called.effect and called.effect.state
        if state not in wanted and (before or called.bodies or state is not None):
            world.broke(
                "the ledger is true",
                f"{called.request}: {state}, and {wanted} is right: {list(map(_end_of, called.bodies))}",
            )
        known = first.effect and first.effect.state
        again = {EffectState.COMMITTED, *({EffectState.UNKNOWN} if kind != "idempotent" else ())}
        if first is not called and called.bodies and known in again:
            world.broke("an effect happens once", f"{called.request} ran again after {known}")
    for one in world.calls if kind in {"keyed", "irreversible"} else ():
        family = [c for c in world.calls if c.request.startswith(one.request)]
        if any(ran.ended and ran.error is None for c in family[1:] for ran in c.bodies) and _may_have_had(one.bodies):
            world.broke("an effect happens once", f"{one.request} may have had one, and it was done again")


def _may_have_had(bodies: list[Ran]) -> bool:
    return any(_end_of(ran) != "none" for ran in bodies)


def _end_of(ran: Ran) -> str:
    """Return what the end of a body says of its effect."""
    error = ran.error
    if not ran.ended:
        return "unclear"
    if error is None:
        return "output"
    if isinstance(error, ControlRespond) or (isinstance(error, ToolError) and not error.no_effect):
        return "answer"
    return "none" if ran.said and getattr(error, "no_effect", False) else "unclear"


def expected_state(called: Called, before: list[Ran], may_be_lost: bool) -> set[EffectState | None]:
    """Return the states that the ledger may have after a call, from what its bodies did."""
    ends = {_end_of(ran) for ran in called.bodies}
    failed = called.raised is not None or (called.result is not None and not called.result.ok)
    if any(not ran.ended for ran in called.bodies):
        return {EffectState.RUNNING, EffectState.UNKNOWN}  # its claim lasts until it ends
    if not called.bodies:
        return {None, EffectState.NO_EFFECT} if not before else {*EffectState, None}
    lost = {EffectState.UNKNOWN} if failed and may_be_lost else set[EffectState]()
    if "output" in ends:  # unless a cancelled body returned it in its own task or thread, or a wrapper failed after it
        return {EffectState.COMMITTED, *lost}
    if "unclear" in ends:  # a fallback is an outcome, even if a cancellation arrives after it
        refused = called.result is not None and called.result.error is not None and called.result.error.code
        told = getattr(called.raised, "code", refused) == "tool_error"  # by a hook of a part: kept as the answer
        fell_back = not failed or told or isinstance(called.raised, asyncio.CancelledError)
        return {*({EffectState.UNKNOWN} if failed else ()), *({EffectState.COMMITTED} if fell_back else ())}
    return {EffectState.COMMITTED if "answer" in ends else EffectState.NO_EFFECT, *lost}


PROMISES: tuple[Callable[[World], None], ...] = (
    ends_once,
    closes_once,
    runs_what_was_authorised,
    refusals_hold,
    releases_once,
    closes_instances_once,
    redacts_parts,
    keeps_parts_in_order,
    keeps_deadlines,
    tells_no_internals,
    keeps_the_ledger_true,
)


def outline(world: World) -> list[Any]:
    """Return what callers see of a program, and what its tool got: the same with and without shadows."""
    lines: list[Any] = []
    for called in world.calls:
        result = called.result
        told = None if result is None else (result.outcome, repr(result.output), result.error and result.error.code)
        raised = called.raised and (type(called.raised), getattr(called.raised, "code", None))
        state = called.effect and called.effect.state
        got = [one.got for one in world.of_body(called.request)]
        lines.append((called.request, told, raised, repr(called.output), repr(called.parts), state, got))
    return lines


def broken_by(program: Program, loop: StepLoop) -> Broken:
    """Run a program, and return the promises that were broken, with how."""
    world = seen_in(program, loop)
    for promise in PROMISES:
        promise(world)
    plain = program.without_shadows()
    if plain != program and program.is_steady and not world.broken:
        theirs, ours = outline(seen_in(plain, loop)), outline(world)
        if theirs != ours:
            world.broke("a shadow changes nothing", f"with shadows {ours}, without {theirs}")
    return world.broken


# ---------------------------------------------------------------------- findings


@dataclass(frozen=True)
class Found:
    """A program that breaks a promise, as small as it could be made."""

    program: Program
    broken: Broken
    tried: int

    def __str__(self) -> str:
        lines = dict.fromkeys(f"  breaks: {promise}: {how}" for promise, how in self.broken)
        return "\n".join(["", str(self.program), *lines])


def first_found(programs: Any, loop: StepLoop, most: int = 150) -> Found | None:
    """Run programs until one breaks a promise; return it, made smaller in at most *most* tries."""
    for tried, program in enumerate(programs, 1):
        if broken := broken_by(program, loop):
            return Found(*shrunk(program, broken, loop, most), tried)
    return None


def shrunk(program: Program, broken: Broken, loop: StepLoop, most: int) -> tuple[Program, Broken]:
    promises, tries, goes_on = {promise for promise, _ in broken}, 0, True
    while goes_on:
        goes_on = False
        for candidate in smaller(program):
            tries += 1
            if tries > most:
                break
            try:
                found = broken_by(candidate, loop)
            except RuntimeError:  # it stops the loop, as no drawn program does
                continue
            if promises & {promise for promise, _ in found}:
                program, broken, goes_on = candidate, found, True
                break
    return program, broken
