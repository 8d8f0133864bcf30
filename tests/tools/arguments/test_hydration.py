"""Hydration: parse, validate, instantiate; what is refused where, and what is kept of how it went."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator

from callgate import Invalid, Provide, ToolCall, ToolContext, ToolDefinition, ToolError, ToolRecord, as_tool, tool
from callgate.errors import ControlRespond
from callgate.tools.arguments.hydration import (
    HydrationError,
    HydrationProvenance,
    HydrationResult,
    Hydrator,
    Repair,
    hydrate,
    hydrate_and_construct,
)
from callgate.tools.definition import Effect, NoSchemaMode
from callgate.tools.limits import Limits
from callgate.tools.schemas.validation import LazyValidator, Validator, compile_schema, from_validate

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
MADE: list[Any] = []


@tool(effect="read")
async def forecast(city: str, days: int = 3) -> str:
    """The weather."""
    raise AssertionError("hydration runs nothing")


@dataclass
class Place:
    city: str
    days: int = 3


@tool(effect="read", name="typed")
class Typed:
    """Takes a dataclass."""

    def __init__(self, place: Place) -> None:
        self.place = place

    async def run(self) -> str:
        raise AssertionError("hydration runs nothing")


@tool(effect="read", name="picky", parameters=CITY)
class Picky:
    """Has opinions of its own."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        if arguments["city"] == "Atlantis":
            raise LookupError("no such city: Atlantis, dsn=postgres://secret")
        self.arguments = arguments
        MADE.append(self)

    async def run(self) -> str:
        raise AssertionError("hydration runs nothing")


@tool(effect="read", name="supplied", parameters=CITY)
class Supplied:
    """Needs what only the gate has."""

    def __init__(self, arguments: dict[str, Any], *, db: Annotated[object, Provide["db"]]) -> None:
        raise AssertionError("constructed before authorisation")

    async def run(self) -> str:
        return ""


@tool(effect="read", name="contextual", parameters=CITY)
class Contextual:
    """Wants to know who asks."""

    def __init__(self, arguments: dict[str, Any], *, ctx: ToolContext) -> None:
        raise AssertionError("constructed before authorisation")

    async def run(self) -> str:
        return ""


async def execute(arguments: Any, ctx: Any) -> Any:
    raise AssertionError("hydration runs nothing")


RECORD = ToolRecord(ToolDefinition("plain", "A record.", CITY, effect=Effect.READ), execute)
TOOLS = [forecast, Typed, Picky, Supplied, Contextual, RECORD]


def run(
    call: ToolCall,
    *extra: Any,
    validator: Callable[[ToolRecord], Validator | None] | None = None,
    **options: Any,
) -> HydrationResult:
    """Hydrate one call with the tools above and *extra* ones."""
    records = {record.id: record for record in map(as_tool, [*TOOLS, *extra])}

    def compiled(name: str) -> Validator | None:
        record = records[name]
        if validator is not None:
            return validator(record)
        return None if record.definition.parameters is None else compile_schema(record.definition.parameters)

    return hydrate(call, records.get, compiled, **options)


def constructed(call: ToolCall, *extra: Any) -> HydrationResult:
    """Hydrate one call, and make the instance of its class tool."""
    record = next(one for one in map(as_tool, [*TOOLS, *extra]) if one.id == call.name)
    schema = record.definition.parameters
    hydrator = Hydrator(record, None if schema is None else compile_schema(schema))
    return hydrate_and_construct(hydrator, hydrator.hydrate(call))


def to(name: str, arguments: Any = '{"city": "Oslo"}', **options: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments, **options)


ALL = ["forecast", "typed", "picky", "supplied", "contextual", "plain"]


