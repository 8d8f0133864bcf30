"""Contexts over the context of a call: a shadow changes nothing, a part of an output is its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from callgate import Hook, InvokeContext, Outcome, Stage, ToolContext
from callgate.errors import StageError, ToolFailed
from callgate.hooks.stages import STAGES, May, Section
from callgate.runtime.pipeline import partials, shadow
from callgate.runtime.pipeline.streams import Partial, Progress, Result
from tests.harness.gate_options import gate_options
from tests.hooks.making import ANYTHING, USER, Watch, acting, at, call, echoing, record

SHADOWED = [s for s in Stage if s not in {Stage.AROUND_EXECUTE, Stage.DID_CACHE_HIT, Stage.ON_RETRY, Stage.ON_GIVE_UP}]


async def _nested(ctx: InvokeContext) -> None:
    await ctx.call("echo", {"nested": True})


async def _part(ctx: InvokeContext) -> None:
    await ctx.send("part of a shadow")


def _cancel(_: InvokeContext) -> None:
    raise asyncio.CancelledError


def _exit(_: InvokeContext) -> None:
    raise SystemExit(3)


WRITES: dict[str, Callable[[InvokeContext], Any]] = {
    "input": lambda ctx: setattr(ctx, "input", {"evil": 1}),
    "output": lambda ctx: setattr(ctx, "output", {"evil": 1}),
    "masked input": lambda ctx: setattr(ctx, "masked_input", {"evil": 1}),
    "masked output": lambda ctx: ctx.mask_output({"evil": 1}),
    "error": lambda ctx: setattr(ctx, "error", ToolFailed("evil")),
    "cache hit": lambda ctx: setattr(ctx, "cache_hit", True),
    "user": lambda ctx: setattr(ctx, "user", USER),
    "data": lambda ctx: ctx.data.update(shared="evil"),
    "data of another": lambda ctx: ctx.data["shared"].append("evil"),
    "data cleared": lambda ctx: ctx.data.pop("shared"),
    "session": lambda ctx: ctx.session.update(evil=1),
    "provider": lambda ctx: ctx.bind_provider("evil", 1),
    "session provider": lambda ctx: ctx.bind_provider("evil", 1, "session"),
    "respond": lambda ctx: ctx.respond({"evil": 1}),
    "abort": lambda ctx: ctx.abort("evil"),
    "suspend": lambda ctx: ctx.suspend("approval", "evil?"),
    "progress": lambda ctx: ctx.progress(1.0, message="evil"),
    "part": _part,
    "nested call": _nested,
    "its own cancellation": _cancel,
    "exit": _exit,
}


def journal(kept: list[Any]) -> Hook:
    """Note what a call shows in each stage; its own data is what a shadow might reach."""

    def begin(ctx: InvokeContext) -> None:
        ctx.data["shared"] = ["mine"]
        ctx.session["cart"] = 1

    def note(ctx: InvokeContext) -> None:
        seen = ctx.input if STAGES[ctx.stage].position > STAGES[Stage.WILL_PARSE_INPUT].position else None
        known = ctx.data.get("shared"), ctx.data.keys() - {"shared"}, dict(ctx.session), ctx.try_get("evil")
        error = None if ctx.error is None else type(ctx.error).__name__
        kept.append((ctx.stage, seen, ctx.output, ctx.masked_input, ctx.user, ctx.cache_hit, error, known))

    acts: dict[Stage, Any] = dict.fromkeys(SHADOWED, note)
    return acting({**acts, Stage.WILL_CREATE_INVOKE_CONTEXT: begin}, priority=1e6)()


async def seen_with(*hooks: Hook, fails: bool) -> tuple[Any, ...]:
    """Everything that one call shows to its other hooks, its consumer and its caller."""
    kept: list[Any] = []
    runs: list[Any] = []

    async def execute(**arguments: Any) -> Any:
        runs.append(arguments)
        if fails:
            raise KeyError("the tool fails")
        return arguments

    looks = at(Stage.WILL_READ_CACHE, lambda ctx: None)
    tools = [record(execute, ANYTHING)]
    from callgate import Gate

    events: list[Any] = []
    async with Gate(tools, [journal(kept), looks, *hooks], **gate_options()) as gate:
        async for event in gate.stream("echo", {"n": 1}, user=USER, session_id="s"):
            events.append(event)
    result = events.pop().result
    assert all(isinstance(event, Progress | Partial) for event in events)
    return kept, runs, events, result.outcome, result.output, result.error and result.error.code


def shadows(write: str, *stages: Stage, is_async: bool) -> list[Hook]:
    """A shadow for each of *stages*, which writes there."""
    one = {"is_async": is_async, "mode": "shadow", "priority": 1e7}
    return [acting({stage: WRITES[write]}, **one)() for stage in stages]  # type: ignore[arg-type]


WAYS = [
    (write, is_async)
    for write in WRITES
    for is_async in (False, True)
    if is_async or not inspect.iscoroutinefunction(WRITES[write])
]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("write", "is_async"), WAYS)
async def test_a_shadow_changes_nothing_in_any_stage(write: str, is_async: bool, fails: bool) -> None:
    """Contract 90, 92, I10: one call has a shadow in each stage, and its journal is compared stage by stage."""
    hooks = shadows(write, *SHADOWED, is_async=is_async)
    assert await seen_with(*hooks, fails=fails) == await seen_with(fails=fails)


@pytest.mark.soak
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("write", "is_async"), WAYS)
async def test_soak_a_shadow_changes_nothing_in_one_stage(write: str, is_async: bool, fails: bool) -> None:
    """Contract 90, 92, I10: each stage in a call of its own."""
    plain = await seen_with(fails=fails)
    for stage in SHADOWED:
        assert await seen_with(*shadows(write, stage, is_async=is_async), fails=fails) == plain, stage


async def test_the_same_writes_are_found_where_a_shadow_has_the_context_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control."""
    from callgate.runtime.pipeline import guards

    monkeypatch.setattr(guards, "in_shadow", lambda _hook, call, *_: call)
    plain = await seen_with(fails=False)
    for write, stage in [
        ("input", Stage.WILL_NORMALIZE_INPUT),
        ("output", Stage.DID_EXECUTE),
        ("masked input", Stage.WILL_REDACT_INPUT),
        ("data", Stage.WILL_AUTHORIZE),
        ("data of another", Stage.ON_METRICS),
        ("data cleared", Stage.WILL_AUTHORIZE),
        ("session", Stage.WILL_AUTHORIZE),
        ("provider", Stage.WILL_BIND_PROVIDERS),
        ("progress", Stage.WILL_EXECUTE),
    ]:
        hook = acting({stage: WRITES[write]}, mode="shadow", priority=1e7)()
        assert await seen_with(hook, fails=False) != plain, write


