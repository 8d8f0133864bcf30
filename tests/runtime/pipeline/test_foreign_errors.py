"""The error path cannot break: whatever an error object does, the call ends, releases, and is recorded."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, ToolCall, tool
from callgate.errors import ControlRespond, Denied, Invalid, RetryLater, ToolError
from callgate.hooks import Audit
from callgate.hooks.stages import Stage
from tests.world import ANN


class NoSuper(Invalid):
    def __init__(self, value: object) -> None:
        self.value = value


class NoSuperDenied(Denied):
    def __init__(self) -> None:
        pass


class RaisingGetattr(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute for you")


class RaisingGetattribute(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("nothing can be read")


class RaisingClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("no class")


class RaisingText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class RaisingNoEffect(Exception):
    @property
    def no_effect(self) -> bool:
        raise RuntimeError("no answer")


class RaisingBool(Exception):
    class Odd:
        def __bool__(self) -> bool:
            raise RuntimeError("neither")

    no_effect = Odd()


class RaisingCode(Denied):
    @property
    def code(self) -> str:
        raise RuntimeError("no code")

    @code.setter
    def code(self, value: str) -> None: ...


def late(error: BaseException, **changes: Any) -> BaseException:
    for name, value in changes.items():
        setattr(error, name, value)
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "a tool error of an error": lambda: ToolError(ValueError("x")),  # type: ignore[arg-type]
    "a tool error of a dict": lambda: ToolError({"a": 1}),  # type: ignore[arg-type]
    "a subclass without super": lambda: NoSuper(1),
    "a denial without super": NoSuperDenied,
    "a denial with a number": lambda: Denied(public=5),  # type: ignore[arg-type]
    "a code that is no text": lambda: Denied(code=5, http_status="x"),  # type: ignore[arg-type]
    "issues that are none": lambda: Invalid("x", issues=[1, "two"]),
    "a public text replaced later": lambda: late(Denied("x"), public=object(), code=7, http_status="y"),
    "issues replaced later": lambda: late(Invalid("x"), issues=5),
    "a failing __getattr__": RaisingGetattr,
    "a failing __getattribute__": RaisingGetattribute,
    "a failing __class__": RaisingClass,
    "a failing __str__": RaisingText,
    "a failing no_effect": RaisingNoEffect,
    "a failing bool": RaisingBool,
    "a failing code": lambda: RaisingCode("x"),
    "a group of all": lambda: BaseExceptionGroup("g", [RaisingClass(), RaisingGetattribute(), RaisingNoEffect()]),
    "its own cause": lambda: late(error := ValueError("x"), __cause__=error),
}
PLACES = {
    "body": None,
    "plain body": None,
    **{
        stage.value: stage
        for stage in (
            Stage.WILL_AUTHORIZE,
            Stage.WILL_VALIDATE_INPUT,
            Stage.WILL_AUTHORIZE_INPUT,
            Stage.AROUND_EXECUTE,
            Stage.WILL_EXECUTE,
            Stage.DID_EXECUTE,
            Stage.WILL_VALIDATE_OUTPUT,
            Stage.ON_ERROR,
            Stage.WILL_AUDIT,
            Stage.WILL_FINALIZE_INVOKE,
        )
    },
}


class Permits(Hook):
    """Counts what it gave and what came back."""

    def __init__(self) -> None:
        self.taken = 0

    def will_acquire_semaphore(self, ctx: Any) -> None:
        self.taken += 1

    def did_release_semaphore(self, ctx: Any) -> None:
        self.taken -= 1


def raising_hook(stage: Stage, make: Callable[[], BaseException]) -> Hook:
    def method(self: Any, ctx: Any, *rest: Any) -> None:
        raise make()

    async def around(self: Any, ctx: Any, next: Any) -> Any:
        await next()
        raise make()

    made: Hook = type("Raises", (Hook,), {stage.value: around if stage is Stage.AROUND_EXECUTE else method})()
    return made


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ERRORS)
async def test_every_error_at_every_place_ends_the_call_and_gives_everything_back(name: str, place: str) -> None:
    make, stage = ERRORS[name], PLACES[place]
    runs: list[int] = []
    fails = place in {"body", "plain body"} or stage is Stage.ON_ERROR

    async def pay(order: str) -> str:
        runs.append(1)
        if fails:
            raise make()
        return "paid"

    def plain(order: str) -> str:
        runs.append(1)
        raise make()

    permits, rows = Permits(), list[Any]()
    hooks: list[Hook] = [permits, Audit(sink=rows.append)]
    if stage is not None:
        hooks.append(raising_hook(stage, make))
    made = tool(name="pay", effect="irreversible", key=("order",))(plain if place == "plain body" else pay)
    async with Gate([made], hooks=hooks, allow_unguarded=True, effects=Effects(durable=False)) as gate:
        first = await gate.call(ToolCall(id="a", name="pay", arguments={"order": "7"}), user=ANN)
        assert permits.taken == 0
        assert rows
        again = await gate.call(ToolCall(id="b", name="pay", arguments={"order": "7"}), user=ANN)
        assert permits.taken == 0
    assert first.ok is (stage in {Stage.WILL_AUDIT, Stage.WILL_FINALIZE_INVOKE})
    assert again.outcome != "in_flight"
    if not first.ok:
        assert first.error is not None
        assert isinstance(first.error.public, str)
        assert first.error.public != "x"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


# ---------------------------------------------------------------------- groups

OURS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "denied": (lambda: Denied("no"), "denied"),
    "retry later": (lambda: RetryLater(5), "retry_later"),
    "invalid": (lambda: Invalid("no"), "invalid"),
    "tool error": (lambda: ToolError("The account is closed."), "error"),
    "respond": (lambda: ControlRespond("instead"), "success"),
}


async def in_task_group(*makes: Callable[[], BaseException]) -> None:
    async def fails(make: Callable[[], BaseException]) -> None:
        raise make()

    async with asyncio.TaskGroup() as group:
        for make in makes:
            group.create_task(fails(make))
        await asyncio.sleep(60)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("place", ["body", "wrapped body", "plain hook", "async hook", "around"])
@pytest.mark.parametrize("name", OURS)
async def test_an_error_of_ours_that_leaves_a_task_group_keeps_its_meaning(name: str, place: str, nested: bool) -> None:
    make, outcome = OURS[name]

    async def fails() -> None:
        if nested:
            async with asyncio.TaskGroup() as group:
                group.create_task(in_task_group(make))
        else:
            await in_task_group(make)

    class Wraps(Hook):
        async def around_execute(self, ctx: Any, next: Any) -> Any:
            if place == "around":
                await fails()
            return await next()

    class Decides(Hook):
        async def will_authorize_input(self, ctx: Any) -> None:
            if place == "async hook":
                await fails()

        def will_authorize(self, ctx: Any) -> None:
            if place == "plain hook":
                raise BaseExceptionGroup("g", [BaseExceptionGroup("h", [make()])] if nested else [make()])

    async def look() -> str:
        if "body" in place:
            await fails()
        return "output"

    hooks: list[Hook] = [Decides(), *([Wraps()] if place in {"wrapped body", "around"} else [])]
    async with Gate([tool(effect="read")(look)], hooks=hooks) as gate:
        result = await gate.call(ToolCall(id="a", name="look", arguments={}), user=ANN)
    if name == "tool error" and "hook" in place:
        outcome = "denied"  # a policy that fails denies
    assert result.outcome == outcome, result
    if name == "respond":
        assert result.output == "instead"
    if name == "tool error":
        assert result.error is not None
        assert result.error.public == "The account is closed."
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize(
    ("members", "outcome"),
    [
        ([ToolError("t"), Denied("d"), RetryLater(5)], "denied"),
        ([ToolError("t"), Invalid("i")], "invalid"),
        ([ValueError("v"), RetryLater(5), ToolError("t")], "retry_later"),
        ([ControlRespond("r"), ToolError("t")], "error"),
        ([ValueError("v"), KeyError("k")], "error"),
    ],
)
async def test_of_several_errors_the_strictest_counts(members: list[BaseException], outcome: str) -> None:
    async def look() -> None:
        raise BaseExceptionGroup("g", members)

    async with Gate([tool(effect="read")(look)]) as gate:
        result = await gate.call(ToolCall(id="a", name="look", arguments={}), user=ANN)
    assert result.outcome == outcome


@pytest.mark.parametrize("place", ["body", "hook", "around"])
@pytest.mark.parametrize(
    ("members", "logged"),
    [
        ([ToolError("t"), ValueError("v")], ["ValueError"]),
        ([ExceptionGroup("h", [Denied("d"), KeyError("k")]), ValueError("v")], ["KeyError", "ValueError"]),
        ([Denied("d"), RaisingClass()], ["RaisingClass"]),
        ([ToolError("t"), Denied("d")], []),
    ],
)
async def test_a_fault_beside_the_error_that_counts_is_logged(
    members: list[Exception], logged: list[str], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ExceptionGroup("g", members)

    class Fails(Hook):
        def will_authorize(self, ctx: Any) -> None:
            if place == "hook":
                fail()

        async def around_execute(self, ctx: Any, next: Any) -> Any:
            if place == "around":
                fail()
            return await next()

    async def look() -> None:
        if place == "body":
            fail()

    async with Gate([tool(effect="read")(look)], [Fails()]) as gate:
        await gate.call("look", {}, user=ANN)
    shown = [one for one in caplog.records if one.msg == "%s %s" and "exception" in vars(one)["callgate"]]
    assert len(shown) == bool(logged)
    assert all(name in vars(one)["callgate"]["exception"] for one in shown for name in logged)


@pytest.mark.parametrize("hides", ["group", "cause", "context"])
@pytest.mark.parametrize("kind", [RaisingGetattr, RaisingGetattribute, RaisingClass, RaisingText, RaisingNoEffect])
async def test_a_fault_is_logged_whatever_stands_behind_it(
    kind: type[Exception], hides: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def look() -> None:
        if hides == "group":
            raise ExceptionGroup("g", [kind(), KeyError("k")])
        if hides == "cause":
            raise KeyError("k") from kind()
        try:
            raise kind()
        except kind:
            raise KeyError("k")  # noqa: B904  (the context is meant)

    async with Gate([tool(effect="read")(look)]) as gate:
        await gate.call("look", {}, user=ANN)
    (shown,) = [vars(one)["callgate"] for one in caplog.records if one.levelname == "ERROR"]
    assert shown["event"] == "call.failed"
    assert "KeyError" in shown["exception"]
    assert kind.__name__ in shown["exception"]


@pytest.mark.parametrize("other", [None, ValueError("maybe it took effect")])
async def test_a_group_says_no_effect_only_if_all_its_members_do(other: Exception | None) -> None:
    runs: list[int] = []

    async def pay(order: str) -> None:
        runs.append(1)
        members = [ToolError("t", no_effect=True), Denied("d", no_effect=True), *([other] if other else [])]
        raise ExceptionGroup("g", members)

    made = tool(effect="irreversible", key=("order",))(pay)
    async with Gate([made], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        for call_id in "ab":
            await gate.call(ToolCall(id=call_id, name="pay", arguments={"order": "7"}), user=ANN)
    assert len(runs) == (1 if other else 2)


# ---------------------------------------------------------------------- plain callables that return an awaitable


def plainly(function: Any) -> Any:
    """Wrap an async function in a plain one, as a decorator of another library does."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_an_async_tool_behind_a_plain_decorator_runs_and_its_effect_is_what_it_did(
    inline: bool, fails: bool
) -> None:
    runs: list[asyncio.AbstractEventLoop] = []

    async def pay(order: str) -> str:
        await asyncio.sleep(0)
        runs.append(asyncio.get_running_loop())
        if fails:
            raise ToolError("closed", no_effect=True)
        return "paid"

    made = tool(effect="irreversible", key=("order",), inline=inline)(plainly(pay))
    async with Gate([made], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        results = [
            await gate.call(ToolCall(id=call_id, name="pay", arguments={"order": "7"}), user=ANN) for call_id in "ab"
        ]
    if fails:
        assert len(runs) == 2
        assert [result.error.public for result in results if result.error] == ["closed", "closed"]
    else:
        assert runs == [asyncio.get_running_loop()]
        assert [result.output for result in results] == ["paid", "paid"]
        assert results[1].replayed


async def test_a_plain_tool_may_return_a_nested_call() -> None:
    @tool(effect="read")
    async def inner(n: int) -> int:
        return n + 1

    from callgate import ToolContext

    @tool(effect="read")
    def outer(n: int, ctx: ToolContext) -> Any:
        return ctx.call("inner", {"n": n})

    async with Gate([inner, outer]) as gate:
        result = await gate.call(ToolCall(id="a", name="outer", arguments={"n": 1}), user=ANN)
    assert (result.outcome, result.output) == ("success", 2)