# ---------------------------------------------------------------------- parse, validate, instantiate


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}, b'{"city": "Oslo"}'])
@pytest.mark.parametrize("name", ALL)
def test_a_right_call_of_every_kind_of_tool_is_hydrated(name: str, arguments: Any) -> None:
    """Contract 44, 45, 46, 48, 50, 52, 56."""
    found = run(to(name, arguments))
    assert found.success
    assert not found.errors
    assert found.arguments == {"city": "Oslo"}
    seen = found.provenance
    assert (seen.provider_tool_id, seen.original_raw_args) == (name, arguments)
    assert seen.parsed == seen.validated == {"city": "Oslo"}
    assert seen.is_validated
    assert seen.validator is not None
    assert seen.validator.name
    assert seen.validator.version
    assert seen.validator.seconds is not None
    assert found.trusted


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("{", "truncated"),
        ("{'city': ", "truncated"),
        ("nonsense", "invalid_json"),
        ("[1]", "not_an_object"),
        ("null", "null"),
        ('{"city": NaN}', "not_finite"),
        ('{"city": "a", "city": "b"}', "duplicate_key"),
        ([1], "not_an_object"),
        (7, "not_an_object"),
        ({"city": {1, 2}}, "not_json"),
        ({"city": float("nan")}, "not_finite"),
    ],
)
@pytest.mark.parametrize("name", ["forecast", "picky", "plain"])
def test_what_cannot_be_read_fails_at_parse_and_the_exact_input_is_kept(name: str, arguments: Any, code: str) -> None:
    """Contract 47, C10d: JSON that is not an object can be read, and fails at ``validate``."""
    found = run(to(name, arguments))
    assert not found.success
    assert [(error.stage, error.detail["code"]) for error in found.errors] == [
        ("validate" if code in {"not_an_object", "null"} else "parse", code)
    ]
    assert found.provenance.original_raw_args is arguments or found.provenance.original_raw_args == arguments
    assert found.arguments is found.tool is found.provenance.parsed is found.provenance.validated is None


@pytest.mark.parametrize("name", ["forecast", "typed", "picky", "plain", "supplied"])
def test_what_breaks_the_schema_fails_at_validate_and_is_not_constructed(name: str) -> None:
    """Contract 48, 49, 56."""
    MADE.clear()
    found = run(to(name, {"city": 7, "moon": "SECRET"}))
    assert [error.stage for error in found.errors] == ["validate"]
    assert found.provenance.parsed == {"city": 7, "moon": "SECRET"}
    assert found.provenance.validated is None
    assert not found.provenance.is_validated
    assert found.provenance.validator is not None, "who refused it is known"
    assert {issue.pointer for issue in found.errors[0].detail} >= {"/city"}
    assert "SECRET" not in found.errors[0].message
    assert not MADE


def test_an_error_of_a_constructor_is_one_of_stage_instantiate_and_says_no_value() -> None:
    """Contract 51, 52."""
    assert run(to("picky", {"city": "Atlantis"})).success, "hydration constructs nothing"
    found = constructed(to("picky", {"city": "Atlantis"}))
    assert not found.success
    (error,) = found.errors
    assert error.stage == "instantiate"
    assert "LookupError" in str(error.detail)
    assert "Atlantis" not in f"{error}"
    assert "secret" not in f"{error}"
    assert found.provenance.validated == {"city": "Atlantis"}


def test_a_class_is_constructed_afresh_with_a_copy_of_the_arguments() -> None:
    """Contract 21, 23, 51."""
    MADE.clear()
    first, second = constructed(to("picky")), constructed(to("picky"))
    assert [first.tool, second.tool] == MADE
    assert first.tool is not second.tool
    first.tool.arguments["city"] = "changed"
    assert first.arguments == {"city": "Oslo"}


def test_a_typed_constructor_gets_its_type() -> None:
    """Contract 51."""
    assert constructed(to("typed", {"city": "Oslo", "days": 2.0})).tool.place == Place("Oslo", 2)


@pytest.mark.parametrize("name", ["supplied", "contextual"])
def test_a_constructor_that_takes_more_than_arguments_is_left_to_the_gate(name: str) -> None:
    """Contract 51."""
    found = constructed(to(name))
    assert found.success
    assert found.tool is None


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}, "{'city': 'Oslo'}"])
def test_hydration_makes_no_tool(name: str, arguments: Any) -> None:
    """Contract 44, 51, 55."""
    MADE.clear()
    found = run(to(name, arguments))
    assert found.success
    assert found.tool is None
    assert not MADE


