"""Unexpected exceptions are logged once, with a traceback that shows neither arguments nor secrets."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import quote_plus

import pytest

from callgate import (
    Gate,
    Hook,
    InvokeContext,
    Scoped,
    ToolCall,
    ToolContext,
    ToolError,
    ToolFailed,
    User,
    configure_logging,
)
from callgate import tool as declared
from callgate.errors import Denied, Invalid, RetryLater
from callgate.hooks.stock.policy.authorize import Authorize
from callgate.providers import faults, logs
from callgate.providers.argument_mask import MAX_CHARACTERS, PART, ArgumentMask
from callgate.providers.faults import MAX_TRACEBACK, fault_of, traceback_of
from callgate.threads import ParsedToolCall, ToolSystem, ToolSystemFault


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    configure_logging(found.append, level="DEBUG")
    yield found
    configure_logging()


@pytest.fixture
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging()
    monkeypatch.setattr(logs, "_has_handler", lambda: False)  # pytest's own handlers


def traced(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if "exception" in event]


def breaking(error: Callable[[str], BaseException] = LookupError) -> Any:
    @declared(name="look", effect="read")
    async def look(what: str) -> str:
        """Look it up."""
        raise error(f"nothing under {what}")

    return look


async def call(gate: Gate, tool: Any, arguments: Any = None, **options: Any) -> Any:
    return await gate.call(ToolCall(id="c1", name=tool.definition.name, arguments=arguments or {}), **options)


# ---------------------------------------------------------------------- once, with its traceback


class Flaky(Hook):
    """A wrapper that deals with the failure of its first attempts in its own way."""

    repeats = True

    def __init__(self, way: str) -> None:
        self.way = way

    async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
        try:
            return await next()
        except LookupError as error:
            if self.way == "answers":
                return "from elsewhere"
            if self.way == "decides":
                raise ToolError("Try later.") from error
            if self.way == "replaces":
                raise RuntimeError("replaced") from None
            if self.way == "raises":
                raise
        try:
            return await next()
        except LookupError:
            return await next()


def failing_at_first(times: int) -> Any:
    attempts: list[int] = []

    @declared(name="look", effect="read")
    async def look(what: str) -> str:
        """Look it up."""
        attempts.append(1)
        if len(attempts) <= times:
            raise LookupError(f"nothing under {what}, attempt {len(attempts)}")
        return "found"

    return look


@pytest.mark.parametrize(
    ("way", "outcome", "told"),
    [
        ("retries", "success", ["call.attempt_failed", "call.attempt_failed"]),
        ("answers", "success", ["call.attempt_failed"]),
        ("decides", "error", ["call.attempt_failed"]),
        ("replaces", "error", ["call.attempt_failed", "call.failed"]),
        ("raises", "error", ["call.failed"]),
    ],
)
async def test_an_exception_that_a_wrapper_handles_is_logged_once_with_its_traceback(
    events: list[dict[str, Any]], way: str, outcome: str, told: list[str]
) -> None:
    """Issue 15, F."""
    look = failing_at_first(2)
    async with Gate([look], [Flaky(way)]) as gate:
        result = await call(gate, look, {"what": "CANARY"})
    assert result.outcome == outcome
    found = traced(events)
    assert [event["event"] for event in found] == told
    first = found[0]
    assert (first["stage"], first["hook"], first["level"]) == ("will_execute", "tool", "error")
    for number in range(1, 1 + sum("LookupError" in event["exception"] for event in found)):
        (text,) = [event["exception"] for event in found if f"attempt {number}" in event["exception"]]
        assert "in look" in text
        assert "CANARY" not in text


async def test_an_exception_passes_nested_wrappers_and_is_logged_by_the_one_that_handles_it(
    events: list[dict[str, Any]],
) -> None:
    """Issue 15, F."""

    class Passes(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
            return await next()

    look = failing_at_first(1)
    async with Gate([look], [Passes(), Flaky("answers"), Passes()]) as gate:
        assert (await call(gate, look, {"what": "x"})).output == "from elsewhere"
    assert [event["event"] for event in traced(events)] == ["call.attempt_failed"]


@pytest.mark.parametrize("decision", [ToolError("No."), Denied("no"), RetryLater(5)])
async def test_a_decision_that_a_wrapper_handles_is_no_fault_and_is_not_logged(
    events: list[dict[str, Any]], decision: Exception
) -> None:
    """Issue 15, F: and a call that does not fail logs nothing."""

    class Answers(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
            try:
                return await next()
            except type(decision):
                return "an answer"

    @declared(name="look", effect="read")
    async def look(fails: bool) -> str:
        """Look it up."""
        if fails:
            raise decision
        return "found"

    async with Gate([look], [Answers()]) as gate:
        for fails in (True, False):
            assert (await call(gate, look, {"fails": fails})).ok
    assert [event["event"] for event in events if event["event"].startswith("call.")] == []


async def test_an_exception_of_a_tool_is_logged_once_with_its_traceback_and_without_arguments(events: Any) -> None:
    look = breaking()
    async with Gate([look]) as gate:
        result = await call(gate, look, {"what": "the-canary-order"})
    (event,) = traced(events)
    assert (event["event"], event["level"]) == ("call.failed", "error")
    assert "in look" in event["exception"]
    assert "LookupError: nothing under ***" in event["exception"]
    assert "canary" not in str(events)
    assert result.error.correlation_id == event["request_id"]
    assert "under" not in str(result.error)


@pytest.mark.parametrize("stage", ["will_authorize", "did_execute", "will_audit", "will_finalize_invoke", "on_metrics"])
@pytest.mark.parametrize("way", [{}, {"on_failure": "ignore"}, {"mode": "shadow"}])
async def test_an_exception_of_a_hook_is_logged_once_whatever_becomes_of_it(
    events: Any, stage: str, way: dict[str, Any]
) -> None:
    async def breaks(self: Any, ctx: InvokeContext) -> None:
        raise LookupError("in a hook")

    @declared(effect="read")
    async def fine() -> str:
        """Work."""
        return "fine"

    hook = type("Breaks", (Hook,), {stage: breaks, **way})()
    async with Gate([fine], [hook]) as gate:
        result = await call(gate, fine)
    (event,) = traced(events)
    assert (event["stage"], event["level"]) == (stage, "error")
    assert event["hook"].startswith("Breaks")
    assert "LookupError: in a hook" in event["exception"]
    if not result.ok:
        assert result.error.correlation_id == event["request_id"]


async def test_a_policy_that_failed_to_run_carries_the_id_of_its_traceback(events: Any) -> None:
    class Policy(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            raise ConnectionError("no policy service")

    look = breaking()
    async with Gate([look], [Policy()]) as gate:
        with pytest.raises(Denied, match="a policy failed to run") as refused:
            await gate.invoke(look, {"what": "it"})
    (event,) = traced(events)
    assert refused.value.correlation_id == event["request_id"]
    assert "ConnectionError" in event["exception"]


@pytest.mark.parametrize("decision", [Denied("no"), RetryLater(5), ToolError("Not that one."), Invalid("no")])
async def test_a_decision_is_no_unexpected_exception(events: Any, decision: Exception) -> None:
    @declared(effect="read")
    async def decides() -> str:
        """Decide."""
        raise decision from KeyError("what led to it")

    async with Gate([decides]) as gate:
        assert not (await call(gate, decides)).ok
    assert traced(events) == []


@pytest.mark.parametrize("wrap", [False, True])
async def test_an_exception_that_nested_calls_pass_on_is_logged_once(events: Any, wrap: bool) -> None:
    look = breaking()

    @declared(effect="read")
    async def outer(what: str, ctx: ToolContext) -> str:
        """Call the other tool."""
        try:
            return str(await ctx.call(look, {"what": what}))
        except ToolFailed as error:
            if wrap:
                raise RuntimeError("the inner one failed") from error
            raise

    async with Gate([look, outer]) as gate:
        result = await call(gate, outer, {"what": "the-canary"})
    text = "\n".join(event["exception"] for event in traced(events))
    assert text.count("in look\n") == 1
    assert len(traced(events)) == 1 + wrap
    assert {event["request_id"] for event in events if "request_id" in event} == {result.error.correlation_id}
    assert "canary" not in str(events)


async def test_the_same_exception_object_is_logged_again_in_another_call(events: Any) -> None:
    known = OSError("always the same object")

    @declared(effect="read")
    async def always() -> str:
        """Fail."""
        raise known

    async with Gate([always]) as gate:
        for _ in range(2):
            await call(gate, always)
    assert len(traced(events)) == 2


async def test_a_hook_that_passes_the_exception_on_does_not_log_it_twice(events: Any) -> None:
    class Passes(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            try:
                return await next()
            except LookupError as error:
                ctx.suppress(error)
                raise

    look = breaking()
    async with Gate([look], [Passes()]) as gate:
        await call(gate, look, {"what": "it"})
    assert len(traced(events)) == 1


async def test_a_provider_that_fails_is_logged_in_its_factory_and_in_its_exit(events: Any) -> None:
    class Db: ...

    class Cache: ...

    def connect() -> Db:
        raise ConnectionError("no database")

    async def open_cache() -> AsyncIterator[Cache]:
        try:
            yield Cache()
        finally:
            raise OSError("the cache does not close")

    @declared(effect="read")
    async def reads(ctx: ToolContext) -> str:
        """Read."""
        await ctx.resolve(Cache)  # type: ignore[attr-defined]
        return str(ctx.get(Db))

    async with Gate([reads], provide={Db: Scoped("request", connect), Cache: Scoped("request", open_cache)}) as gate:
        await call(gate, reads)
    made, closed = traced(events)
    assert "ConnectionError: no database" in made["exception"]
    assert "OSError: the cache does not close" in closed["exception"]


@pytest.mark.parametrize("kind", ["authorize", "visible"])
async def test_a_rule_that_fails_is_logged_where_it_decides_and_where_it_only_hides_the_tool(
    events: Any, kind: str
) -> None:
    class Broken:
        id = "broken"

        def before_input(self, user: User, definition: Any) -> Any:
            raise ZeroDivisionError("a rule")

        def on_input(self, user: User, definition: Any, arguments: Any) -> Any:
            raise AssertionError

    look = breaking()
    broken: Any = Broken()
    async with Gate([look], [Authorize(broken)]) as gate:
        if kind == "authorize":
            await call(gate, look, {"what": "it"})
        else:
            assert gate.definitions(user=User("ann")) == []
    (event,) = traced(events)
    assert "ZeroDivisionError: a rule" in event["exception"]


async def test_the_construction_of_a_hook_class_that_fails_is_logged(events: Any) -> None:
    class Constructed(Hook):
        def __init__(self) -> None:
            raise AttributeError("no such setting")

        def will_authorize(self, ctx: InvokeContext) -> None: ...

    look = breaking()
    async with Gate([look], [Constructed]) as gate:
        result = await call(gate, look, {"what": "it"})
    assert not result.ok
    (event,) = traced(events)
    assert "AttributeError: no such setting" in event["exception"]


# ---------------------------------------------------------------------- where it goes


async def test_where_nothing_is_configured_the_traceback_is_on_stderr(nothing_configured: None, capsys: Any) -> None:
    look = breaking()
    async with Gate([look]) as gate:
        result = await call(gate, look, {"what": "the-canary"})
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1
    assert f"request_id='{result.error.correlation_id}'" in said
    assert "canary" not in said


async def test_it_goes_through_the_structlog_configuration_of_the_application(
    nothing_configured: None, capsys: Any
) -> None:
    import structlog

    found: list[Any] = []

    def keep(_logger: Any, method: str, event: Any) -> Any:
        found.append({**event, "log_level": method})
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    try:
        look = breaking()
        async with Gate([look]) as gate:
            await call(gate, look, {"what": "the-canary"})
    finally:
        structlog.reset_defaults()
    (event,) = [one for one in found if "exception" in one]
    assert (event["event"], event["log_level"], event["tool"]) == ("call.failed", "error", "look")
    assert "canary" not in str(found)
    assert capsys.readouterr().err == ""


async def test_development_mode_prints_it_in_full_once_with_the_stage_and_the_hook(
    nothing_configured: None, capsys: Any
) -> None:
    class Breaks(Hook):
        on_failure = "ignore"

        def did_execute(self, ctx: InvokeContext) -> None:
            raise LookupError("in a hook")

    look = breaking(ValueError)

    @declared(effect="read")
    async def fine() -> str:
        """Work."""
        return "fine"

    async with Gate([look, fine], [Breaks()], mode="development") as gate:
        await call(gate, look, {"what": "the-whole-text"})
        await call(gate, fine)
    said = capsys.readouterr().err
    assert said.count("Traceback") == 2
    assert "ValueError: nothing under the-whole-text" in said
    assert "Breaks.did_execute failed" in said
    assert "tool.will_execute failed" in said


# ---------------------------------------------------------------------- hostile and large exceptions


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit("from __str__")

    __repr__ = __str__


class Huge(Exception):
    def __str__(self) -> str:
        return "x y " * 1_000_000


def chained(length: int) -> Exception:
    error = Exception("the first")
    for number in range(length):
        following = Exception(f"number {number}")
        following.__cause__ = error
        error = following
    return error


def deep(depth: int) -> Exception:
    def again(left: int) -> None:
        if left:
            again(left - 1)
        raise LookupError("at the bottom")

    try:
        again(depth)
    except LookupError as error:
        return error
    raise AssertionError


def circular() -> Exception:
    first, second = Exception("one"), Exception("two")
    first.__cause__, second.__cause__ = second, first
    return first


def grouped(depth: int) -> Exception:
    error: Exception = LookupError("a member")
    for _ in range(depth):
        members: list[Exception] = [error, ValueError("another member")]
        error = ExceptionGroup("a group", members)
    return error


LARGE: dict[str, Callable[[], Exception]] = {
    "hostile": Hostile,
    "huge": Huge,
    "a chain": lambda: chained(20_000),
    "deep": lambda: deep(300),
    "a circle": circular,
    "groups": lambda: grouped(50),
    "a wide group": lambda: ExceptionGroup("wide", [ValueError(str(n)) for n in range(5_000)]),
    "forged": lambda: ValueError("x\ncallgate: call.failed forged\r\ncallgate: more"),
}


@pytest.mark.parametrize("kind", LARGE)
async def test_any_exception_leaves_a_traceback_of_limited_size(events: Any, kind: str) -> None:
    @declared(effect="read")
    async def fails() -> str:
        """Fail."""
        error = LARGE[kind]()
        raise error

    async with Gate([fails]) as gate:
        result = await call(gate, fails)
    assert result.error.code == "tool_failed"
    (event,) = traced(events)
    assert len(event["exception"]) <= MAX_TRACEBACK + 100
    assert "\ncallgate" not in event["exception"]
    assert "in fails" in event["exception"] or kind == "a chain"


async def test_secrets_and_everything_that_quotes_an_argument_are_masked(events: Any) -> None:
    """In part, in another case, as a number, encoded, in a note and in a cause."""
    document = "Lorem ipsum dolor sit amet, consectetur adipiscing " * 20

    @declared(effect="read")
    async def quotes(text: str, age: int, inner: dict[str, str]) -> str:
        """Quote."""
        error = ValueError(f"{text[:200]!r} of {age}, {base64.b64encode(text[:90].encode())!r}, password=hunter2")
        error.add_note(f"it was {text.upper()[20:60]}")
        raise error from KeyError(next(iter(inner)))

    arguments = {"text": document, "age": 4711, "inner": {"a-foreign-key": "x"}}
    async with Gate([quotes]) as gate:
        await call(gate, quotes, arguments)
    (event,) = traced(events)
    shown = event["exception"]
    for part in ("ipsum", "IPSUM", "consectetur", "4711", "hunter2", "a-foreign-key"):
        assert part not in shown
    assert "ValueError" in shown


def test_more_arguments_than_can_be_searched_for_hide_the_whole_message() -> None:
    assert ArgumentMask([{"text": "x" * (MAX_CHARACTERS + 1)}])("any message") == "***"
    assert ArgumentMask([{"many": list(range(5_000))}])("any message") == "***"
    assert ArgumentMask([object()])("any message") == "***"
    assert ArgumentMask([{"some": "short"}])("some message, a short text") == "*** message, a *** text"
    assert ArgumentMask([{"some": "short"}], ["some"])("some message, a short text") == "some message, a *** text"


@pytest.mark.parametrize("value", [1, 0, 47, -1, "id", "abc", "a", 999, 1.5])
def test_a_message_can_be_read_although_an_argument_has_fewer_than_four_characters(value: Any) -> None:
    """A mask for each ``1`` makes a message unreadable, and three characters are found by trying."""
    message = f"row {value} of 1 in table id: abc failed"
    assert ArgumentMask([{"x": value, value: [value]}])(message) == message


SHOWN: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper": str.upper,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "behind another byte": lambda text: base64.b64encode(b"-" + text.encode()).decode(),
    "in a URL": quote_plus,
    "hexadecimal": lambda text: text.encode().hex(),
    "JSON": json.dumps,
}


@pytest.mark.parametrize("around", [1, 40], ids=["a short text", "a long text"])
@pytest.mark.parametrize("value", ["blue?~>+ whale/9", "Größe der Wale"])
@pytest.mark.parametrize("spell", SHOWN)
def test_each_spelling_of_an_argument_is_masked_in_any_text(spell: str, value: str, around: int) -> None:
    """Which spellings are made depends on the text; what the text shows does not."""
    shown, said = SHOWN[spell](value), "it said: " * around
    masked = ArgumentMask([{"x": value}])(f"{said}<{shown}>")
    assert "***" in masked
    assert all(shown[at : at + PART] not in masked for at in range(4, len(shown) - PART - 4))
    assert ArgumentMask([{"x": value}])(said) == said, "the control: a text without it stays as it is"


def test_control_a_value_of_four_characters_is_masked() -> None:
    assert ArgumentMask([{"x": 1234}])("row 1234 failed") == "row *** failed"


def test_the_probe_finds_an_argument_where_the_mask_is_missing() -> None:
    """The control."""
    error = ValueError("quotes the-canary")
    assert "canary" in traceback_of(error, lambda text: text)
    assert "canary" not in traceback_of(error, ArgumentMask(["the-canary"]))


def test_a_group_and_a_library_error_are_faults_and_a_cancellation_is_none() -> None:
    assert fault_of(ExceptionGroup("g", [Denied("no")])) is not None
    assert fault_of(asyncio.CancelledError()) is None
    assert fault_of(ToolFailed("x", code="tool_failed")) is None
    assert faults.logged_as(ValueError()) is None


# ---------------------------------------------------------------------- ctx.log


async def test_the_log_of_a_context_has_the_ids_of_the_call_and_masks_secrets(events: Any) -> None:
    class Logs(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            ctx.log.bind(rule=7).info("allowed", password="hunter2", tool="forged")

    @declared(effect="read")
    async def talks(ctx: ToolContext) -> str:
        """Talk."""
        try:
            raise LookupError("handled")
        except LookupError:
            ctx.log.exception("went on without it", event="reserved")
        return "done"

    async with Gate([talks], [Logs()]) as gate:
        await call(gate, talks, user=User("ann", tenant="acme"), request_id="r1")
    allowed, handled = (event for event in events if event["event"] in {"allowed", "went on without it"})
    for event in (allowed, handled):
        assert [event[name] for name in ("tool", "request_id", "call_id", "tenant", "user")] == [
            "talks", "r1", "c1", "acme", "ann",
        ]  # fmt: skip
    assert (allowed["rule"], allowed["password"], allowed["tool_"]) == (7, "***", "forged")
    assert "LookupError: handled" in handled["exception"]
    assert handled["event_"] == "reserved"


async def test_the_log_of_a_context_reaches_stderr_from_a_warning_on_where_nothing_is_configured(
    nothing_configured: None, capsys: Any
) -> None:
    @declared(effect="read")
    async def talks(ctx: ToolContext) -> str:
        """Talk."""
        ctx.log.info("quiet")
        ctx.log.warning("aloud")
        return "done"

    async with Gate([talks]) as gate:
        await call(gate, talks)
    said = capsys.readouterr().err
    assert said.startswith("callgate: aloud tool='talks'")
    assert "quiet" not in said


def test_one_line_an_event_also_with_a_traceback() -> None:
    file = io.StringIO()
    configure_logging(file)
    logs.emit(logs.LogEvent.JOB_STORE_FAILED, error=OSError("no store"))
    configure_logging()
    assert file.getvalue().count("\n") == 1


async def test_a_fault_of_the_store_behind_a_tool_system_is_logged(events: Any) -> None:
    """Contract 73."""

    class Broken:
        def enabled_tools(self, thread_id: str) -> Any:
            raise ConnectionError("no state")

    def report(fault: ToolSystemFault) -> None:
        raise ZeroDivisionError("the report")

    look = breaking()
    async with Gate([look]) as gate:
        state: Any = Broken()
        system = ToolSystem(gate, state=state, on_fault=report)
        results = await system.execute_tools([ParsedToolCall("c1", "look", {"what": "it"})], "thread", "trace")
    assert [result.outcome for result in results] == ["denied"]
    store, reported = traced(events)
    assert (store["event"], store["fault"]) == ("tool_system.failed", "tool_system.state_failed")
    assert "ConnectionError: no state" in store["exception"]
    assert "ZeroDivisionError: the report" in reported["exception"]


async def test_an_exception_of_a_tool_that_runs_as_a_job_is_logged_once_too(events: list[dict[str, Any]]) -> None:
    """It runs in a worker, where nobody waits for it: the log is the only place where it shows."""
    tool = breaking()
    gate = Gate([tool], allow_unguarded=True)
    async with gate:
        handle = await gate.submit(tool, {"what": "a needle"}, user=User("ann", "acme"))
        result = await handle.result()
    (event,) = traced(events)
    assert result.error is not None
    assert event["request_id"] == result.error.correlation_id
    assert "LookupError" in event["exception"]
    assert "needle" not in event["exception"]
