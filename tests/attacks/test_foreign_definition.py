"""A tool definition from outside, or a record of it, that claims the trust of the author's own code."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from callgate import DefinitionError, ToolDefinition, ToolRecord, tool
from callgate.errors import SchemaRefused
from callgate.tools.declaring.declare import as_tool
from callgate.tools.record import as_declared
from callgate.tools.registry import validate_tool
from callgate.tools.schemas.engines import document, fast, rust
from callgate.tools.schemas.validation import AuthorSchema, FastEngine, compile_schema, verify_schema

HOSTILE: dict[str, Any] = {
    "name": "search",
    "description": "Search.",
    "effect": "read",
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "string", "pattern": "(?=(a+)+$)b"}},
        "required": ["q"],
        "additionalProperties": False,
    },
}
"""A pattern with a look-ahead: trusted schemas may have it, and it may need exponential time."""


async def run(arguments: object, ctx: object) -> None:
    """Run nothing."""


def read() -> ToolDefinition:
    return ToolDefinition.from_dict(json.loads(json.dumps(HOSTILE)))


@tool(**{key: one for key, one in HOSTILE.items() if key != "name"})
async def search(q: str) -> str:
    """Search."""
    return q


class Executor:
    """An executor whose definition was read from data."""

    definition = read()
    schema: Any = None

    async def execute(self, arguments: object, context: object) -> None:
        """Run nothing."""


def mine() -> ToolRecord:
    """The record that ``@tool`` has made; it is trusted."""
    return as_tool(search)


DEFINITIONS: dict[str, Callable[[], ToolDefinition]] = {
    "read from JSON": read,
    "read and copied": lambda: copy.deepcopy(read()),
    "unpickled": lambda: pickle.loads(pickle.dumps(ToolDefinition(**HOSTILE))),
    "of an untrusted record": lambda: ToolRecord(ToolDefinition(**HOSTILE), run, trusted=False).definition,
}


def by_hand(definition: Callable[[], ToolDefinition]) -> ToolRecord:
    return ToolRecord(definition(), run)


class Same(ToolRecord):
    """A record that says that it is the trusted one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(TRUSTED)


def restored(record: ToolRecord, **changes: Any) -> ToolRecord:
    """Make a record of the attributes of another, as unpickling does."""
    made = object.__new__(ToolRecord)
    made.__dict__.update(record.__dict__ | changes)
    return made


TRUSTED = as_tool(search)
RECORDS: dict[str, Callable[[], ToolRecord]] = {
    **{f"a definition {name}": partial(by_hand, way) for name, way in DEFINITIONS.items()},
    "by hand": lambda: ToolRecord(ToolDefinition(**HOSTILE), run),
    "by hand, of a trusted definition": lambda: ToolRecord(mine().definition, run),
    "by hand, of fields": lambda: ToolRecord(id="search", execute=run, input_schema=HOSTILE["parameters"]),
    "copied": lambda: copy.copy(mine()),
    "replaced": lambda: dataclasses.replace(mine(), deadline=3.0),
    "replaced definition": lambda: dataclasses.replace(mine(), definition=read()),
    "attributes restored": lambda: restored(mine()),
    "attribute trusted": lambda: restored(ToolRecord(ToolDefinition(**HOSTILE), run), trusted=True),
    "an executor's": lambda: as_tool(Executor()),
    "a subclass that equals each record": lambda: Same(ToolDefinition(**HOSTILE), run),
}


@pytest.mark.parametrize("way", RECORDS)
def test_only_a_record_that_this_process_has_declared_is_trusted(way: str) -> None:
    """The schemas of any other record meet the limits for schemas from outside."""
    record = RECORDS[way]()
    assert validate_tool(search).trusted  # a check of the trusted record says nothing of another
    assert not record.trusted
    assert not isinstance(record.schema_of("parameters"), AuthorSchema)
    with pytest.raises(SchemaRefused):
        validate_tool(record)


@pytest.mark.parametrize("way", DEFINITIONS)
def test_a_definition_from_outside_is_never_trusted(way: str) -> None:
    """Not by a record that says so, nor by ``replace``."""
    definition = DEFINITIONS[way]()
    with pytest.raises(DefinitionError, match="trusted=True is refused"):
        ToolRecord(definition, run, trusted=True)
    with pytest.raises(DefinitionError, match="trusted=True is refused"):
        dataclasses.replace(ToolRecord(definition, run), trusted=True)  # type: ignore[call-arg]  # no field
    assert not as_declared(ToolRecord(definition, run)).trusted