@pytest.mark.parametrize(
    ("write", "power"),
    [("input", May.INPUT), ("output", May.OUTPUT), ("masked input", May.MASK), ("provider", May.BIND)],
)
async def test_a_shadow_sees_its_own_writes_and_the_call_records_them(write: str, power: May) -> None:
    """Contract 90."""
    stage = next(stage for stage in SHADOWED if power in STAGES[stage].may)
    own: list[Any] = []

    def act(ctx: InvokeContext) -> None:
        WRITES[write](ctx)
        ctx.data["mine"] = "kept"
        own.append(ctx.try_get("evil") if power is May.BIND else getattr(ctx, write.replace(" ", "_")))

    later = Stage.WILL_FINALIZE_INVOKE
    hook = acting({stage: act, later: lambda ctx: own.append(ctx.data["mine"])}, mode="shadow", name="Shadow")()
    watch = Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
    assert (await call(echoing(), hook, watch.hook)).output == {"n": 2}
    assert own == [1 if power is May.BIND else {"evil": 1}, "kept"]
    (suppressed,) = watch.ctx.suppressed
    assert (suppressed.stage, suppressed.hook) == (stage, "Shadow")
    assert str(suppressed.error).startswith("Shadow would ")


REMOVALS: dict[str, Callable[[MutableMapping[Any, Any]], Any]] = {
    "pop": lambda data: data.pop("theirs"),
    "del": lambda data: data.__delitem__("theirs"),
    "popitem": lambda data: (data.popitem(), data.popitem()),
    "clear": lambda data: data.clear(),
}


