"""A client runs its own tools: what it is asked for is checked before, and what it answers after."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings

from callgate import (
    DefinitionError,
    Denied,
    Limits,
    Outcome,
    RetryLater,
    ToolCall,
    ToolDefinition,
    ToolError,
    ToolResult,
)
from callgate.tools.client import client
from callgate.tools.client.client import MAX_TEXT, ClientToolProvider
from tests.tools.client.test_client_arguments import VALUES

SEARCH: dict[str, Any] = {
    "name": "search_database",
    "description": "Search the client database",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Search query"},
            "limit": {"type": "integer", "description": "Max results", "minimum": 1, "maximum": 100},
        },
        "required": ["query"],
    },
}
ROWS: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    "required": ["rows"],
    "$defs": {"row": {"type": "integer"}},
}
DONE = {"toolCallId": "call-456", "toolName": "search_database", "success": True, "result": {"rows": [1, 2]}}


def call(arguments: Any = '{"query": "test", "limit": 10}', name: str = "search_database") -> dict[str, Any]:
    return {"id": "call-456", "type": "function", "function": {"name": name, "arguments": arguments}}


def failed(error: str, name: str = "search_database") -> dict[str, Any]:
    return {"toolCallId": "call-456", "toolName": name, "success": False, "result": None, "error": error}


class Client:
    """Answers what it is told to, and notes what it was asked."""

    def __init__(self, answer: Any = DONE) -> None:
        self.answer = answer
        self.asked: list[tuple[ToolCall, Any]] = []

    async def __call__(self, call: ToolCall, context: Any) -> Any:
        self.asked.append((call, context))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(call) if callable(self.answer) else self.answer


def of(client: Any, **options: Any) -> ClientToolProvider:
    return ClientToolProvider([SEARCH], client, **options)


# ---------------------------------------------------------------------- the provider


def test_definitions_are_checked_once_when_the_provider_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 32."""
    sent = [SEARCH, {"type": "function", "function": SEARCH | {"name": "other"}}]
    provider = ClientToolProvider(sent, Client())
    monkeypatch.setattr(client, "check_client_tools", pytest.fail)
    found = provider.get_tools()
    assert [definition.name for definition in found] == ["search_database", "other"]
    found.clear()
    assert len(provider.get_tools()) == 2, "the list was a copy"
    assert provider.validate_tool_arguments(call()) == {"valid": True}
    with pytest.raises(TypeError, match="frozen"):
        provider.get_tools()[0].parameters["type"] = "array"  # type: ignore[index]


@pytest.mark.parametrize("tools", [None, {}, [{}], [SEARCH, SEARCH], [SEARCH | {"name": ""}]])
def test_a_provider_of_bad_definitions_is_refused(tools: Any) -> None:
    """Contract 32, 34."""
    with pytest.raises(DefinitionError, match=r"\AInvalid client tool definitions: "):
        ClientToolProvider(tools, Client())


async def test_a_tool_is_found_among_many_by_one_look_up() -> None:
    """Contract 32."""

    class Counted(dict[str, Any]):
        """Counts look-ups; nothing else may be asked of it."""

        asked = 0

        def get(self, key: str, default: Any = None) -> Any:
            self.asked += 1
            return super().get(key, default)

        __iter__ = __contains__ = keys = values = items = None  # type: ignore[assignment]

    many = [SEARCH | {"name": f"tool_{number}"} for number in range(500)]
    provider = ClientToolProvider(many, lambda call, context: {"success": True, "result": call.name})
    provider._tools = counted = Counted(provider._tools)
    result = await provider.execute(call(name="tool_499"))
    assert result["result"] == "tool_499"
    assert counted.asked == 1


# ---------------------------------------------------------------------- a call


async def test_the_client_is_asked_with_checked_arguments_and_its_result_comes_back() -> None:
    """Contract 36, 39, 42."""
    asking, context = Client(), {"taskId": "task-123", "contextId": "ctx-123"}
    result = await of(asking).execute(call(), context)
    assert result == DONE
    ((asked, given),) = asking.asked
    assert asked == ToolCall(id="call-456", name="search_database", arguments={"query": "test", "limit": 10})
    assert given is context


