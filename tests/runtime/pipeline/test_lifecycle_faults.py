"""What a tool does wrong stays its own: the host goes on, and no text of it reaches a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError as ThreadCancelled
from dataclasses import replace
from typing import Any

import pytest

from callgate import (
    Denied,
    Gate,
    Hook,
    Invalid,
    InvocationError,
    InvokeContext,
    Outcome,
    RetryLater,
    Stage,
    ToolCall,
    ToolError,
    ToolFailed,
    ToolRecord,
    invoke_tool,
)
from callgate.hooks.stages import Section, stages_in
from callgate.runtime.models.wire.result_text import result_text
from callgate.tools import Issue
from callgate.tools.record import Style
from tests.hooks.making import DEFINITION, USER, Watch, at, call, record, refusing

CANARY = "c4n4ry"
STOPPERS: list[type[BaseException]] = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
ORDINARY: list[type[BaseException]] = [
    StopIteration, StopAsyncIteration, asyncio.InvalidStateError, asyncio.TimeoutError, ThreadCancelled,
    RecursionError, MemoryError, AssertionError, NotImplementedError,
]  # fmt: skip
FREE = replace(DEFINITION, output_schema=None)


def body(kind: str, error: type[BaseException]) -> ToolRecord:
    """A tool of some kind that raises."""

    async def coroutine(n: int) -> int:
        raise error(CANARY)

    async def waits(n: int) -> int:
        await asyncio.sleep(0)
        raise error(CANARY)

    def plain(n: int) -> int:
        raise error(CANARY)

    async def parts(n: int) -> AsyncIterator[int]:
        yield n
        raise error(CANARY)

    async def by_record(arguments: Any, ctx: Any) -> int:
        raise error(CANARY)

    if kind == "record":
        return ToolRecord(DEFINITION, by_record, Style.RECORD)
    if kind == "component":
        made = type("T", (), {"__init__": lambda self, arguments: None, "run": lambda self: coroutine(1)})
        return ToolRecord(DEFINITION, made, Style.COMPONENT)
    if kind == "stream":
        return record(parts, FREE, streams=True)
    if kind == "thread":
        return record(plain, is_async=False)
    if kind == "inline":
        return record(plain, is_async=False, inline=True)
    if kind == "hard deadline":
        return record(coroutine, hard_deadline=True, deadline=60)
    return record(waits if kind == "waits" else coroutine, deadline=60 if kind == "deadline" else None)


KINDS = ["coroutine", "waits", "deadline", "record", "component", "stream", "thread", "inline", "hard deadline"]
AROUND = {
    "nothing": (),
    "a wrapper": (Stage.AROUND_EXECUTE,),
    "two wrappers": (Stage.AROUND_EXECUTE, Stage.AROUND_EXECUTE),
    "hooks about it": (Stage.WILL_EXECUTE, Stage.DID_EXECUTE),
}


def in_a_loop_of_its_own(tool: ToolRecord, *hooks: Any) -> Any:
    """The result of a call, when the loop survives it; a loop that stops for good must not take pytest with it."""

    async def run() -> Any:
        async with asyncio.timeout(100):
            return await call(tool, *hooks)

    try:
        with asyncio.Runner() as runner:
            runner.get_loop().set_exception_handler(lambda loop, context: None)
            return runner.run(run())
    except BaseException as error:  # noqa: BLE001
        pytest.fail(f"the host did not survive: {error!r}")


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("error", STOPPERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_cannot_stop_its_host(kind: str, error: type[BaseException], around: str) -> None:
    """Contract I9, I13."""
    watch = Watch(*stages_in(Section.CLOSING), Stage.WILL_ACQUIRE_QUOTA, Stage.ON_ERROR)
    hooks = [at(stage, lambda ctx: None) for stage in AROUND[around]]
    result = in_a_loop_of_its_own(body(kind, error), *hooks, watch.hook)
    assert result.outcome is Outcome.ERROR
    assert result.error.code == "tool_crashed"
    assert CANARY not in json.dumps([result.error.public, result_text(result)])
    assert isinstance(watch.ctx.error, ToolFailed)
    assert isinstance(watch.ctx.error.__cause__, error)
    assert Stage.DID_RELEASE_QUOTA in watch.stages
    assert watch.stages[-1] is Stage.WILL_FINALIZE_INVOKE


@pytest.mark.parametrize("error", ORDINARY)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_exceptions_are_failures_like_others(kind: str, error: type[BaseException]) -> None:
    """Contract 101, I9, I13."""
    result = in_a_loop_of_its_own(body(kind, error))
    assert result.outcome is Outcome.ERROR
    assert result.error.code in {"tool_failed", "tool_crashed"}
    assert CANARY not in json.dumps([result.error.public, result_text(result)])


@pytest.mark.parametrize("error", STOPPERS)
async def test_a_crash_is_raised_as_a_failure_of_the_tool(error: type[BaseException]) -> None:
    """Contract 101, I13."""
    with pytest.raises(ToolFailed, match=f"the tool raised {error.__name__}") as bare:
        await invoke_tool(body("coroutine", error), {"n": 1})
    assert isinstance(bare.value.__cause__, error)
    async with Gate([body("coroutine", error)]) as gate:
        with pytest.raises(ToolFailed) as gated:
            await gate.invoke("double", {"n": 1})
        assert gated.value.code == "tool_crashed"
        results = await gate.call_many([ToolCall(id=f"c{n}", name="double", arguments={"n": n}) for n in range(3)])
        assert [result.outcome for result in results] == [Outcome.ERROR] * 3


@pytest.mark.parametrize("error", STOPPERS)
async def test_a_crash_may_be_retried_like_any_failure(error: type[BaseException]) -> None:
    """Contract 102, I13."""
    runs: list[int] = []

    async def execute(n: int) -> int:
        runs.append(n)
        if len(runs) == 1:
            raise error(CANARY)
        return n

    class Retry(Hook):
        repeats = True

        async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
            try:
                return await next()
            except ToolFailed:
                return await next()

    result = await call(record(execute), Retry())
    if error in {asyncio.CancelledError, GeneratorExit}:  # a wrapper cannot tell it from a real one
        assert result.outcome is Outcome.ERROR
    else:
        assert (result.output, runs) == (2, [2, 2])


async def test_a_hook_that_raises_what_stops_a_host_denies_or_fails() -> None:
    """Contract C22, I6, I13."""
    for error in (SystemExit(CANARY), asyncio.CancelledError(CANARY), BaseExceptionGroup("x", [SystemExit()])):
        for stage, outcome in {Stage.WILL_AUTHORIZE: Outcome.DENIED, Stage.WILL_ACQUIRE_QUOTA: Outcome.ERROR}.items():
            result = await call(record(), at(stage, refusing(error)))
            assert result.outcome is outcome
            assert result.error is not None
            assert result.error.code in {"policy_error", "hook_failed"}, (error, stage)
            assert CANARY not in result_text(result)


# What a model reads


class Talkative(Exception):
    def __str__(self) -> str:
        return f"str {CANARY}"

    def __repr__(self) -> str:
        return f"repr {CANARY}"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError(CANARY)

    __repr__ = __str__


def with_notes() -> Exception:
    error = ValueError(CANARY)
    error.add_note(f"note {CANARY}")
    return error


def with_cause(inner: BaseException) -> Exception:
    try:
        try:
            raise inner
        except BaseException as error:
            raise LookupError(CANARY) from error
    except LookupError as error:
        return error


def with_attributes() -> Exception:
    error = RuntimeError(CANARY)
    error.__dict__.update(public=CANARY, code=CANARY, issues=[CANARY], retry_after=CANARY, correlation_id=CANARY)
    return error


def with_public_cause() -> Exception:
    error = ToolError("The order is closed.")
    error.__cause__ = ValueError(CANARY)
    error.add_note(CANARY)
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "message": lambda: ValueError(CANARY),
    "arguments": lambda: ValueError(CANARY, {"password": CANARY}, 5),
    "no message": ValueError,
    "key": lambda: KeyError(CANARY),
    "path": lambda: FileNotFoundError(2, "No such file", f"/srv/{CANARY}/db.sqlite"),
    "two paths": lambda: OSError(18, "Cross-device", f"/{CANARY}/a", None, f"/{CANARY}/b"),
    "address": lambda: ConnectionError(f"postgresql://admin:{CANARY}@db:5432/prod"),
    "unicode": lambda: UnicodeDecodeError("utf-8", CANARY.encode(), 0, 1, CANARY),
    "syntax": lambda: SyntaxError(CANARY, (CANARY, 1, 1, CANARY)),
    "import": lambda: ImportError(CANARY, name=CANARY, path=f"/{CANARY}.py"),
    "attribute": lambda: AttributeError(CANARY, name=CANARY, obj=CANARY),
    "exit": lambda: SystemExit(CANARY),
    "interrupt": lambda: KeyboardInterrupt(CANARY),
    "cancelled": lambda: asyncio.CancelledError(CANARY),
    "timeout": lambda: TimeoutError(CANARY),
    "notes": with_notes,
    "cause": lambda: with_cause(ValueError(CANARY)),
    "deep cause": lambda: with_cause(with_cause(with_notes())),
    "attributes": with_attributes,
    "talkative": Talkative,
    "unprintable": Unprintable,
    "group": lambda: ExceptionGroup(CANARY, [ValueError(CANARY), with_notes()]),
    "nested group": lambda: BaseExceptionGroup(CANARY, [ExceptionGroup(CANARY, [Talkative()]), SystemExit(CANARY)]),
    "denied": lambda: Denied(CANARY),
    "later": lambda: RetryLater(5, CANARY),
    "invalid": lambda: Invalid(CANARY),
    "invalid output": lambda: Invalid(CANARY, stage="output", issues=[CANARY]),
    "failed": lambda: ToolFailed(CANARY),
    "bare invocation error": lambda: InvocationError(CANARY),
    "public, with a cause": with_public_cause,
    "long": lambda: ValueError(CANARY * 10_000),
}


def what_a_model_may_read(result: Any) -> str:
    return " ".join(
        [
            result_text(result),
            repr(result.error),
            json.dumps(dict(result.to_status())),
            json.dumps(dict(result.to_success())),
            json.dumps([str(issue) for issue in result.error.issues]),
        ]
    )


@pytest.mark.parametrize("name", ERRORS)
async def test_no_text_of_an_exception_reaches_a_model(name: str) -> None:
    """Contract I9."""

    async def execute(n: int) -> int:
        error = ERRORS[name]()
        raise error

    places = [Stage.WILL_AUTHORIZE, Stage.WILL_VALIDATE_INPUT, Stage.AROUND_EXECUTE, Stage.WILL_REDACT_OUTPUT]
    results = [await call(record(execute)), await call(record(execute), at(Stage.AROUND_EXECUTE, lambda ctx: None))]
    if not isinstance(ERRORS[name](), KeyboardInterrupt | SystemExit | asyncio.CancelledError):
        results += [await call(record(), at(stage, refusing(ERRORS[name]()))) for stage in places]
        failing = at(Stage.WILL_EXECUTE, refusing(KeyError()))
        results.append(await call(record(), at(Stage.ON_ERROR, refusing(ERRORS[name]())), failing))
    for result in results:
        assert not result.ok
        read = what_a_model_may_read(result)
        assert CANARY not in read
        assert "Traceback" not in read
        assert result.error is not None
        assert len(result.error.correlation_id or "") == 32
    if name.startswith("public"):
        assert results[0].error is not None
        assert results[0].error.public == "The order is closed."


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": CANARY},
        {"n": [CANARY]},
        {"n": {CANARY: CANARY}},
        f'{{"n": "{CANARY}"',
        f"{CANARY}",
        f'{{"n": 1, "n": "{CANARY}"}}',
        f'{{"n": "{CANARY}}}',
        [CANARY],
        {"n": 2.5, "m": CANARY},
    ],
)
async def test_no_value_of_the_arguments_reaches_a_model(arguments: Any) -> None:
    """Contract I9."""
    result = await call(record(), arguments=arguments)
    assert result.outcome is Outcome.INVALID
    assert CANARY not in what_a_model_may_read(result)


LONG = "ж" * 5_000


@pytest.mark.parametrize(
    "act",
    [
        lambda ctx: ctx.abort("no", public=LONG),
        lambda ctx: ctx.retry_after(5, public=LONG),
        refusing(ToolError(LONG)),
        refusing(Invalid("x", public=LONG, issues=[Issue(f"/{n}", "type", LONG) for n in range(100)])),
    ],
)
async def test_what_a_model_reads_of_an_error_is_short(act: Callable[[InvokeContext], None]) -> None:
    """Contract I9."""
    result = await call(record(), at(Stage.WILL_EXECUTE, act))
    assert result.error is not None
    assert 1_000 < len(result.error.public.encode()) <= 2_048
    assert result.error.public.startswith("жжж")
    assert len(result_text(result).encode()) <= 2_048


@pytest.mark.parametrize("letter", ["x", "ж", "字", "\n", "\\", '"', "\x00", "😀"])
@pytest.mark.parametrize("count", [1, 20, 200])
async def test_errors_about_many_long_names_are_short(count: int, letter: str) -> None:
    """Contract I9."""
    result = await call(record(), arguments={"n": 1} | {f"{letter * 200}{number}": number for number in range(count)})
    assert result.outcome is Outcome.INVALID
    assert result.error is not None
    assert len(result.error.public.encode()) <= 2_048
    assert len(result_text(result).encode()) <= 2_048
    assert "\n" not in result.error.public


async def test_an_id_leads_from_what_the_model_read_to_what_happened() -> None:
    """Contract 101, I9."""
    watch = Watch(Stage.WILL_AUDIT)
    async with Gate([body("coroutine", ValueError)], [watch.hook]) as gate:
        result = await gate.call(ToolCall(id="c", name="double", arguments={"n": 1}), user=USER, request_id="r-1")
    assert result.error is not None
    assert result.error.correlation_id == watch.ctx.request_id == "r-1"
    assert CANARY in str(watch.ctx.error and watch.ctx.error.__cause__)
