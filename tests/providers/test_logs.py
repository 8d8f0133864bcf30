"""Logs: fixed names, bound ids, no secret in any sink, silence unless asked, and never a changed outcome."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, ToolCall, ToolError, ToolFailed, User, configure_logging, tool
from callgate.errors import Denied
from callgate.providers import logs
from callgate.providers.ids import new_id
from callgate.providers.logs import IDS, LogEvent, emit
from tests.runtime.pipeline.listening import handled

ROOT = Path(__file__).resolve().parents[2]
ANN = User("ann", tenant="acme")
NAMES = {
    "audit.anchored",
    "audit.dropped",
    "audit.row",
    "call.abandoned",
    "call.attempt_failed",
    "call.asked",
    "call.blocked",
    "call.overran",
    "call.cancelled",
    "call.failed",
    "call.not_validated",
    "hook.output_dropped",
    "output.invalid",
    "call.refused",
    "call.settled",
    "call.suspended",
    "effect.fenced",
    "effect.reconciled",
    "effect.refused",
    "effect.unknown",
    "effect.unsettled",
    "effects.orphaned",
    "job.dead",
    "job.failed",
    "job.left",
    "job.not_sent",
    "job.store_failed",
    "model.answer_lost",
    "model.exchange",
    "model.retried",
    "suspension.damaged",
    "suspension.expired",
    "suspension.resumed",
    "cleanup.failed",
    "definition.warning",
    "gate.closed",
    "gate.loop_closed",
    "gate.opened",
    "hook.failed",
    "hook.shadowed",
    "lint.found",
    "hydration.attempted",
    "pick.failed",
    "pick.fell_back",
    "plan.compiled",
    "provider.failed",
    "rows.pruned",
    "schedule.failed",
    "session.ended",
    "tool_system.failed",
}


@pytest.fixture(autouse=True)
def default_afterwards() -> Iterator[None]:
    yield
    configure_logging()


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """Return the events that a sink gets at every level."""
    found: list[dict[str, Any]] = []
    configure_logging(found.append, level="DEBUG")
    return found


def of(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]


@tool(effect="read")
async def look(what: str) -> str:
    """Look at it."""
    if what == "fails":
        raise ValueError(f"secret canary in {what}")
    if what == "says no":
        raise ToolError("Not that one.")
    if what == "waits":
        await asyncio.sleep(3600)
    return what


class Policy(Hook):
    """Denies, breaks, puts off, or lets pass, as the user is called."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        match ctx.user.id:
            case "no user":
                ctx.abort("not allowed")
            case "late":
                ctx.retry_after(5, "come later")
            case "asks":
                ctx.suspend("approval", "May I?")
            case "breaks":
                raise RuntimeError("the policy service is down")
            case _:
                pass


async def one(what: Any = "it", user: User = ANN, **options: Any) -> Any:
    async with Gate([look], [Policy()]) as gate:
        return await gate.call(
            ToolCall(id="c1", name="look", arguments={"what": what}),
            user=user,
            request_id="r1",
            session_id="s1",
            **options,
        )


# ---------------------------------------------------------------------- names


def test_the_names_of_the_events_are_fixed() -> None:
    """Fixed event names."""
    assert {event.value for event in LogEvent} == NAMES