@pytest.mark.parametrize(
    "sent",
    [
        call(),
        call({"query": "test", "limit": 10}),
        ToolCall(id="call-456", name="search_database", arguments={"query": "test", "limit": 10}),
        ToolCall(
            id="call-456",
            name="search_database",
            arguments='{"query": "test", "limit": 10}',
            synthetic_id=True,
            chunk={"a": 1},
        ),
    ],
)
async def test_a_call_may_be_spelled_as_openai_does_or_as_the_library_does(sent: Any) -> None:
    """Contract 36, 37."""
    asking = Client()
    assert await of(asking).execute(sent) == DONE
    assert asking.asked[0][0].arguments == {"query": "test", "limit": 10}
    assert asking.asked[0][0].chunk is None


async def test_what_the_client_is_given_is_a_copy() -> None:
    """Contract 39, invariants I2."""
    arguments = {"query": "test", "limit": 10}

    def spoil(asked: ToolCall) -> Any:
        asked.arguments["query"] = "spoilt"
        return DONE

    await of(Client(spoil)).execute(call(arguments))
    assert arguments == {"query": "test", "limit": 10}


@pytest.mark.parametrize(
    "answer",
    [
        DONE,
        {"success": True, "result": {"rows": [1, 2]}},
        ToolResult("call-456", "search_database", Outcome.SUCCESS, {"rows": [1, 2]}),
    ],
)
async def test_a_client_answers_in_the_documents_shape_or_with_a_result(answer: Any) -> None:
    """Contract 36, 39, 40."""
    assert await of(Client(answer)).execute(call()) == DONE
    assert await of(lambda call, context: answer).execute(call()) == DONE, "a plain function will do"


# ---------------------------------------------------------------------- failures

REFUSED: list[tuple[dict[str, Any], str, str, Outcome]] = [
    (call(name="xyz"), "Tool xyz not found in client tools", "unknown_tool", Outcome.INVALID),
    (call("{"), "Invalid tool arguments JSON: the text ends early at character 1", "invalid_json", Outcome.INVALID),
    (
        call("[]"),
        "Invalid tool arguments JSON: the arguments must be a JSON object",
        "invalid_arguments",
        Outcome.INVALID,
    ),
    (call("{}"), "Missing required parameter: query", "invalid_arguments", Outcome.INVALID),
    (
        call({"query": 1, "limit": 2.5}),
        "Parameter query has wrong type: expected string, got number; Parameter limit must be an integer, got: 2.5",
        "invalid_arguments",
        Outcome.INVALID,
    ),
]


@pytest.mark.parametrize(("sent", "error", "code", "outcome"), REFUSED)
async def test_what_cannot_be_run_is_a_failed_result_and_the_client_is_not_asked(
    sent: dict[str, Any], error: str, code: str, outcome: Outcome
) -> None:
    """Contract 34, 36, 37, 44, C30."""
    asking = Client()
    provider = of(asking)
    assert await provider.execute(sent) == failed(error, sent["function"]["name"])
    told = await provider.call(sent)
    assert told.error is not None
    assert (told.error.code, told.outcome) == (code, outcome)
    assert asking.asked == []


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ValueError("The database is away."), "The database is away."),
        (TimeoutError("client did not answer\nin time"), "client did not answer\nin time"),
        (ToolError("No more than ten."), "No more than ten."),
        (Denied("ann is no manager"), "The call was denied."),
        (RetryLater(5, "quota of ann"), "Busy or over quota; try again later."),
        (KeyError("x"), "'x'"),
        (ValueError(), "The client's tool failed."),
        (Broken(), "The client's tool failed."),
        (ValueError("\ud800"), "?"),
        (ValueError("x" * 10_000), "x" * MAX_TEXT + "…"),
    ],
)
async def test_what_the_callback_raises_is_a_failed_result_with_its_message(raised: Exception, error: str) -> None:
    """Contract 34, 36; the library's own errors say only what they say in public."""
    assert await of(Client(raised)).execute(call()) == failed(error)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("No such table.", "No such table."),
        ("x" * 10_000, "x" * MAX_TEXT + "…"),
        (None, "The client's tool failed."),
        ("", "The client's tool failed."),
        ({"message": "no"}, "The client's tool failed."),
        ("\udfff", "?"),
    ],
)
async def test_what_the_client_says_of_a_failure_is_passed_through(told: Any, error: str) -> None:
    """Contract 36, 40."""
    answer = DONE | {"success": False, "error": told}
    assert await of(Client(answer)).execute(call()) == failed(error)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "done",
        {"rows": []},
        [DONE],
        {"result": 1},
        DONE | {"success": "false"},
        DONE | {"success": 1},
        DONE | {"success": None},
        DONE | {"toolCallId": "call-457"},
        DONE | {"toolCallId": None},
        DONE | {"toolCallId": ["call-456"]},
        DONE | {"toolName": "other"},
        ToolResult("c2", "search_database", Outcome.SUCCESS, {"rows": []}),
    ],
)
async def test_what_is_no_answer_to_this_call_is_refused(answer: Any) -> None:
    """Contract 39, 40, invariants B6: forged and foreign results."""
    result = await of(Client(answer)).execute(call())
    assert result["success"] is False
    assert result.get("error", "").startswith("Invalid tool result: ")