@pytest.mark.parametrize(
    ("raised", "message", "detail"),
    [
        (ToolError("Atlantis is closed.", code="closed"), "Atlantis is closed.", {"code": "closed"}),
        (Invalid("SECRET", public="No such city."), "No such city.", {"code": "invalid_arguments"}),
        (ConnectionError("SECRET"), "The tool failed.", {"code": "tool_failed", "type": "ConnectionError"}),
        (ControlRespond(1), "The tool failed.", {"code": "tool_failed", "type": "ControlRespond"}),
    ],
)
def test_what_a_constructor_raises_without_a_gate_is_said_as_it_means(
    raised: BaseException, message: str, detail: Any
) -> None:
    """Contract 51, 52."""

    @tool(effect="read", name="raises", parameters=CITY)
    class Raises:
        """Raises."""

        def __init__(self, arguments: dict[str, Any]) -> None:
            raise raised

        async def run(self) -> None: ...

    (error,) = constructed(to("raises"), Raises).errors
    assert (error.stage, error.message, error.detail) == ("instantiate", message, detail)


def even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


def test_what_only_the_annotated_types_can_refuse_fails_at_instantiate() -> None:
    """Contract 51."""

    @tool(effect="read", name="paired")
    async def paired(count: Annotated[int, AfterValidator(even)]) -> None: ...

    assert run(to("paired", {"count": 2}), paired).success
    found = run(to("paired", {"count": 4711}), paired)
    assert [error.stage for error in found.errors] == ["instantiate"]
    assert "4711" not in repr(found.errors)


@pytest.mark.parametrize("name", ["nope", "", "Forecast", None, 7, ["forecast"]])
def test_a_call_of_an_unknown_tool_fails_at_instantiate(name: Any) -> None:
    """Contract 50, C10a."""
    found = run(ToolCall(id="c1", name=name, arguments="{}"))
    assert [(error.stage, error.detail["code"]) for error in found.errors] == [("instantiate", "unknown_tool")]
    assert found.provenance.original_raw_args == "{}"


def test_a_truncated_call_is_refused_although_its_text_is_whole() -> None:
    """Contract 47, C10d."""
    found = run(to("forecast", truncated=True))
    assert [(error.stage, error.detail["code"]) for error in found.errors] == [("parse", "truncated")]


def test_limits_of_the_tool_and_of_the_caller_hold() -> None:
    """Contract 47."""
    small = ToolRecord(ToolDefinition("small", "x", CITY, effect=Effect.READ), execute, limits=Limits(max_bytes=8))
    assert run(to("small"), small).errors[0].detail["code"] == "too_large"
    assert run(to("plain"), limits=Limits(max_bytes=8)).errors[0].detail["code"] == "too_large"


def test_what_tolerance_did_is_in_the_provenance() -> None:
    """Contract 45, 46, C10d."""
    found = run(to("forecast", "{'city': 'Oslo'}"))
    assert found.success
    assert found.provenance.rules
    assert found.provenance.raw_sha256 != found.provenance.effective_sha256
    assert found.provenance.original_raw_args == "{'city': 'Oslo'}"
    assert not run(to("forecast")).provenance.rules


def test_an_irreversible_tool_is_not_read_tolerantly() -> None:
    """Contract 45."""
    strict = ToolRecord(ToolDefinition("strict", "x", CITY, effect=Effect.IRREVERSIBLE), execute)
    found = run(to("strict", "{'city': 'Oslo'}"), strict)
    assert [error.stage for error in found.errors] == ["parse"]


def test_a_schema_without_a_validator_lets_nothing_through() -> None:
    """Contract 44."""
    found = run(to("forecast"), validator=lambda record: None)
    assert [error.stage for error in found.errors] == ["validate"]
    assert found.token is None


def test_whatever_a_validator_raises_is_a_no() -> None:
    """Contract 44, 49."""

    def broken(value: Any) -> list[Any]:
        raise RuntimeError("SECRET")

    made = from_validate(broken, engine="broken", version="0", schema=CITY)
    found = run(to("forecast"), validator=lambda record: made)
    assert [error.stage for error in found.errors] == ["validate"]
    assert "SECRET" not in repr(found.errors)


def test_a_lazy_schema_that_is_refused_lets_nothing_through() -> None:
    """Contract 18, 44."""
    lazy = LazyValidator({"type": "object", "$ref": "https://example.com/schema"})
    found = run(to("forecast"), validator=lambda record: lazy)
    assert [error.stage for error in found.errors] == ["validate"]
    assert found.provenance.validator is None


