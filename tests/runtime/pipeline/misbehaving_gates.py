"""The gates of programs of misbehaving hooks and tools: hooks and tools that do their deeds, and a witness beside them."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any

from callgate import (
    DeadlineExceeded,
    Effects,
    Gate,
    Hook,
    InvocationError,
    InvokeContext,
    Options,
    Stage,
    ToolDefinition,
)
from callgate.errors import ControlRespond
from callgate.hooks.stages import RELEASE_OF
from callgate.providers.markers import Injected
from callgate.providers.scoped import Scoped
from callgate.runtime.pipeline.threads import threads_of
from callgate.runtime.testing.virtual_time import LoopClock
from callgate.tools.definition import Effect
from callgate.tools.record import Style, ToolRecord
from tests.runtime.pipeline.misbehaving import Misbehaving, is_before
from tests.runtime.pipeline.misbehaving_deeds import BODY_DEEDS, DEEDS, INTERNAL, NEXT_DEEDS, SECRET, Group, Here, Later
from tests.runtime.pipeline.misbehaving_world import CURRENT, PLACE, Ran, World

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "note": {"type": "string"}, "items": {"type": "array"}},
    "required": ["n", "note", "items"],
    "additionalProperties": False,
}
CLOSING = (Stage.WILL_AUDIT, Stage.DID_AUDIT, Stage.ON_METRICS, Stage.WILL_FINALIZE_INVOKE)
_INNER = {Stage.AROUND_EXECUTE, Stage.ON_RETRY, Stage.WILL_EXECUTE, Stage.DID_EXECUTE}
_PAIRED = {*RELEASE_OF, *RELEASE_OF.values()}
WITNESSED: dict[str, frozenset[Stage]] = {
    "everywhere": frozenset(Stage) - _PAIRED - {Stage.AROUND_EXECUTE},
    "not around": frozenset(Stage) - _PAIRED - _INNER,
    "at the ends": frozenset({Stage.WILL_AUTHORIZE_INPUT, *CLOSING}),
    "hardly": frozenset({Stage.WILL_AUTHORIZE_INPUT}),
}


HISTORIES = frozenset({Stage.WILL_AUTHORIZE_INPUT, Stage.DID_EXECUTE, Stage.WILL_AUDIT, Stage.WILL_FINALIZE_INVOKE})
"""Stages in which the witness also reads what takes longer."""


# ---------------------------------------------------------------------- hooks


def method(world: World, hook: Misbehaving, stage: Stage, deeds: tuple[str, ...]) -> Callable[..., Any]:
    """Return a stage method that does the deeds."""
    gives = stage in RELEASE_OF.values()
    counts = not hook.shadow and (gives or RELEASE_OF.get(stage) in dict(hook.acts))

    def begin(ctx: Any, rest: tuple[Any, ...]) -> Here:
        if gives and counts:
            world.seen(ctx).leases.append(("gave", hook.name))
        return Here(world, ctx, hook.name, hook.shadow, hook.limited, rest[0] if rest else None)

    def ended(ctx: Any, answer: Any, error: BaseException | None) -> None:
        seen = world.seen(ctx)
        if counts and not gives and answer is None and error is None:
            seen.leases.append(("took", hook.name))
        if is_before(stage) and stops(hook, stage, answer, error):
            seen.stopped = seen.stopped or f"{hook.name} in {stage}"

    async def asynchronous(self: Any, ctx: Any, *rest: Any) -> Any:
        here, answer = begin(ctx, rest), None
        try:
            for name in deeds:
                answer = done(name, here)
                if inspect.isawaitable(answer) and not isinstance(answer, Later):
                    answer = await answer
                if answer is not None:
                    break
        except BaseException as error:
            ended(ctx, None, error)
            raise
        ended(ctx, answer, None)
        return answer

    def plain(self: Any, ctx: Any, *rest: Any) -> Any:
        here, answer = begin(ctx, rest), None
        try:
            for name in deeds:
                if (answer := done(name, here)) is not None:
                    break
        except BaseException as error:
            ended(ctx, None, error)
            raise
        ended(ctx, answer, None)
        return answer

    return asynchronous if hook.is_async else plain


def done(name: str, here: Here) -> Any:
    """Do a deed; return what the hook returns, or has to await."""
    deed = DEEDS.get(name) or NEXT_DEEDS[name]
    answer = deed.act(here)
    return None if deed.group is Group.LATER else answer


def stops(hook: Misbehaving, stage: Stage, answer: Any, error: BaseException | None) -> bool:
    """Return True if what a hook returned or raised before the tool must keep the tool from running."""
    if hook.shadow or hook.limited or isinstance(error, ControlRespond):
        return False
    if error is None:
        return answer is not None and stage is not Stage.WILL_BIND_PROVIDERS
    decided = not isinstance(error, Exception) or (
        isinstance(error, InvocationError) and not isinstance(error, DeadlineExceeded)
    )
    return decided or not hook.ignores


def hook_of(world: World, hook: Misbehaving) -> Any:
    """Make a hook of the program."""
    members: dict[str, Any] = {stage.value: method(world, hook, stage, deeds) for stage, deeds in hook.acts}
    members |= {"priority": hook.priority, "repeats": hook.repeats, "on_failure": "ignore" if hook.ignores else "deny"}
    members |= {"mode": "shadow"} if hook.shadow else {}
    members |= {"timeout": 0.03} if hook.limited else {}
    if hook.filter:

        def decide(self: Any, ctx: Any) -> bool:
            if hook.filter == "raises":
                raise ValueError(INTERNAL)
            return hook.filter == "yes"

        members["filter"] = decide
    made = type(hook.name, (Hook,), members)
    return made if hook.is_class else made()


class Redactor(Hook):
    """Masks what the tool calls secret, and takes its time."""

    priority = 5

    async def will_redact_output(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)
        if SECRET in repr(ctx.output):
            ctx.output = masked(ctx.output)
        await asyncio.sleep(0)


def masked(value: Any) -> Any:
    """Return a value without secrets."""
    if isinstance(value, dict):
        return {name: masked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value.replace(SECRET, "***") if isinstance(value, str) else value


def witness(world: World, name: str, priority: float) -> Hook:
    """Make a hook that notes and reads, and does nothing."""

    def look(ctx: InvokeContext, stage: Stage) -> None:
        seen = world.seen(ctx)
        seen.stages.append((name, stage))
        if stage is Stage.WILL_AUTHORIZE_INPUT:
            seen.authorised = copy.deepcopy(ctx.input)
        if stage is Stage.WILL_AUDIT and seen.closing_at is None:
            seen.closing_at = world.loop.time()
        values: list[Any] = [ctx.output]  # also early, where a view that is kept would be wrong later
        if name == "late":
            values += [ctx.masked_input]
            values += [ctx.data, ctx.raw_input, ctx.tool_call.arguments] if stage in HISTORIES else [ctx.data]
            values += [ctx.input_history, ctx.output_history] if stage in HISTORIES else []
            world.scan(seen.request, f"{stage}", values)
        called = next(one for one in world.calls if one.request == seen.request)
        if ctx.user is not called.user:
            world.broke("the user is fixed", f"in {stage}")

    def noting(stage: Stage) -> Callable[..., Any]:
        return lambda _, ctx: look(ctx, stage)

    members: dict[str, Any] = {stage.value: noting(stage) for stage in WITNESSED[world.program.witness]}
    made: type[Hook] = type(name, (Hook,), {**members, "priority": priority})
    return made()


# ---------------------------------------------------------------------- tools


def tools_of(world: World) -> list[ToolRecord]:
    """Make the tool of the program, and the one that it may call."""
    body = world.program.body
    sync = body.form in {"thread", "inline"}
    run: Any = {"generator": parts, "class": Component}.get(body.form, plain_body if sync else body_of)
    forms: dict[str, dict[str, Any]] = {
        "in place": {"context_parameter": None},
        "own task": {"hard_deadline": True},
        "thread": {"is_async": False},
        "inline": {"is_async": False, "inline": True},
        "generator": {"streams": True},
        "class": {"style": Style.COMPONENT},
        "record": {"style": Style.RECORD, "context_parameter": None},
    }
    injected = (Injected("given", "first"), Injected("more", "second")) if body.injected and not sync else ()
    settings: dict[str, Any] = {
        "style": Style.KEYWORDS,
        "context_parameter": "ctx",
        "injected": injected,
        **forms.get(body.form, {}),
    }
    key = ("note",) if body.effect == "keyed" else ()
    definition = ToolDefinition("outer", "Misbehaves.", SCHEMA, effect=Effect(body.effect), key=key)
    execute: Any = partial(run, world, "outer", body.deeds)
    if body.form == "record":
        execute = lambda arguments, ctx, **more: body_of(world, "outer", body.deeds, ctx=ctx, **arguments)
    outer = ToolRecord(definition, execute, **settings)
    inner_definition = ToolDefinition("inner", "Behaves.", SCHEMA, effect=Effect.READ)
    inner = ToolRecord(
        inner_definition, partial(body_of, world, "inner", ("send",)), Style.KEYWORDS, context_parameter="ctx"
    )
    if body.form == "thread":
        in_step(world, outer)
    return [outer, inner]


def in_step(world: World, record: ToolRecord) -> None:
    """Make the loop wait for threads, until they end or park: then no program depends on the speed of threads."""
    threads: Any = threads_of(record)
    submit = threads.submit

    def waiting(call: Callable[[], Any]) -> Any:
        parked = threading.Event()

        def work() -> Any:
            PLACE.parked = parked
            return call()

        future = submit(work)
        future.add_done_callback(lambda _: parked.set())
        world.futures.append(future)
        parked.wait(60)
        return future

    threads.submit = waiting


def output_of(here: Here, ran: Ran) -> Any:
    """Return what a body returns: a secret of its call, if nothing else was decided."""
    return here.output if here.output is not None else {"note": ran.got["note"], "text": f"{SECRET} of {CURRENT.get()}"}


def finish(ran: Ran, error: BaseException | None, deed: str = "") -> None:
    """Note how a body ended, and whether it said so itself, or a hook of what it sent or called."""
    ran.ended, ran.error, ran.said = True, error, BODY_DEEDS[deed].group is Group.STEERS if deed else True


async def body_of(world: World, tool: str, deeds: tuple[str, ...], *, ctx: Any = None, **arguments: Any) -> Any:
    arguments = {name: value for name, value in arguments.items() if name in SCHEMA["properties"]}
    ran = world.began(tool, ctx, arguments)
    here = Here(world, ctx, tool, arguments=arguments)
    name = ""
    try:
        for name in deeds:
            if ctx is not None or BODY_DEEDS[name].group is Group.RAISES:
                answer = BODY_DEEDS[name].act(here)
                _ = await answer if inspect.isawaitable(answer) else answer
    except BaseException as error:
        finish(ran, error, name)
        raise
    finish(ran, None)
    return output_of(here, ran)


def plain_body(world: World, tool: str, deeds: tuple[str, ...], *, ctx: Any = None, **arguments: Any) -> Any:
    ran = world.began(tool, ctx, arguments)
    here = Here(world, ctx, tool, arguments=arguments)
    name = ""
    try:
        for name in deeds:
            BODY_DEEDS[name].act(here)
    except BaseException as error:
        finish(ran, error, name)
        raise
    finish(ran, None)
    return output_of(here, ran)


async def parts(
    world: World, tool: str, deeds: tuple[str, ...], *, ctx: Any = None, **arguments: Any
) -> AsyncGenerator[Any]:
    arguments = {name: value for name, value in arguments.items() if name in SCHEMA["properties"]}
    ran = world.began(tool, ctx, arguments)
    here, attempt = Here(world, ctx, tool, arguments=arguments), len(world.bodies)
    name = ""
    try:
        for number, name in enumerate(deeds):
            yield {"sender": f"attempt {attempt}", "number": number, "text": f"{SECRET} of {CURRENT.get()}"}
            answer = BODY_DEEDS[name].act(here)
            _ = await answer if inspect.isawaitable(answer) else answer
        yield output_of(here, ran)
    except BaseException as error:
        finish(ran, error, name)
        raise
    finish(ran, None)


class Component:
    """A class tool."""

    def __init__(self, world: World, tool: str, deeds: tuple[str, ...], arguments: Any, **more: Any) -> None:
        self.work = partial(body_of, world, tool, deeds, **arguments, **more)

    async def run(self) -> Any:
        return await self.work()


# ---------------------------------------------------------------------- the gate


def gate_of(world: World) -> Gate:
    """Make the gate of a program."""

    def first() -> Generator[str]:
        request = CURRENT.get()
        world.instances[request].append(("opened", "first"))
        try:
            yield "first"
        finally:
            world.instances[request].append(("closed", "first"))

    async def second() -> AsyncGenerator[str]:
        request = CURRENT.get()
        await asyncio.sleep(0)
        world.instances[request].append(("opened", "second"))
        try:
            yield "second"
        finally:
            world.instances[request].append(("closed", "second"))
            await asyncio.sleep(0)

    hooks: list[Any] = [witness(world, "early", 1e9), witness(world, "late", -1e9), Redactor()]
    return Gate(
        tools_of(world),
        [*hooks, *(hook_of(world, hook) for hook in world.program.hooks)],
        allow_unguarded=True,
        provide={"first": Scoped("request", first), "second": Scoped("request", second)},
        effects=Effects(durable=False),
        options=Options(clock=LoopClock(world.loop), lazy=True),
    )