def test_a_record_written_by_hand_cannot_trust_itself() -> None:
    with pytest.raises(DefinitionError, match="trusted=True is refused"):
        ToolRecord(ToolDefinition(**HOSTILE), run, trusted=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mine().trusted = True  # type: ignore[misc]
    assert "trusted" not in {item.name for item in dataclasses.fields(ToolRecord)}


def test_records_of_code_are_trusted_and_stay_so() -> None:
    """A record that lends its definition to an untrusted one keeps its trust."""
    record = validate_tool(search)
    assert not ToolRecord(record.definition, run, trusted=False).trusted
    assert record.trusted
    assert isinstance(record.schema_of("parameters"), AuthorSchema)


def test_control_without_the_table_of_declared_records_a_strangers_schema_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each way works where trust is a flag of the record that data carries along."""

    monkeypatch.setattr(ToolRecord, "trusted", True)
    for way in RECORDS.values():
        assert validate_tool(way()).trusted


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The schemas that fastjsonschema makes code of, on a platform without jsonschema-rs."""
    found, generate = list[object](), fast._generate

    def hear(reduced: dict[str, Any], *, detailed: bool) -> Any:
        found.append(reduced)
        return generate(reduced, detailed=detailed)

    monkeypatch.setattr(fast, "_generate", hear)
    monkeypatch.setattr(rust, "_library", lambda: None)
    return found


CODE: dict[str, Any] = {"type": "object", "properties": {"never in the cache": {"type": "integer"}}}
STEPS: dict[str, Callable[[Any], object]] = {
    "compiled": compile_schema,
    "compiled by name": lambda schema: compile_schema(schema, engine=FastEngine()),
    "compiled by the engine": lambda schema: FastEngine().compile(schema, trusted=True),
    "verified": verify_schema,
    "a definition verified": lambda schema: ToolDefinition("x", "x", schema, effect="read").verify(),  # type: ignore[arg-type]
    "registered by hand": lambda schema: validate_tool(
        ToolRecord(ToolDefinition("x", "x", schema, effect="read"), run)  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_no_schema_becomes_code_without_the_type_of_the_authors(step: str, generated: list[object]) -> None:
    with pytest.raises(SchemaRefused, match=r"@tool|jsonschema-rs"):
        STEPS[step](CODE)
    assert generated == []


@pytest.mark.parametrize("step", STEPS)
def test_control_without_the_type_each_schema_becomes_code(
    step: str, generated: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.tools.schemas.engines.document.Document", document.AuthorDocument)
    if step == "registered by hand":
        monkeypatch.setattr(ToolRecord, "trusted", True)
    STEPS[step](json.loads(json.dumps(CODE)) | {"title": step})
    assert generated


def test_the_schema_of_a_declared_tool_becomes_code(generated: list[object]) -> None:
    @tool(effect="read")
    async def add(never_seen_before: int) -> int:
        """Add."""
        return never_seen_before

    validate_tool(add)
    assert generated


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_the_type_of_the_authors_schemas_is_not_data(way: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="pickled or copied"):
        way(AuthorSchema(CODE))


class Liar(dict[str, Any]):
    """Data that says that it is of the type of the author's schemas."""

    @property  # type: ignore[misc]  # the lie
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
        return AuthorSchema


def changed_later() -> AuthorSchema:
    data = {"type": "object", "properties": {"mine": {"type": "integer"}}}
    schema = AuthorSchema(data)
    data["properties"]["evil"] = {"type": "string"}  # type: ignore[index]
    return schema


@pytest.mark.parametrize("step", [step for step in STEPS if step != "registered by hand"])
def test_data_that_claims_the_type_of_the_authors_schemas_becomes_no_code(step: str, generated: list[object]) -> None:
    with pytest.raises(SchemaRefused, match=r"@tool|jsonschema-rs"):
        STEPS[step](Liar(CODE))
    assert generated == []


def test_what_is_changed_after_it_was_wrapped_becomes_no_code(generated: list[object]) -> None:
    compile_schema(changed_later(), engine=FastEngine())
    assert "mine" in repr(generated)
    assert "evil" not in repr(generated)


def test_the_type_of_the_authors_schemas_has_no_subclass_and_refuses_a_schema_without_an_end() -> None:
    with pytest.raises(TypeError, match="has no subclasses"):
        type("Sub", (AuthorSchema,), {})
    endless: dict[str, Any] = {"type": "object"}
    endless["properties"] = endless
    with pytest.raises(SchemaRefused, match="contains itself"):
        AuthorSchema(endless)


def test_control_without_the_check_of_the_type_the_claim_is_believed(
    generated: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``isinstance`` believes ``__class__``."""
    monkeypatch.setattr(
        document, "type", lambda one: AuthorSchema if isinstance(one, AuthorSchema) else type(one), raising=False
    )
    compile_schema(Liar(CODE | {"title": "claimed"}), engine=FastEngine())
    assert generated


def test_control_without_a_copy_a_later_change_becomes_code(
    generated: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.tools.schemas.engines.base._copied", lambda schema, _: schema)
    compile_schema(changed_later(), engine=FastEngine())
    assert "evil" in repr(generated)