# ---------------------------------------------------------------------- results are outside input


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def answering(result: Any) -> Client:
    return Client(DONE | {"result": result})


NOT_JSON: dict[str, Any] = {
    "an object": object(),
    "a date": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "bytes": b"x",
    "a set": {1},
    "a key that is no text": {1: 2},
    "not a number": [float("nan")],
    "infinite": {"a": float("inf")},
    "half a pair": "\ud800",
    "half a pair in a key": {"\udfff": 1},
    "a huge integer": 10**5000,
    "too deep": deep(100),
    "very deep": deep(100_000),
    "an exception": ValueError("secret"),
}


@pytest.mark.parametrize("result", NOT_JSON.values(), ids=NOT_JSON)
async def test_a_result_that_is_not_json_is_refused(result: Any) -> None:
    """Contract 36, invariants B5, I15."""
    told = await of(answering(result)).execute(call())
    assert told["success"] is False
    assert told["result"] is None
    assert told.get("error", "").startswith("Invalid tool result: ")
    assert "secret" not in told.get("error", "")


async def test_a_result_has_a_size_that_is_exact() -> None:
    """Contract 36, invariants B5, I15."""
    limits = Limits(max_output_bytes=100)
    within, beyond = "x" * 98, "x" * 99
    assert (await of(answering(within), limits=limits).execute(call()))["success"]
    for result in (beyond, "é" * 50, [0] * 51, {"x" * 97: 1}):
        told = await of(answering(result), limits=limits).execute(call())
        assert told["success"] is False, result
    ten = await of(answering("x" * 10_000_000)).execute(call())
    assert len(str(ten)) < 500


async def test_a_result_that_its_schema_forbids_is_refused_with_the_places() -> None:
    """Contract 36, C30: by the client's own output schema, or one that the application gives in its place."""
    provider = of(answering({"rows": [1, "canary", 3]}), output_schemas={"search_database": ROWS})
    told = await provider.execute(call())
    assert told == failed("Invalid tool result: /rows/1: expected integer, got string")
    declared = ClientToolProvider([SEARCH | {"outputSchema": ROWS}], answering({"rows": 7}))
    told = await declared.execute(call())
    assert told.get("error", "").startswith("Invalid tool result: /rows: ")
    assert (await of(answering({"rows": []}), output_schemas={"search_database": ROWS}).execute(call()))["success"]
    assert provider.get_tools()[0].output_schema == ROWS
    free = ClientToolProvider([SEARCH | {"outputSchema": ROWS}], answering([]), output_schemas={"search_database": {}})
    assert (await free.execute(call()))["success"], "the application's stands in the place of the client's"


@pytest.mark.parametrize(
    ("schemas", "said"),
    [
        ({"serch_database": ROWS}, "did you mean 'search_database'"),
        ({"search_database": {"$ref": "https://a.example"}}, "external_ref"),
        ({"search_database": []}, "JSON Schema object, not list"),
        ({"search_database": {"tpye": "object"}}, "no engine would enforce it"),
    ],
)
def test_output_schemas_are_for_tools_there_are_and_are_checked(schemas: Any, said: str) -> None:
    """Contract 32, C30."""
    with pytest.raises(DefinitionError, match=said):
        of(Client(), output_schemas=schemas)


async def test_a_client_that_keeps_its_result_cannot_change_it_afterwards() -> None:
    """Contract 36, invariants B5."""
    kept = {"rows": [1]}
    told = await of(answering(kept)).execute(call())
    kept["rows"].append(2)
    assert told["result"] == {"rows": [1]}


