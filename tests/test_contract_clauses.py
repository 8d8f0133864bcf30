"""Clauses of the contract's sentences that no other test proves; each test names its item."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from callgate import (
    DefinitionError,
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    Stage,
    ToolCall,
    ToolDefinition,
    configure_logging,
    pick_tools,
    tool,
)
from callgate.hooks.base import stages_of
from callgate.picking import ToolIndex
from callgate.tools import ClientToolProvider, safe_validate_tool_definitions, wrap_properties
from callgate.tools.calls import Issue
from callgate.tools.declaring.component import attach_validator
from callgate.tools.declaring.declare import as_tool
from callgate.tools.registry import ToolRegistry
from callgate.tools.schemas.validation import from_validate
from tests.harness.cpu import cpu_seconds
from tests.hooks.making import at, record, refusing

NUMBER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    """What Callgate logs."""
    found: list[dict[str, Any]] = []
    configure_logging(found.append)
    yield found
    configure_logging()


# Definitions and validators


async def test_what_is_derived_from_a_definition_leaves_it_as_it_was() -> None:
    """Contract 5: registry, index, compiled plan and call keep what they derive elsewhere."""

    @tool(parameters=NUMBER, effect="read", tags={"maths"})
    class Double:
        def __init__(self, arguments: dict[str, Any]) -> None:
            self.n = arguments["n"]

        async def run(self) -> int:
            return 2 * int(self.n)

    record = as_tool(Double)
    before = repr(record.definition), record.definition.to_dict()
    registry = ToolRegistry([Double])
    assert registry.index.entries
    async with Gate(registry.list()) as gate:
        assert gate.definitions("openai_chat")
        assert (await gate.call(ToolCall(id="c", name="Double", arguments={"n": 2}))).output == 4
    assert registry.get("Double").definition is record.definition
    assert (repr(record.definition), record.definition.to_dict()) == before


async def test_an_attached_validator_judges_the_calls_of_a_gate() -> None:
    """Contract 7, 18: attached at decoration, used in place of the engine's own."""

    def issues(value: Any) -> list[Issue]:
        return [] if value["n"] % 2 == 0 else [Issue("/n", "even", "an even number")]

    @tool(parameters=NUMBER, effect="read")
    class Half:
        def __init__(self, arguments: dict[str, Any]) -> None:
            self.n = arguments["n"]

        async def run(self) -> int:
            return int(self.n) // 2

    attach_validator(Half, from_validate(issues, engine="even", version="1", schema=NUMBER))
    async with Gate([Half]) as gate:
        odd = await gate.call(ToolCall(id="c", name="Half", arguments={"n": 3}))
        assert odd.error is not None
        assert (odd.outcome, odd.error.issues) == (Outcome.INVALID, (Issue("/n", "even", "an even number"),))
        assert (await gate.call(ToolCall(id="c", name="Half", arguments={"n": 4}))).output == 2
        validator = gate.hydrate(ToolCall(id="c", name="Half", arguments={"n": 4})).provenance.validator
    assert validator is not None
    assert (validator.name, validator.version) == ("even", "1")


async def test_every_call_of_a_gate_gets_an_instance_of_its_own() -> None:
    """Contract 23."""
    made: list[Any] = []

    @tool(parameters=NUMBER, effect="read")
    class Kept:
        def __init__(self, arguments: dict[str, Any]) -> None:
            made.append(self)

        async def run(self) -> None: ...

    async with Gate([Kept]) as gate:
        for _ in range(3):
            assert (await gate.call(ToolCall(id="c", name="Kept", arguments={"n": 1}))).ok
    assert len({id(one) for one in made}) == len(made) == 3


async def test_a_tool_without_a_schema_is_warned_of_as_it_is_registered(events: list[dict[str, Any]]) -> None:
    """Contract C9: ``full`` is allowed, with a warning."""

    @tool(allow_no_schema=True, no_schema_mode="full", description="Takes anything.")
    async def anything(**arguments: Any) -> None: ...

    Gate([anything], allow_unguarded=True, effects=Effects(durable=False))
    warned = [(event["level"], event["warning"]) for event in events if event["event"] == "definition.warning"]
    assert warned == [("warning", "no schema: arguments are not validated (full)")]


def test_the_malformed_sample_is_refused_with_the_helper_that_mends_it() -> None:
    """Contract C31."""
    bare = {"location": {"type": "string"}, "unit": {"type": "string"}}
    with pytest.raises(DefinitionError, match="wrap_properties"):
        ToolDefinition("weather", "Weather.", bare).verify()
    wrapped = wrap_properties(bare, required=["location"])
    assert wrapped == {"type": "object", "properties": bare, "required": ["location"]}
    ToolDefinition("weather", "Weather.", wrapped).verify()


# Schemas of clients


def definition(schema: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"p": schema}}
    return {"name": "search", "description": "Search.", "parameters": parameters}