@pytest.mark.parametrize("remove", REMOVALS)
@pytest.mark.parametrize("where", ["data", "session"])
async def test_what_a_shadow_removes_is_removed_for_the_shadow_alone(where: str, remove: str) -> None:
    """Contract 87, 90."""
    shadow: list[Any] = []
    theirs: list[Any] = []

    def put(ctx: InvokeContext) -> None:
        getattr(ctx, where)["theirs"] = [1]

    def act(ctx: InvokeContext) -> None:
        mapping = getattr(ctx, where)
        mapping["own"] = 2
        shadow.append((len(mapping), sorted(mapping), mapping["theirs"], mapping.get("own")))
        REMOVALS[remove](mapping)
        shadow.append(("theirs" in mapping, mapping.get("theirs", "gone"), mapping.pop("theirs", "gone")))
        with pytest.raises(KeyError):
            mapping["theirs"]
        with pytest.raises(KeyError):
            del mapping["theirs"]
        shadow.append("theirs" in dict(mapping) or "theirs" in list(mapping))
        mapping["theirs"] = 3
        shadow.append((mapping["theirs"], bool(mapping)))

    hooks = [
        at(Stage.WILL_AUTHORIZE, put, priority=2),
        at(Stage.WILL_AUTHORIZE, act, mode="shadow", priority=1),
        at(Stage.WILL_AUTHORIZE, lambda ctx: theirs.append(dict(getattr(ctx, where))["theirs"])),
    ]
    assert (await call(record(), *hooks)).ok
    assert shadow == [(2, ["own", "theirs"], [1], 2), (False, "gone", "gone"), False, (3, True)]
    assert theirs == [[1]]


async def test_a_cancelled_call_ends_although_a_shadow_holds_it() -> None:
    """I12: a real cancellation is not the shadow's own."""
    started, never = asyncio.Event(), asyncio.Event()

    async def hang(_: InvokeContext) -> None:
        started.set()
        await never.wait()

    hook = acting({Stage.WILL_AUTHORIZE: hang}, is_async=True, mode="shadow")()
    running = asyncio.ensure_future(call(record(), hook))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# Parts of an output


async def parts_of(tool: Any, *hooks: Hook) -> tuple[list[Any], Any]:
    """The parts of a streamed call and its result."""
    from callgate import Gate

    parts: list[Any] = []
    async with Gate([tool], hooks, **gate_options()) as gate:
        async for event in gate.stream(tool.id, {}, user=USER):
            if isinstance(event, Result):
                return parts, event.result
            parts.append(event.value)  # type: ignore[union-attr]
    raise AssertionError("a stream ends with its result")


def sending(body: Callable[..., Any]) -> Any:
    return record(body, ANYTHING, context_parameter="ctx")


async def mask(ctx: InvokeContext) -> None:
    await asyncio.sleep(0)
    if "secret" in str(ctx.output):
        ctx.output = str(ctx.output).replace("secret", "***")
    await asyncio.sleep(0)