# ---------------------------------------------------------------------- without a schema


def loose(mode: NoSchemaMode) -> Any:
    @tool(
        name="loose",
        effect="read" if mode is NoSchemaMode.READ_ONLY else None,
        allow_no_schema=True,
        no_schema_mode=mode,
    )
    class Loose:
        """Takes anything."""

        def __init__(self, arguments: dict[str, Any]) -> None:
            self.arguments = arguments

        async def run(self) -> None: ...

    return Loose


@pytest.mark.parametrize("mode", list(NoSchemaMode))
def test_a_tool_without_a_schema_is_marked_as_not_validated(mode: NoSchemaMode) -> None:
    """Contract 15, 16, C9."""
    found = run(to("loose", {"what": "ever"}), loose(mode))
    assert found.success
    assert found.arguments == {"what": "ever"}
    assert not found.provenance.is_validated
    assert found.provenance.validated is None
    assert found.provenance.validator is None
    assert found.token is None
    assert found.provenance.no_schema_mode == mode.value
    logged = found.provenance.to_dict()
    assert logged["validated"] is False
    assert logged["noSchemaMode"] == mode.value
    waits = mode is NoSchemaMode.HUMAN_APPROVAL
    found = constructed(to("loose", {"what": "ever"}), loose(mode))
    assert (found.tool is None) is waits, "nothing is constructed before a person approved"


# ---------------------------------------------------------------------- ids, validators, shapes


def test_the_tools_wire_name_and_the_calls_id_are_both_kept() -> None:
    """Contract 46, C10b."""
    chunk = {"id": "c1", "name": "forecast"}
    found = run(to("forecast", synthetic_id=True, chunk=chunk), wire="ollama").provenance
    assert (found.provider_tool_id, found.provider_call_id, found.synthetic_id) == ("forecast", "c1", True)
    assert (found.wire, found.chunk) == ("ollama", chunk)
    assert found.definition == forecast.definition.digest


def test_a_validator_says_when_it_was_compiled() -> None:
    """Contract 18, 48."""

    def at(found: HydrationResult) -> str:
        assert found.provenance.validator is not None
        return found.provenance.validator.compiled_at

    assert at(run(to("plain"))) == "compile-time"
    assert at(run(to("plain"), lazy=True)) == "run-time"
    assert at(run(to("plain"), validator=lambda record: LazyValidator(CITY))) == "run-time"


def test_the_wire_shape_is_the_documents_own() -> None:
    """Contract 52, C10b."""
    found = run(to("forecast")).to_wire()
    provenance = found["provenance"]
    assert set(found) == {"success", "errors", "provenance"}
    assert found["success"] is True
    assert found["errors"] == []
    assert provenance["providerToolId"] == "forecast"
    assert provenance["providerCallId"] == "c1"
    assert provenance["originalRawArgs"] == '{"city": "Oslo"}'
    assert provenance["parsed"] == provenance["validated"] == {"city": "Oslo"}
    assert set(provenance["validator"]) == {"name", "version", "compiledAt"}
    assert provenance["validator"]["compiledAt"] == "compile-time"
    assert provenance["repaired"] is False


def test_the_wire_shape_of_a_failed_one_lists_stage_message_and_detail() -> None:
    """Contract 47, 49, 52."""
    found = run(to("forecast", {"city": 7})).to_wire()
    assert found["success"] is False
    (error,) = found["errors"]
    assert set(error) == {"stage", "message", "detail"}
    assert error["stage"] == "validate"
    assert error["detail"][0] == {"pointer": "/city", "keyword": "type", "expected": error["detail"][0]["expected"]}
    assert run(to("nope")).to_wire()["provenance"]["validator"] is None


class Chunk:
    """An SDK's own object."""


ODD: list[Any] = [
    None,
    b"\xff{",
    "\ud800",
    {"x": float("inf")},
    {"x": 10**5000},
    {"x": {1}},
    {1: 2},
    Chunk(),
    (1, "\udfff"),
]