def valid(schema: Any, value: Any) -> bool:
    provider = ClientToolProvider([definition(schema)], None)
    call = {"id": "c", "function": {"name": "search", "arguments": {"p": value}}}
    return provider.validate_tool_arguments(call)["valid"]


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"enum": ["a", "b"]}, "a", "c"),
        ({"type": "array", "items": {"type": "string"}}, ["a"], [1]),
        ({"type": "array", "minItems": 1}, [1], []),
        ({"type": "array", "maxItems": 1}, [1], [1, 2]),
        ({"type": "object", "properties": {"q": {"type": "null"}}}, {"q": None}, {"q": 0}),
        ({"type": "object", "required": ["q"]}, {"q": 1}, {}),
        ({"type": "object", "properties": {"q": {}}, "additionalProperties": False}, {"q": 1}, {"r": 1}),
        ({"type": "string", "minLength": 2}, "ab", "a"),
        ({"type": "string", "maxLength": 2}, "ab", "abc"),
        ({"type": "string", "pattern": "^a+$"}, "aa", "b"),
        ({"type": "string", "format": "email"}, "a@example.org", "nobody"),
        ({"type": "string", "format": "uri"}, "https://example.org/a", "no uri"),
        ({"type": "string", "format": "date-time"}, "2026-01-02T03:04:05Z", "yesterday"),
        ({"type": "integer", "minimum": 1}, 1, 0),
        ({"type": "integer", "maximum": 1}, 1, 2),
        ({"type": "number", "multipleOf": 0.5}, 1.5, 1.6),
        ({"description": "How many.", "default": 3, "type": "integer"}, 4, "4"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_every_keyword_of_the_contract_is_enforced(schema: Any, right: Any, wrong: Any) -> None:
    """Contract 28, C7."""
    assert (valid(schema, right), valid(schema, wrong)) == (True, False)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        (nested(100), "too_deep"),
        ({"type": "string", "description": "x" * 70_000}, "too_large"),
        ({"type": "string", "pattern": "a" * 600}, "pattern_too_long"),
        ({"$ref": "https://example.org/schema.json"}, "external_ref"),
    ],
    ids=["depth", "size", "pattern", "reference"],
)
def test_a_schema_from_outside_has_bounds(schema: Any, code: str) -> None:
    """Contract C7, I14."""
    verdict = safe_validate_tool_definitions([definition(schema)])
    assert verdict["success"] is False
    assert code in verdict["errors"][0]


# Picking


def test_the_options_of_pick_tools_have_the_contracts_defaults() -> None:
    """Contract 63."""
    defaults = {name: one.default for name, one in inspect.signature(pick_tools).parameters.items()}
    asked = {"max_candidates": 3, "min_score": 0.05, "allow_unsafe": False, "scorer": None, "timeout_ms": None}
    assert defaults | asked | {"debug": False} == defaults


def test_the_default_scorer_takes_at_most_a_tenth_of_a_millisecond_for_each_of_a_thousand_tools() -> None:
    """Contract 70: the tools are read once, and scored at every pick, in processor time."""
    tools = [
        ToolDefinition(f"tool_{number}", f"Handles case {number} of orders, mails and refunds.", NUMBER)
        for number in range(1000)
    ]
    index, most = ToolIndex(tools), 0.0001 * len(tools)

    def pick() -> None:
        assert len(asyncio.run(pick_tools("refund the order of case 7", index, min_score=0))) == 3

    assert cpu_seconds(pick, most) < most


async def test_a_scorer_that_fails_for_a_tool_is_logged(events: list[dict[str, Any]]) -> None:
    """Contract C32."""
    tools = [ToolDefinition(name, "A tool.", NUMBER) for name in ("good", "bad")]

    def scorer(_: Any, item: Any) -> float:
        if item.name == "bad":
            raise KeyError
        return 0.5

    picks = await pick_tools("x", tools, scorer=scorer)
    assert [one.tool.name for one in picks] == ["good"]
    assert [(event["event"], event["tool"]) for event in events] == [("pick.failed", "bad")]


# The lifecycle


async def test_what_is_ignored_after_the_end_is_logged(events: list[dict[str, Any]]) -> None:
    """Contract C1c, C18: a response in ``on_error``, a failing release and a failing last word."""

    class Leaky(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None: ...

        def did_release_quota(self, ctx: InvokeContext) -> None:
            raise OSError

    hooks = [
        Leaky(),
        at(Stage.WILL_EXECUTE, refusing(ValueError())),
        at(Stage.ON_ERROR, lambda ctx: ctx.respond(1)),
        at(Stage.WILL_FINALIZE_INVOKE, refusing(LookupError())),
    ]
    async with Gate([record()], hooks) as gate:
        result = await gate.call(ToolCall(id="c", name="double", arguments={"n": 1}))
    assert result.outcome is Outcome.ERROR
    told = {event["stage"]: event["level"] for event in events if event["event"] in {"hook.failed", "cleanup.failed"}}
    assert set(told) == {"on_error", "did_release_quota", "will_finalize_invoke"}
    assert set(told.values()) <= {"warning", "error"}


async def test_a_hook_is_expanded_to_all_stages_that_it_implements() -> None:
    """Contract C1e: by ``stages_of``, or by registering the hook whole."""
    seen: list[str] = []

    class RateLimit(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None:
            seen.append("taken")

        def did_release_quota(self, ctx: InvokeContext) -> None:
            seen.append("given back")

        def will_audit(self, ctx: InvokeContext) -> None:
            seen.append("audited")

    assert set(stages_of(RateLimit)) == {Stage.WILL_ACQUIRE_QUOTA, Stage.DID_RELEASE_QUOTA, Stage.WILL_AUDIT}
    listed = record(hooks_by_stage={stage: [RateLimit] for stage in stages_of(RateLimit)})
    for tools, hooks in (([listed], []), ([record()], [RateLimit])):
        seen.clear()
        async with Gate(tools, hooks) as gate:
            assert (await gate.call(ToolCall(id="c", name="double", arguments={"n": 1}))).ok
        assert seen == ["taken", "audited", "given back"]