def emissions() -> list[tuple[str, ast.Call]]:
    """Every ``emit(Event.X, ...)`` in the sources."""
    found = []
    for folder in ("runtime", "hooks", "tools", "providers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
            named = [call for call in calls if ast.unparse(call.func) in {"emit", "logs.emit"}]
            found += [(f"{path.name}:{call.lineno}", call) for call in named]
    return found


def test_every_event_that_is_sent_has_a_fixed_name_and_the_fields_that_its_row_says() -> None:
    """An event in a variable (``event``) is one of the two or three named beside it."""
    assert len(emissions()) > 8
    for where, call in emissions():
        name = re.fullmatch(r"(?:logs\.)?LogEvent\.(\w+)", ast.unparse(call.args[0]))
        fields = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        if name is None:
            assert ast.unparse(call.args[0]) == "event", where
            continue
        assert fields <= {*LogEvent[name[1]].fields}, where


def test_a_logged_call_uses_no_print_and_no_other_logger() -> None:
    """Structlog carries every log."""
    for folder in ("runtime", "hooks", "tools", "providers"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            assert path.name == "logs.py" or not re.search(
                r"^\s*(?:import logging|from logging|print\()", text, re.MULTILINE
            ), path


# ---------------------------------------------------------------------- what is said


async def test_a_call_that_succeeds_logs_nothing_by_itself(events: list[dict[str, Any]]) -> None:
    await one()
    assert [event["event"] for event in events] == ["plan.compiled", "gate.opened", "gate.closed"]


@pytest.mark.parametrize(
    ("what", "user", "name", "outcome", "error", "reason"),
    [
        (7, ANN, "call.refused", "invalid", "Invalid(invalid_arguments)", None),
        ("it", User("no user"), "call.refused", "denied", "Denied(denied)", "not allowed"),
        ("it", User("late"), "call.refused", "retry_later", "RetryLater(retry_later)", "come later"),
        ("says no", ANN, "call.refused", "error", "ToolError(tool_error)", None),
        ("fails", ANN, "call.failed", "error", "ValueError", None),
        ("it", User("breaks"), "call.failed", "denied", "RuntimeError", None),
    ],
)
async def test_a_call_without_a_result_says_once_how_it_ended(
    events: list[dict[str, Any]],
    what: Any,
    user: User,
    name: str,
    outcome: str,
    error: str,
    reason: str | None,
) -> None:
    await one(what, user)
    (event,) = [event for event in events if event["event"].startswith("call.")]
    assert (event["event"], event["outcome"], event["error"], event.get("reason")) == (name, outcome, error, reason)
    assert event["level"] == logging.getLevelName({one.value: one for one in LogEvent}[name].level).lower()


async def test_what_is_bound_to_an_event_are_the_ids_of_its_call(events: list[dict[str, Any]]) -> None:
    """Bound ids."""
    await one("fails")
    (event,) = of(events, "call.failed")
    assert {name: event.get(name) for name in IDS} == {
        "tool": "look",
        "request_id": "r1",
        "call_id": "c1",
        "session_id": "s1",
        "tenant": "acme",
        "user": "ann",
    }
    assert (event["stage"], event["hook"]) == ("will_execute", "tool")


async def test_the_request_id_of_the_log_is_the_correlation_id_of_the_error(events: list[dict[str, Any]]) -> None:
    async with Gate([look]) as gate:
        with pytest.raises(ToolFailed) as failed:
            await gate.invoke(look, {"what": "fails"})
    (event,) = of(events, "call.failed")
    assert event["request_id"] == failed.value.correlation_id


async def test_a_call_of_no_tool_there_is_is_logged_with_its_ids(events: list[dict[str, Any]]) -> None:
    async with Gate([look]) as gate:
        result = await gate.call(ToolCall(id="c9", name="lok\nforged line", arguments={}), user=ANN)
    assert result.error is not None
    (event,) = of(events, "call.refused")
    assert (event["error"], event["tool"]) == ("UnknownTool(unknown_tool)", "lok\nforged line")
    assert (event["call_id"], event["user"], event["request_id"]) == ("c9", "ann", result.error.correlation_id)


async def test_suspended_and_cancelled_calls_have_events_of_their_own(events: list[dict[str, Any]]) -> None:
    await one(user=User("asks"))
    (suspended,) = of(events, "call.suspended")
    assert (suspended["kind"], suspended["hook"]) == ("approval", "Policy")
    calling = asyncio.ensure_future(one("waits"))
    for _ in range(5):
        await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert len(of(events, "call.cancelled")) == 1
    assert of(events, "call.failed") == of(events, "call.refused") == []


async def test_what_fails_beside_a_call_is_logged_by_what_it_was(events: list[dict[str, Any]]) -> None:
    class Leaky(Hook):
        on_failure = "ignore"

        def will_acquire_quota(self, ctx: InvokeContext) -> None: ...

        def did_release_quota(self, ctx: InvokeContext) -> None:
            raise OSError("no give back")

        def on_metrics(self, ctx: InvokeContext) -> None:
            raise OSError("no metrics")

    class Strict(Hook):
        mode = "shadow"

        def will_authorize(self, ctx: InvokeContext) -> None:
            ctx.abort("would not")

    async with Gate([look], [Leaky(), Strict()]) as gate:
        assert await gate.invoke(look, {"what": "it"}) == "it"
    seen = {(event["event"], event["hook"], event["error"]) for event in events if "hook" in event}
    assert seen == {
        ("hook.shadowed", "Strict", "Denied(denied)"),
        ("hook.failed", "Leaky", "OSError"),
        ("cleanup.failed", "Leaky", "OSError"),
    }


async def test_a_body_that_is_left_behind_is_logged_and_so_is_its_end(events: list[dict[str, Any]]) -> None:
    """I12."""
    ended = asyncio.Event()

    @tool(effect="read", deadline=0.1, hard_deadline=True)
    async def stubborn() -> str:
        """Does not stop."""
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    async with Gate([stubborn]) as gate:
        result = await gate.call(ToolCall(id="c1", name="stubborn", arguments={}))
        assert result.outcome == "unknown"
        assert [len(of(events, name)) for name in ("call.abandoned", "call.failed", "call.settled")] == [1, 1, 0]
        ended.set()
    assert len(of(events, "call.settled")) == 1
    assert of(events, "gate.closed")[0]["left_behind"] == 0


async def test_a_factory_that_fails_is_named(events: list[dict[str, Any]]) -> None:
    class Db: ...

    def connect() -> Db:
        raise ConnectionError("postgres://app:canary@db refused")

    with pytest.raises(Exception, match="Db"):
        async with Gate([look], provide={Db: connect}):
            pass
    (event,) = of(events, "provider.failed")
    assert event["provider"].endswith("Db")
    assert (event["phase"], event["error"]) == ("make", "ConnectionError")


def test_a_definition_that_looks_wrong_is_logged_when_it_is_added(events: list[dict[str, Any]]) -> None:
    @tool(effect="read")
    async def untold(n: int) -> int:
        return n

    Gate([untold])
    (event,) = of(events, "definition.warning")
    assert event["tool"] == "untold"
    assert "no description" in event["warning"]


async def test_the_text_of_an_exception_is_shown_only_when_asked_for() -> None:
    """Types only unless configured; and then with what looks like a secret masked."""

    @tool(effect="read")
    async def fetch() -> str:
        """Fetch it."""
        raise ConnectionError("postgres://app:hunter2@db.internal refused password=hunter3")

    found: list[dict[str, Any]] = []
    for errors in ("type", "text"):
        configure_logging(found.append, errors=errors)
        async with Gate([fetch]) as gate:
            await gate.call(ToolCall(id="c1", name="fetch", arguments={}))
    hidden, shown = (event["error"] for event in of(found, "call.failed"))
    assert hidden == "ConnectionError"
    assert shown == "ConnectionError: postgres://***@db.internal refused password=***"


# ---------------------------------------------------------------------- who hears it


PROGRAM = """
import asyncio, logging, sys
from callgate import Gate, ToolCall, tool, configure_logging
{setup}

@tool(effect="read")
async def look(what: str) -> str:
    raise ValueError(what)

async def main() -> None:
    async with Gate([look]) as gate:
        for arguments in {{"what": "canary"}}, {{}}:
            await gate.call(ToolCall(id="c1", name="look", arguments=arguments))

asyncio.run(main())
assert ("structlog" in sys.modules) == {imported}
"""


def run(setup: str, *, imported: bool) -> tuple[str, str]:
    program = PROGRAM.format(setup=setup, imported=imported)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_by_default_it_reports_unexpected_exceptions_alone_and_does_not_even_import_structlog() -> None:
    """Decisions and the lifespan of the gate are silent where nothing is configured."""
    printed, heard = run("", imported=False)
    assert printed == ""
    (event,) = [line for line in heard.splitlines() if line.startswith("callgate: ")]
    assert event.startswith("callgate: call.failed ")
    assert "Traceback (most recent call last):" in heard
    assert "canary" not in heard


def test_an_application_that_has_set_up_logging_hears_it() -> None:
    _, heard = run("logging.basicConfig(level='INFO')", imported=False)
    lines = heard.splitlines()
    assert [line.split()[0] for line in lines] == [
        "WARNING:callgate:definition.warning",
        "INFO:callgate:gate.opened",
        "ERROR:callgate:call.failed",
        "INFO:callgate:call.refused",
        "INFO:callgate:gate.closed",
    ]
    assert "canary" not in heard


def test_a_file_gets_one_line_an_event() -> None:
    printed, heard = run("configure_logging(sys.stdout, form='json', level='ERROR')", imported=True)
    assert heard == ""
    (event,) = map(json.loads, printed.splitlines())
    assert (event["event"], event["level"], event["error"]) == ("call.failed", "error", "ValueError")
    assert "canary" not in printed


def test_handlers_of_the_stdlib_logger_get_the_event_in_data() -> None:
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    with handled(Keeping()):
        emit(LogEvent.GATE_OPENED, tools=2, hooks=0)
    (record,) = records
    assert (record.name, record.levelname) == ("callgate", "INFO")
    assert record.getMessage() == "gate.opened tools=2 hooks=0"
    data: Any = getattr(record, "callgate", None)
    assert (data["event"], data["tools"]) == ("gate.opened", 2)


async def test_the_plain_way_to_the_stdlib_and_a_chain_with_processors_make_the_same_record() -> None:
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    with handled(Keeping()):
        await one("fails")
        configure_logging(processors=[lambda _logger, _method, event: event])
        await one("fails")
    plain, chained = [record for record in records if record.levelname == "ERROR"]
    assert plain.getMessage().splitlines() == chained.getMessage().splitlines()
    data: list[dict[str, Any]] = [{**vars(record)["callgate"]} for record in (plain, chained)]
    times = [event.pop("timestamp") for event in data]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", time) for time in times)
    assert list(data[0].items()) == list(data[1].items())
    assert (data[0]["event"], data[0]["level"], data[0]["request_id"]) == ("call.failed", "error", "r1")


def test_a_line_cannot_be_forged_by_a_name_with_a_line_break() -> None:
    file = io.StringIO()
    configure_logging(file)
    emit(LogEvent.CALL_REFUSED, tool="x\ncall.failed forged", call_id="c\r\n1")
    assert file.getvalue().count("\n") == 1
    assert file.getvalue().endswith("\n")


def test_levels_are_obeyed_and_wrong_settings_are_refused() -> None:
    found: list[dict[str, Any]] = []
    configure_logging(found.append, level="ERROR")
    emit(LogEvent.GATE_OPENED, tools=1)
    emit(LogEvent.CALL_ABANDONED, holds=1)
    assert [event["event"] for event in found] == ["call.abandoned"]
    wrong: list[dict[str, Any]] = [{"level": "LOUD"}, {"form": "xml"}, {"errors": "traceback"}, {"sink": 7}]
    for settings_ in wrong:
        with pytest.raises((ValueError, TypeError)):
            configure_logging(**settings_)
    emit(LogEvent.CALL_ABANDONED, holds=2)
    assert len(found) == 2, "a refused setting changes nothing"


def test_the_application_s_own_structlog_settings_do_not_apply() -> None:
    import structlog

    found: list[dict[str, Any]] = []
    structlog.configure(processors=[_explode])
    try:
        configure_logging(found.append)
        emit(LogEvent.GATE_OPENED, tools=1)
    finally:
        structlog.reset_defaults()
    assert len(found) == 1


def _explode(*_: Any) -> Any:
    raise OSError("a processor of the application")


# ---------------------------------------------------------------------- a sink that fails


class _Full:
    def write(self, _text: str) -> None:
        raise OSError("disk full")

    def flush(self) -> None:
        raise OSError("disk full")


def _fails(kind: type[BaseException]) -> Callable[[Any], None]:
    def sink(_event: Any) -> None:
        raise kind("sink")

    return sink


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("handler")


FAULTS: dict[str, Callable[[], None]] = {
    "a callable that raises": lambda: configure_logging(_fails(OSError), level="DEBUG"),
    "a callable that exits": lambda: configure_logging(_fails(SystemExit), level="DEBUG"),
    "a callable that cancels": lambda: configure_logging(_fails(asyncio.CancelledError), level="DEBUG"),
    "a full disk": lambda: configure_logging(_Full(), level="DEBUG"),  # type: ignore[arg-type]
    "a processor that raises": lambda: configure_logging(lambda _: None, level="DEBUG", processors=[_explode]),
    "a processor that loses the event": lambda: configure_logging(
        lambda _: None, level="DEBUG", processors=[lambda *_: None]
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_sink_that_fails_never_changes_an_outcome(fault: str) -> None:
    """I1. A failing sink does not keep the permits of a call."""
    given_back = []

    class Quota(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None: ...

        def did_release_quota(self, ctx: InvokeContext) -> None:
            given_back.append(ctx.tool_id)
            raise OSError("and this fails, too")

    FAULTS[fault]()
    async with Gate([look], [Policy(), Quota()]) as gate:
        ends = [
            (await gate.call(ToolCall(id="c", name="look", arguments={"what": what}), user=user)).outcome
            for what, user in [("it", ANN), ("fails", ANN), (7, ANN), ("it", User("no user")), ("it", User("breaks"))]
        ]
        with pytest.raises(Denied):
            await gate.invoke(look, {"what": "it"}, user=User("no user"))
    assert ends == ["success", "error", "invalid", "denied", "denied"]
    assert len(given_back) == 3


def test_a_handler_that_raises_is_not_heard_of() -> None:
    with handled(_Handler()):
        emit(LogEvent.CALL_ABANDONED, holds=1)


def test_an_event_that_nobody_hears_works_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("formatted for no handler")

    handlers = [handler for handler in logging.getLogger().handlers if not isinstance(handler, logging.NullHandler)]
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert handlers is not None
    monkeypatch.setattr(logs, "ids_of", never)
    monkeypatch.setattr(logs, "RedactingLog", never)
    emit(LogEvent.CALL_FAILED, object(), outcome="error")  # type: ignore[arg-type]


def test_the_id_of_a_job_is_shown_so_that_it_can_be_found(events: list[dict[str, Any]]) -> None:
    """Ids look like secrets, and are none."""
    job = new_id()
    emit(LogEvent.JOB_DEAD, job=job, tool="send", reason="why")
    emit(LogEvent.JOB_NOT_SENT, job=job, error=OSError())
    assert [event["job"] for event in events] == [job, job]