@pytest.mark.parametrize("arguments", ODD, ids=range(len(ODD)))
def test_every_provenance_is_plain_json_for_logs(arguments: Any) -> None:
    """Contract 47, 54, C9."""
    call = ToolCall(id="\ud800", name="forecast", arguments=arguments, chunk=Chunk())
    for found in (run(call), run(call, repair=lambda call, error: {"city": Chunk()})):
        for shown in (found.provenance.to_dict(), found.to_wire()):
            assert json.loads(json.dumps(shown, allow_nan=False).encode()) == shown
            orjson.dumps(shown)
        assert found.provenance.to_dict()["validated"] is False


@pytest.mark.parametrize("arguments", ["deep", "cyclic"])
def test_arguments_that_nest_too_deep_or_for_ever_are_refused_like_any(arguments: str) -> None:
    """Contract 47, 53."""
    nested: dict[str, Any] = {}
    if arguments == "cyclic":
        nested["again"] = nested
    for _ in range(100_000):
        nested = {"more": nested}
    found = run(to("forecast", nested))
    assert found.errors[0].detail["code"] == "too_deep"
    orjson.dumps(found.provenance.to_dict())
    while "more" in nested:  # taken apart by hand: freeing it whole recurses
        nested = nested.pop("more")
    nested.clear()


def test_a_result_cannot_be_changed_by_way_of_what_it_was_made_from() -> None:
    """Contract 46, I2."""
    given = {"city": "Oslo"}
    found = run(to("plain", given))
    given["city"] = "Bergen"
    assert found.arguments == found.provenance.original_raw_args == {"city": "Oslo"}
    assert found.arguments is not None
    with pytest.raises(TypeError, match="frozen"):
        found.arguments["city"] = "Bergen"


# ---------------------------------------------------------------------- repair


class Repairing:
    """A repairer that counts."""

    def __init__(self, after: Any) -> None:
        self.after, self.asked = after, list[HydrationError]()

    def __call__(self, call: ToolCall, error: HydrationError) -> Any:
        self.asked.append(error)
        if isinstance(self.after, Exception):
            raise self.after
        return self.after


@pytest.mark.parametrize(("broken", "stage"), [("nonsense", "parse"), ('{"city": 7}', "validate")])
@pytest.mark.parametrize("after", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_a_repair_is_recorded_before_and_after_and_leaves_the_result_untrusted(
    broken: str, stage: str, after: Any
) -> None:
    """Contract 49, 54, C10c."""
    repairer = Repairing(after)
    found = run(to("forecast", broken), repair=repairer)
    assert found.success
    assert found.provenance.repaired
    assert not found.trusted
    noted = found.provenance.repair
    assert isinstance(noted, Repair)
    assert (noted.by, noted.before, noted.after, noted.failed) == ("Repairing", broken, after, None)
    assert noted.reason.stage == stage
    assert noted.at > 1_600_000_000
    assert found.provenance.original_raw_args == broken
    assert found.provenance.validated == {"city": "Oslo"}
    assert [error.stage for error in repairer.asked] == [stage]
    assert found.provenance.to_dict()["repair"]["reason"]["stage"] == stage


@pytest.mark.parametrize("broken", ["nonsense", '{"city": 7}'])
@pytest.mark.parametrize("after", ["nonsense", '{"city": 7}', {}])
def test_a_repair_that_does_not_help_is_not_tried_again(broken: str, after: Any) -> None:
    """Contract 49, C10c."""
    repairer = Repairing(after)
    found = run(to("forecast", broken), repair=repairer)
    assert len(repairer.asked) == 1
    assert not found.success
    assert not found.trusted
    assert found.provenance.repair is not None
    assert (found.provenance.parsed is None) is (after == "nonsense"), "nothing is left of the first attempt"


@pytest.mark.parametrize(("after", "failed"), [(None, None), (RuntimeError("SECRET"), "RuntimeError")])
def test_a_repairer_that_gives_up_or_fails_is_recorded_and_changes_nothing(after: Any, failed: str | None) -> None:
    """Contract 47, 54, C10c."""
    found = run(to("forecast", "nonsense"), repair=Repairing(after))
    assert [error.stage for error in found.errors] == ["parse"]
    assert not found.provenance.repaired
    assert found.provenance.repair is not None
    assert (found.provenance.repair.after, found.provenance.repair.failed) == (None, failed)
    assert "SECRET" not in repr(found)


@pytest.mark.parametrize(
    "call",
    [to("forecast"), to("nope", "{"), to("forecast", "{", truncated=True)],
    ids=["right", "unknown tool", "truncated"],
)
def test_only_a_failed_parse_or_validation_of_a_whole_call_is_repaired(call: ToolCall) -> None:
    """Contract 47, 49, C10c."""
    repairer = Repairing({"city": "Oslo"})
    found = run(call, repair=repairer)
    assert not repairer.asked
    assert found.provenance.repair is None


def test_without_a_repairer_nothing_is_repaired() -> None:
    """Contract 47, C10c."""
    found = run(to("forecast", '{"city": 7}'))
    assert not found.success
    assert not found.provenance.repaired
    assert found.provenance.repair is None


# ---------------------------------------------------------------------- many, and anything at all


def test_every_call_of_an_answer_has_its_result_in_order() -> None:
    """Contract 53, C10a."""
    calls = [to(name, text) for name in [*ALL, "nope"] for text in ('{"city": "Oslo"}', "{", "{}")]
    records = {record.id: record for record in map(as_tool, TOOLS)}

    def compiled(name: str) -> Validator:
        return compile_schema(records[name].definition.parameters or {})

    results = [hydrate(call, records.get, compiled, wire="anthropic") for call in calls]
    assert [result.call for result in results] == calls
    assert [result.success for result in results] == [True, False, False] * len(ALL) + [False] * 3
    assert {result.provenance.wire for result in results} == {"anthropic"}


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*ALL, "nope"]), JSON, JSON, st.booleans())
def test_hydration_never_raises_for_what_is_in_a_call(name: str, raw: Any, mended: Any, truncated: bool) -> None:
    """Contract 53, I2."""
    call = ToolCall(id="c", name=name, arguments=raw, truncated=truncated)
    found = run(call, repair=lambda call, error: mended)
    assert found.success is not bool(found.errors)
    assert isinstance(found.provenance, HydrationProvenance)
    if found.success:
        assert isinstance(found.arguments, Mapping)
        assert isinstance(found.arguments["city"], str)
    json.dumps([found.provenance.to_dict(), found.to_wire()], allow_nan=False)