@pytest.mark.parametrize("at_once", [2, 4, 8])
async def test_parts_that_are_sent_at_once_are_each_redacted_and_come_in_order(at_once: int) -> None:
    """Contract C12, I16."""

    async def body(ctx: ToolContext, **_: Any) -> Any:
        await asyncio.gather(*(ctx.send(f"secret {number}") for number in range(at_once)))
        return "secret whole"

    steps: list[str] = []
    names = {
        Stage.WILL_REDACT_OUTPUT: "redact",
        Stage.WILL_VALIDATE_OUTPUT: "validate",
        Stage.WILL_TRANSFORM_OUTPUT: "transform",
    }
    noting = [at(stage, lambda _, name=name: steps.append(name)) for stage, name in names.items()]  # type: ignore[misc]
    redactor = acting({Stage.WILL_REDACT_OUTPUT: mask}, is_async=True)()
    parts, result = await parts_of(sending(body), redactor, *noting)
    assert parts == [f"*** {number}" for number in range(at_once)]
    assert result.output == "*** whole"
    assert steps == ["redact", "validate", "transform"] * (at_once + 1)


async def test_the_same_parts_leak_where_they_share_the_context_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the output of the call is the place in which parts are shaped, all at once."""

    class Shared:
        def __init__(self, ctx: InvokeContext, value: Any) -> None:
            ctx.run.output = value
            self.__dict__["ctx"] = ctx

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["ctx"], name)

    class NoLock:
        async def __aenter__(self) -> None: ...
        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(partials, "PartialContext", Shared)
    monkeypatch.setattr("callgate.runtime.pipeline.streams.asyncio.Lock", NoLock)

    async def body(ctx: ToolContext, **_: Any) -> Any:
        await asyncio.gather(*(ctx.send(f"secret {number}") for number in range(4)))
        return "whole"

    redactor = acting({Stage.WILL_REDACT_OUTPUT: mask}, is_async=True)()
    parts, _ = await parts_of(sending(body), redactor)
    assert parts != [f"*** {number}" for number in range(4)]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_body_that_fails_while_a_part_is_sent_has_failed_as_a_tool(wrapped: bool) -> None:
    """I3, I4: the end of a body is its own, also while another task of it sends."""
    held = asyncio.Event()

    async def body(ctx: ToolContext, **_: Any) -> Any:
        child = asyncio.ensure_future(ctx.send("part"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        held.set()
        child.add_done_callback(lambda _: None)
        raise ConnectionError("the service went away")

    async def slow(_: InvokeContext) -> None:
        await asyncio.wait_for(held.wait(), 5)
        for _step in range(5):
            await asyncio.sleep(0)

    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    hooks = [acting({Stage.WILL_REDACT_OUTPUT: slow}, is_async=True, name="Slow")(), watch.hook]
    hooks += [at(Stage.AROUND_EXECUTE, lambda ctx: None)] if wrapped else []
    _, result = await parts_of(sending(body), *hooks)
    assert result.outcome is Outcome.ERROR
    assert result.error.code == "tool_failed"
    assert watch.ctx.run.failed_in is watch.ctx.run.plan.running


async def test_a_hook_may_replace_a_part_and_the_later_stages_see_it() -> None:
    """Contract C12."""

    async def body(ctx: ToolContext, **_: Any) -> Any:
        await ctx.send("first")
        await ctx.send("second")
        return "whole"

    def replace(ctx: InvokeContext) -> None:
        if ctx.output == "first":
            ctx.respond("replaced")

    after = at(Stage.WILL_TRANSFORM_OUTPUT, lambda ctx: setattr(ctx, "output", f"<{ctx.output}>"))
    parts, result = await parts_of(sending(body), at(Stage.WILL_REDACT_OUTPUT, replace), after)
    assert parts == ["<replaced>", "<second>"]
    assert result.output == "<whole>"


def test_only_output_stages_shape_parts() -> None:
    """The names of the layers and of the table agree."""
    assert {Section.SHAPING} == {
        STAGES[stage].section
        for stage in (Stage.WILL_REDACT_OUTPUT, Stage.WILL_VALIDATE_OUTPUT, Stage.WILL_TRANSFORM_OUTPUT)
    }
    assert issubclass(shadow.PartialContext, InvokeContext)
    with pytest.raises(StageError):
        raise StageError