@settings(deadline=None, max_examples=100)
@given(VALUES)
async def test_every_json_value_comes_back_as_it_is(value: Any) -> None:
    """Contract 36."""
    told = await of(answering(value)).execute(call())
    assert json.dumps(told) == json.dumps(DONE | {"result": value})


# ---------------------------------------------------------------------- what was checked is said


async def test_arguments_are_checked_unless_it_is_said_that_they_are_not_and_then_the_result_says_so() -> None:
    """Contract 44, C30."""
    asking = Client()
    unchecked = of(asking, validate_arguments=False)
    told = await unchecked.execute(call({"query": 1, "limit": 2.5}))
    assert told == DONE | {"validated": False}
    assert asking.asked[0][0].arguments == {"query": 1, "limit": 2.5}
    assert (await unchecked.execute(call("{")))["success"] is False, "what cannot be read is refused all the same"
    assert unchecked.validate_tool_arguments(call({"query": 1}))["valid"] is False
    assert len(asking.asked) == 1


async def test_a_result_says_what_was_checked_and_that_it_is_not_to_be_trusted() -> None:
    """Contract 36, C30, invariants B6."""
    checked = of(Client(), output_schemas={"search_database": ROWS})
    assert (await checked.call(call())).provenance == {"trusted": False, "validated": True, "output_validated": True}
    plain = of(Client(), validate_arguments=False)
    assert (await plain.call(call())).provenance == {"trusted": False, "validated": False, "output_validated": False}
    refused = await of(Client()).call(call("{}"))
    assert refused.provenance == {"trusted": False, "validated": False, "output_validated": False}


async def test_a_definition_of_the_applications_own_is_run_by_the_client_like_any() -> None:
    """Contract 32."""
    own = ToolDefinition("own", "Ours.", {"type": "object", "properties": {}}, effect="read")  # type: ignore[arg-type]
    provider = ClientToolProvider([own], lambda call, context: {"success": True, "result": 1})
    assert (await provider.execute(call({}, "own")))["result"] == 1


async def test_without_a_callback_nothing_is_waited_for() -> None:
    """Contract 36, 39."""
    told = await of(None).execute(call())
    assert told["success"] is False
    assert "on_input_required" in told.get("error", "")


# ---------------------------------------------------------------------- many at once, and cancelled


async def test_many_calls_at_once_get_their_own_answers_in_whatever_order_they_come() -> None:
    """Contract 39, 40."""
    waiting: dict[str, asyncio.Future[Any]] = {}
    all_asked = asyncio.Event()

    async def ask(call: ToolCall, context: Any) -> Mapping[str, Any]:
        waiting[call.id] = asyncio.get_running_loop().create_future()
        if len(waiting) == len(calls):
            all_asked.set()
        return {"toolCallId": call.id, "toolName": call.name, "success": True, "result": await waiting[call.id]}

    provider = of(ask)
    calls = [call({"query": str(number)}) | {"id": f"c{number}"} for number in range(200)]
    running = asyncio.gather(*(provider.execute(one) for one in calls))
    await all_asked.wait()
    for id in reversed(waiting):
        waiting[id].set_result(f"for {id}")
    results = await running
    assert [(result["toolCallId"], result["result"]) for result in results] == [
        (f"c{number}", f"for c{number}") for number in range(200)
    ]


async def test_a_cancellation_reaches_the_callback_and_passes_through() -> None:
    """Contract 36, C12."""
    ended: list[str] = []

    async def ask(call: ToolCall, context: Any) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call.id)

    started = asyncio.Event()
    running = asyncio.ensure_future(of(ask).execute(call()))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["call-456"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_what_stops_a_process_is_not_made_a_result(stop: type[BaseException]) -> None:
    """Contract 36, C12."""
    with pytest.raises(stop):
        await of(Client(stop())).execute(call())


ASKS: list[Callable[[], Any]] = [
    lambda: None,
    lambda: 7,
    lambda: {"function": {}},
    lambda: call([]),
    lambda: call(b"\xff"),
]


@pytest.mark.parametrize("odd", ASKS)
async def test_whatever_is_called_has_a_result(odd: Callable[[], Any]) -> None:
    """Contract 36."""
    told = await of(Client()).execute(odd())
    assert told["success"] is False
    assert told.get("error", "")