def test_hydration_needs_no_event_loop() -> None:
    """Contract 55."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert run(to("forecast")).success


# ---------------------------------------------------------------------- no arguments

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize("sent", [None, "", " \n", b"", "{}", {}])
@pytest.mark.parametrize("effect", [Effect.READ, Effect.IDEMPOTENT, Effect.IRREVERSIBLE])
def test_a_tool_that_takes_nothing_can_be_called_without_arguments(sent: Any, effect: Effect) -> None:
    """Contract 45, C10d: several wires send nothing for such a tool, and no model can mend that."""
    record = ToolRecord(ToolDefinition("stop", "x", NOTHING, effect=effect), execute)
    found = run(to("stop", sent), record)
    assert found.success, found.errors
    assert found.arguments == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**NOTHING, "properties": {"n": {"type": "integer"}}},
        {**NOTHING, "patternProperties": {"^x": {}}},
    ],
)
@pytest.mark.parametrize("sent", [None, "", " "])
def test_an_irreversible_tool_that_takes_something_is_not_called_without_arguments(schema: Any, sent: Any) -> None:
    """Contract 45."""
    record = ToolRecord(ToolDefinition("stop", "x", schema, effect=Effect.IRREVERSIBLE), execute)
    assert [error.stage for error in run(to("stop", sent), record).errors] == ["parse"]


@pytest.mark.parametrize("sent", ["null", "[]", "nothing", '{"n": 1}', "{'n': 1}", "```\n{}\n```"])
def test_a_tool_that_takes_nothing_is_read_as_strictly_as_before(sent: str) -> None:
    """Contract 45."""
    record = ToolRecord(ToolDefinition("stop", "x", NOTHING, effect=Effect.IRREVERSIBLE), execute)
    assert not run(to("stop", sent), record).success


def test_a_truncated_call_of_a_tool_that_takes_nothing_is_refused() -> None:
    """Contract 47."""
    record = ToolRecord(ToolDefinition("stop", "x", NOTHING, effect=Effect.IRREVERSIBLE), execute)
    assert not run(to("stop", "", truncated=True), record).success
