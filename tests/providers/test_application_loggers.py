"""The application's own loggers of structlog have the ids of the call; ``ctx.log`` has the methods of structlog."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator, MutableMapping
from typing import Any

import pytest
import structlog

from callgate import Gate, Hook, InvokeContext, ToolCall, ToolContext, User, configure_logging, invoke_tool, tool
from callgate.providers.logs import IDS, CallLog, binds_ids

ANN = User("ann", tenant="acme")
log: Any = structlog.get_logger("application")


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Generator[list[dict[str, Any]]]:
    """What the loggers of the application write."""
    found: list[dict[str, Any]] = []

    def keep(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
        found.append(dict(event))
        raise structlog.DropEvent

    merges = [structlog.contextvars.merge_contextvars] if getattr(request, "param", True) else []
    structlog.configure(processors=[*merges, keep], cache_logger_on_first_use=False)
    structlog.contextvars.clear_contextvars()
    yield found
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


@tool(effect="read")
async def straight() -> None:
    """A tool on the fast path."""
    log.info("body")


@tool(effect="read")
async def with_context(ctx: ToolContext) -> None:
    """A tool that calls another."""
    log.info("before")
    await ctx.call("straight", {})
    log.info("after")


@tool(effect="read")
def in_thread() -> None:
    """A tool in a worker thread."""
    log.info("body")


class Logging(Hook):
    """A hook that logs at the beginning and at the end."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        log.info("hook")

    def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        log.info("end")


def ids(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [one for one in events if one["event"] == name]
    return {key: value for key, value in found.items() if key != "event"}


EXPECTED = {"request_id": "r1", "call_id": "c1", "session_id": "s1", "tenant": "acme", "user": "ann"}


@pytest.mark.parametrize("hooks", [(), (Logging,)], ids=["no hook", "a hook"])
@pytest.mark.parametrize("name", ["straight", "in_thread"])
async def test_the_loggers_of_the_application_have_the_ids_for_the_time_of_the_call(
    name: str, hooks: Any, seen: list[dict[str, Any]]
) -> None:
    structlog.contextvars.bind_contextvars(user="of the web request", build=7)
    async with Gate([straight, in_thread], [one() for one in hooks], allow_unguarded=True) as gate:
        seen.clear()
        await gate.call(ToolCall(id="c1", name=name, arguments={}), user=ANN, request_id="r1", session_id="s1")
        log.info("outside")
    for event in ("hook", "body", "end") if hooks else ("body",):
        assert ids(seen, event) == {**EXPECTED, "tool": name, "build": 7}
    assert ids(seen, "outside") == {"user": "of the web request", "build": 7}


async def test_a_nested_call_has_ids_of_its_own_and_the_outer_call_has_its_ids_again(
    seen: list[dict[str, Any]],
) -> None:
    async with Gate([straight, with_context], allow_unguarded=True) as gate:
        await gate.invoke(with_context, {}, user=ANN)
    before, body, after = (ids(seen, name) for name in ("before", "body", "after"))
    assert (before["tool"], body["tool"], after) == ("with_context", "straight", before)


async def test_calls_at_the_same_time_have_each_their_own_ids(seen: list[dict[str, Any]]) -> None:
    async with Gate([straight], [Logging()], allow_unguarded=True) as gate:
        await asyncio.gather(*(gate.invoke(straight, {}, user=User(f"{n}"), request_id=f"r{n}") for n in range(20)))
    bodies = [one for one in seen if one["event"] == "body"]
    assert len({one["request_id"] for one in bodies}) == 20
    assert all(one["request_id"] == f"r{one['user']}" for one in bodies)


async def test_a_gate_that_was_made_before_the_application_configured_its_loggers_binds_them_too() -> None:
    structlog.configure(processors=[])
    gate = Gate([straight], allow_unguarded=True)
    assert not binds_ids()
    found: list[Any] = []

    def keep(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
        found.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        async with gate:
            await gate.invoke(straight, {}, request_id="r7")
        assert ids(found, "body")["request_id"] == "r7"
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("seen", [False], indirect=True)
async def test_where_the_loggers_show_no_context_variables_none_are_set(seen: list[dict[str, Any]]) -> None:
    """The control, and the cost: the plan does not bind."""
    assert not binds_ids()
    await invoke_tool(straight, {})
    assert ids(seen, "body") == {}
    assert structlog.contextvars.get_contextvars() == {}


def test_without_structlog_in_the_application_nothing_is_imported_or_bound() -> None:
    code = """
import asyncio, sys
from callgate import as_tool, invoke_tool, tool
from callgate.providers.logs import binds_ids
@tool(effect="read")
async def straight() -> None:
    "Do nothing."
asyncio.run(invoke_tool(straight, {}))
assert not binds_ids()
assert "structlog" not in sys.modules
(_, plan, _), = as_tool(straight).plans.values()
assert not plan.restores
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


LEVELS = {
    "debug": "debug",
    "info": "info",
    "msg": "info",
    "warning": "warning",
    "warn": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
    "fatal": "critical",
}


@pytest.fixture
def logged() -> Generator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    configure_logging(found.append, level="DEBUG")
    yield found
    configure_logging()


async def test_ctx_log_has_the_methods_of_structlog(logged: list[dict[str, Any]]) -> None:
    """Each level, its awaitable variant, and ``log``; a text with arguments."""

    @tool(effect="read")
    async def everything(ctx: ToolContext) -> None:
        """Log."""
        for name in LEVELS:
            try:
                raise ValueError("the reason")
            except ValueError:
                getattr(ctx.log, name)(f"plain {name}", place=1)
                await getattr(ctx.log, f"a{name}")(f"awaited {name} %s", "text", place=2)
        ctx.log.log(30, "by number")
        await ctx.log.alog("error", "by %s", "name")

    async with Gate([everything], allow_unguarded=True) as gate:
        result = await gate.call(ToolCall(id="c1", name="everything", arguments={}), user=ANN)
    assert result.ok
    by_event = {one["event"]: one for one in logged}
    for name, level in LEVELS.items():
        for event, place in ((f"plain {name}", 1), (f"awaited {name} text", 2)):
            assert (by_event[event]["level"], by_event[event]["place"]) == (level, place)
            assert ("exception" in by_event[event]) is (name == "exception" and place == 1), (
                "a traceback is logged once"
            )
    assert (by_event["by number"]["level"], by_event["by name"]["level"]) == ("warning", "error")
    assert {one["call_id"] for one in logged if one["event"].startswith(("plain", "awaited", "by"))} == {"c1"}


async def test_bound_fields_are_added_and_removed_as_structlog_does(logged: list[dict[str, Any]]) -> None:
    @tool(effect="read")
    async def bind(ctx: ToolContext) -> None:
        """Log."""
        bound: CallLog = ctx.log.bind(a=1, b=2)
        bound.unbind("a").info("unbind")
        bound.try_unbind("b", "c").info("try")
        bound.new(c=3).info("new")
        with pytest.raises(KeyError):
            bound.unbind("c")

    async with Gate([bind], allow_unguarded=True) as gate:
        await gate.invoke(bind, {})
    own = {one["event"]: {key: one[key] for key in "abc" if key in one} for one in logged}
    assert (own["unbind"], own["try"], own["new"]) == ({"b": 2}, {"a": 1}, {"c": 3})


def test_the_ids_of_a_call_are_those_of_the_events() -> None:
    assert {*EXPECTED, "tool"} == set(IDS)
