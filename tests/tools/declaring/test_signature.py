"""From signature and docstring to schema and conversions: design 4; contract 11, 21, 26-29, 33."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional

import dishka
import docstring_parser
import fastapi
import fastjsonschema
import jsonschema_rs
import pytest
import wireup
from annotated_types import Len, Predicate
from dependency_injector import containers, providers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
)
from typing_extensions import Doc, TypeAliasType, TypedDict

from callgate import Gate, tool
from callgate.errors import DefinitionError, Invalid
from callgate.providers.provide import Provide
from callgate.tools.calls import Issue
from callgate.tools.context import ToolContext
from callgate.tools.declaring.signature import Signature, read_docstring, read_signature
from callgate.tools.outputs import LOOSE

OrderId = NewType("OrderId", str)
Words = TypeAliasType("Words", list[str])


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


class Money(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    amount: decimal.Decimal
    at: dt.datetime


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Receipt(BaseModel):
    id: str
    when: dt.date
    total_cents: int = Field(alias="totalCents")


class Db:
    pass


class App(containers.DeclarativeContainer):
    db = providers.Factory(Db)


def schema_of(call: Callable[..., Any]) -> dict[str, Any]:
    found = read_signature(call).parameters
    assert found is not None
    return dict(found)


def property_of(hint: Any, default: Any = ...) -> dict[str, Any]:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = hint
    if default is not ...:
        function.__defaults__ = (default,)
    value: dict[str, Any] = schema_of(function)["properties"]["x"]
    return value


def convert_one(hint: Any, value: Any) -> Any:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = hint
    found = read_signature(function)
    return found.convert({"x": value})["x"] if found.convert else value


def converts(hint: Any) -> bool:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = hint
    return read_signature(function).convert is not None


# ------------------------------------------------------------------ the schema


def test_a_plain_signature_gives_a_plain_closed_schema() -> None:
    """Contract 26, 29."""

    async def refund(order_id: str, cents: int, note: str | None = None, tags: list[str] | None = None) -> None: ...

    assert schema_of(refund) == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string"},
            "cents": {"type": "integer"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "tags": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": None},
        },
        "required": ["order_id", "cents"],
        "additionalProperties": False,
    }


def test_no_parameters_make_an_empty_closed_object() -> None:
    assert schema_of(lambda: None) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_parameter_without_annotation_takes_any_value() -> None:
    def function(x, y=5): ...  # type: ignore[no-untyped-def]

    assert schema_of(function)["properties"] == {"x": {}, "y": {"default": 5}}


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, {"type": "string"}),
        (OrderId, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (dt.date, {"type": "string", "format": "date"}),
        (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[str, Field(pattern="^a+$", max_length=5)], {"type": "string", "pattern": "^a+$", "maxLength": 5}),
        (Annotated[list[str], Len(1, 2)], {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}),
        (Annotated[str, "The city"], {"type": "string", "description": "The city"}),
        (Annotated[str, Doc("The city")], {"type": "string", "description": "The city"}),
        (Annotated[str, Field(description="The city")], {"type": "string", "description": "The city"}),
    ],
)
def test_annotations_and_constraints_reach_the_schema(hint: Any, expected: dict[str, Any]) -> None:
    """Contract 27, 28."""
    assert property_of(hint) == expected


def test_types_with_names_become_local_definitions() -> None:
    """Contract 19."""

    def order(color: Color, line: Line, to: Address, tree: Node) -> None: ...

    schema = schema_of(order)
    assert schema["properties"]["color"] == {"$ref": "#/$defs/Color"}
    assert schema["$defs"].keys() == {"Color", "Line", "Address", "Node"}
    assert schema["$defs"]["Line"]["required"] == ["sku"]
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert '"title"' not in json.dumps(schema)
    jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize(
    ("hint", "default", "shown"),
    [
        (int, 5, 5),
        (Color, Color.RED, "red"),
        (dt.date, dt.date(2026, 1, 2), "2026-01-02"),
        (list[str], [], []),
        (str | None, None, None),
    ],
)
def test_a_default_is_shown_as_json(hint: Any, default: Any, shown: Any) -> None:
    assert property_of(hint, default)["default"] == shown


@pytest.mark.parametrize(
    ("hint", "default"), [(str, None), (int, "x"), (Any, object()), (Annotated[int, Field(ge=1)], 0)]
)
def test_a_default_that_would_mislead_is_not_shown(hint: Any, default: Any) -> None:
    assert "default" not in property_of(hint, default)


def test_a_json_name_that_python_cannot_spell_is_an_alias() -> None:
    def search(from_: Annotated[str, Field(alias="from")], n: int = 1) -> None: ...

    found = read_signature(search)
    assert (found.parameters or {})["required"] == ["from"]
    assert found.convert is not None
    assert found.convert({"from": "x", "n": 2.0}) == {"from_": "x", "n": 2}


# ------------------------------------------------------------------ docstrings

STYLES = {
    "google": """Refund an order.

    Takes a while.

    Args:
        order_id: The order
            to refund.
        cents: How much.

    Returns:
        A receipt.
    """,
    "numpy": """Refund an order.

    Takes a while.

    Parameters
    ----------
    order_id : str
        The order
        to refund.
    cents : int
        How much.
    """,
    "rest": """Refund an order.

    Takes a while.

    :param order_id: The order
        to refund.
    :param cents: How much.
    :returns: a receipt
    """,
}


@pytest.mark.parametrize("style", STYLES)
def test_docstrings_of_three_styles_describe_the_tool_and_its_parameters(style: str) -> None:
    def refund(order_id: str, cents: Annotated[int, Field(description="Own words.")]) -> None: ...

    refund.__doc__ = STYLES[style]
    found = read_signature(refund)
    assert found.description == "Refund an order.\n\nTakes a while."
    assert (found.parameters or {})["properties"]["order_id"]["description"] == "The order to refund."
    assert (found.parameters or {})["properties"]["cents"]["description"] == "Own words."


def test_a_long_docstring_is_cut_to_what_a_description_may_hold() -> None:
    """Contract 25."""
    whole = "Short.\n\n" + ("long " * 400).strip()
    assert read_docstring(whole)[0] == whole, "the limit of a wire is no limit of tools"
    assert read_docstring("Short.\n\n" + "long " * 20_000)[0] == "Short."
    assert len(read_docstring("x" * 100_000)[0] or "") == 65_536
    assert read_docstring("  \n ") == read_docstring(None) == (None, {})


def test_a_docstring_that_cannot_be_parsed_gives_its_first_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_text: str) -> None:
        raise docstring_parser.ParseError

    monkeypatch.setattr(docstring_parser, "parse", fail)
    assert read_docstring("First\n    line.\n\n    Args: broken") == ("First\nline.", {})


# ------------------------------------------------------------------ refused signatures


def test_what_json_cannot_fill_by_name_is_refused() -> None:
    def positional(a: int, /) -> None: ...
    def many(*values: int) -> None: ...
    def wrapped(*args: Any, **kwargs: Any) -> None: ...
    def anything(**values: int) -> None: ...
    def method(self, a: int) -> None: ...  # type: ignore[no-untyped-def]
    def bare(ctx, a: int) -> None: ...  # type: ignore[no-untyped-def]
    def two(a: ToolContext, b: ToolContext) -> None: ...
    def generator(a: int) -> Iterator[int]:
        yield a

    def fielded(a: int = Field(default=1)) -> None: ...
    def hidden_default(a: Annotated[int, Field(default=1)] = 2) -> None: ...
    def foreign(a: int, b: Db) -> None: ...
    def choosy(a: Annotated[int, Field(validation_alias=AliasChoices("x", "y"))]) -> None: ...
    def constrained(b: Callable[[], int]) -> None: ...

    expected: dict[Callable[..., Any], str] = {
        positional: "'a' is positional",
        many: "'values' is positional",
        wrapped: "let it use functools.wraps",
        anything: "kwargs has no schema",
        method: "not a method",
        bare: "annotate it with ToolContext",
        two: "only one parameter",
        generator: "async generator",
        fielded: "Annotated",
        hidden_default: "default after =",
        choosy: "one name",
        foreign: "parameter 'b'",
        constrained: "parameter 'b'",
    }
    for call, text in expected.items():
        with pytest.raises(DefinitionError, match=text):
            read_signature(call)


def owner() -> str:
    return "ann"


FROM_DISHKA: Any = dishka.FromDishka
FOREIGN: list[tuple[object, object, str]] = [
    (Annotated[str, fastapi.Depends(owner)], Parameter.empty, "Depends of fastapi"),
    (Annotated[str, fastapi.Security(owner)], Parameter.empty, "Security of fastapi"),
    (Annotated[str, fastapi.Header()], Parameter.empty, "Header of fastapi"),
    (str, fastapi.Depends(owner), "Depends of fastapi"),
    (int, fastapi.Query(3), "Query of fastapi"),
    (FROM_DISHKA[str], Parameter.empty, "of dishka"),
    (Annotated[str, wireup.Inject(config="x")], Parameter.empty, "is not asked here"),
    (int, ..., "leave the default out"),
]


@pytest.mark.parametrize(("hint", "default", "says"), FOREIGN)
def test_what_another_framework_would_supply_is_not_left_to_a_model(hint: Any, default: Any, says: str) -> None:
    """It was in the schema as any other parameter, so a model chose the user of the call."""

    def function(found: Any) -> None: ...

    function.__annotations__["found"] = hint
    function.__defaults__ = None if default is Parameter.empty else (default,)
    with pytest.raises(DefinitionError, match=says):
        read_signature(function)


def test_the_limits_of_a_field_of_fastapi_hold() -> None:
    def function(n: Annotated[int, fastapi.Query(ge=1)]) -> None: ...

    assert read_signature(function).parameters == {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1}},
        "required": ["n"],
        "additionalProperties": False,
    }


def test_an_annotation_that_is_not_defined_is_named() -> None:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = "Nowhere"
    with pytest.raises(DefinitionError, match="Nowhere"):
        read_signature(function)


def test_a_return_type_without_json_form_is_refused_with_a_way_out() -> None:
    def function() -> Db: ...  # type: ignore[empty-body]

    with pytest.raises(DefinitionError, match="annotate Any"):
        read_signature(function)


# ------------------------------------------------------------------ what the gate supplies


def test_injected_parameters_and_the_context_are_absent_from_the_schema() -> None:
    """Contract 82; design 4."""

    async def refund(
        order_id: str,
        *,
        db: Annotated[Db, Provide[App.db]],
        other: Db = Provide[App.db],
        context: ToolContext | None = None,
    ) -> None: ...

    found = read_signature(refund)
    assert list((found.parameters or {})["properties"]) == ["order_id"]
    assert [item.name for item in found.injected] == ["db", "other"]
    assert found.injected[0].token is App.db
    assert found.context_parameter == "context"


@pytest.mark.parametrize("hint", [ToolContext, Annotated[ToolContext, "x"], Optional[ToolContext]])  # noqa: UP045
def test_the_context_is_known_by_its_annotation_under_any_name(hint: Any) -> None:
    def function(whatever: Any) -> None: ...

    function.__annotations__["whatever"] = hint
    assert read_signature(function).context_parameter == "whatever"


# ------------------------------------------------------------------ an author's own schema

OWN = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}


def own(call: Callable[..., Any], schema: Mapping[str, Any] = OWN) -> Signature:
    return read_signature(call, parameters=schema)


def issues_of(convert: Any, arguments: dict[str, Any]) -> list[str]:
    with pytest.raises(Invalid) as caught:
        convert(arguments)
    assert caught.value.stage == "instantiate"
    return [str(issue) for issue in caught.value.issues]


def test_an_authors_schema_is_kept_and_the_signature_still_converts() -> None:
    """Contract 11."""

    def function(a: int) -> None: ...

    found = own(function)
    assert found.parameters is OWN
    assert found.convert is not None
    assert found.convert({"a": 2.0}) == {"a": 2}
    assert issues_of(found.convert, {"a": 2.5}) == ["/a: must be an integer"]


def test_where_an_authors_schema_leaves_room_the_signature_decides() -> None:
    def function(a: float, b: str = "x", *, db: Annotated[Db, Provide[App.db]]) -> None: ...

    convert = own(function).convert
    assert convert is not None
    assert convert({"a": 1}) == {"a": 1.0}
    assert issues_of(convert, {"a": 1, "db": "stolen", "zz": 1}) == ["/db: must be absent", "/zz: must be absent"]
    assert issues_of(convert, {}) == ["/a: is required"]


def test_a_closed_schema_needs_no_guard() -> None:
    def function(a: str) -> None: ...

    assert own(function, {**OWN, "additionalProperties": False}).convert is None


def test_with_kwargs_the_schema_decides_but_never_over_injected_names() -> None:
    def function(a: str, db: Annotated[Db, Provide[App.db]], **more: Any) -> None: ...

    convert = own(function).convert
    assert convert is not None
    assert convert({"a": "x", "zz": 1}) == {"a": "x", "zz": 1}
    assert issues_of(convert, {"a": "x", "db": 1}) == ["/db: must be absent"]


def test_a_schema_and_a_signature_that_contradict_each_other_are_refused() -> None:
    def other(b: str) -> None: ...
    def more(a: str, b: str) -> None: ...
    def injected(a: Annotated[Db, Provide[App.db]]) -> None: ...

    with pytest.raises(DefinitionError, match="'a', which the function does not take"):
        own(other)
    with pytest.raises(DefinitionError, match="does not require 'b'"):
        own(more)
    with pytest.raises(DefinitionError, match="supplied by the gate"):
        own(injected)


def test_a_composed_schema_is_left_to_the_call() -> None:
    def function(a: str, b: str = "") -> None: ...

    convert = own(function, {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["c"]}]}).convert
    assert convert is not None
    assert convert({"a": "x"}) == {"a": "x"}
    assert issues_of(convert, {"c": "x"}) == ["/a: is required", "/c: must be absent"]


def test_without_a_schema_the_signature_is_the_only_guard() -> None:
    """Contract 16."""

    def function(a: int, b: int = 0) -> None: ...

    found = read_signature(function, generate=False)
    assert found.parameters is None
    assert issues_of(found.convert, {"b": 1, "c": 2}) == ["/a: is required", "/c: must be absent"]
    assert issues_of(found.convert, {"a": 1.5}) == ["/a: must be an integer"]


# ------------------------------------------------------------------ conversion


@pytest.mark.parametrize(
    "hint",
    [
        *(str, bool, Any, object, None, dict, list, dict[str, Any], list[str], str | None, Mapping[str, str]),
        *(Sequence[bool], Literal["a", True] | None, OrderId, Words, Address, int | float, list[dict[str, list[bool]]]),
        *(Annotated[str, Field(min_length=1, pattern="a")], Annotated[list[str], Len(1)], Annotated[str, "words"]),
    ],
)
def test_json_native_parameters_need_no_conversion(hint: Any) -> None:
    assert not converts(hint)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, 2.0, 2),
        (int | None, 2.0, 2),
        (int | str, 2.0, 2),
        (Annotated[int, Field(ge=1)], 2.0, 2),
        (float, 2, 2.0),
        (float | None, 2, 2.0),
        (Literal[1, 2], 2.0, 2),
        (Level, 2.0, Level.HIGH),
        (list[int], [2.0, 3], [2, 3]),
        (dict[str, float], {"a": 2}, {"a": 2.0}),
        (Color, "blue", Color.BLUE),
        (dt.datetime, "2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
        (uuid.UUID, "12345678123456781234567812345678", uuid.UUID("12345678123456781234567812345678")),
        (set[str], ["a", "b"], {"a", "b"}),
        (tuple[int, str], [1.0, "a"], (1, "a")),
        (Line, {"sku": "a", "count": 2.0}, Line("a", 2)),
        (Line | None, None, None),
        (list[Line], [{"sku": "a"}], [Line("a")]),
        (Base64Bytes, "aGk=", b"hi"),
        (Annotated[str, StringConstraints(to_upper=True)], "a", "A"),
        (int, 10**400, 10**400),
        (int, True, True),
    ],
)
def test_validated_json_arrives_as_the_annotated_type(hint: Any, value: Any, expected: Any) -> None:
    """Contract 33, C7."""
    found = convert_one(hint, value)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(found, list | tuple):
        assert [type(item) for item in found] == [type(item) for item in expected]


@pytest.mark.parametrize("hint", [Iterable[int], Iterable, Iterable[int] | None, Annotated[Iterable[int], Len(1)]])
def test_an_iterable_can_be_read_twice(hint: Any) -> None:
    given = convert_one(hint, [1, 2])
    assert [list(given), list(given)] == [[1, 2], [1, 2]]


class Ints(BaseModel):
    ints: Iterable[int]


@pytest.mark.parametrize("hint", [Generator[int, None, None], list[Iterable[int]], dict[str, Iterable[int]], Ints])
def test_an_iterator_inside_a_type_is_refused_because_it_can_be_read_once(hint: Any) -> None:
    with pytest.raises(DefinitionError, match=r"can be read once.*write list"):
        property_of(hint)


def test_a_strict_model_reads_json_as_json() -> None:
    money = convert_one(Money, {"amount": "1.5", "at": "2026-01-02T03:04:05Z"})
    assert money.amount == decimal.Decimal("1.5")
    assert money.at.year == 2026


def test_what_is_missing_stays_missing() -> None:
    def flat(a: int, b: float = 0.5) -> None: ...
    def typed(a: dt.date, b: int = 3, c: Color = Color.RED) -> None: ...

    cases: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
        (flat, {"a": 1.0}, {"a": 1}),
        (typed, {"a": "2026-01-02"}, {"a": dt.date(2026, 1, 2)}),
    ]
    for call, given_, expected in cases:
        convert = read_signature(call).convert
        assert convert is not None
        assert convert(given_) == expected


def test_the_given_arguments_are_never_changed() -> None:
    def function(a: int, b: float) -> None: ...

    convert = read_signature(function).convert
    assert convert is not None
    given_: dict[str, object] = {"a": 2.0, "b": 3}
    assert convert(given_) == {"a": 2, "b": 3.0}
    assert type(given_["a"]) is float
    assert type(given_["b"]) is int


@given(
    st.fixed_dictionaries(
        {"a": st.integers() | st.integers(-(2**53), 2**53).map(float)}, optional={"b": st.floats(allow_nan=False)}
    )
)
def test_numbers_keep_their_value_and_get_their_class(arguments: dict[str, Any]) -> None:
    """Contract 33."""

    def function(a: int, b: float = 0.0) -> None: ...

    convert = read_signature(function).convert
    assert convert is not None
    found = convert(arguments)
    assert found == arguments
    assert type(found["a"]) is int
    assert type(found.get("b", 0.0)) is float


def test_an_integer_beyond_any_float_is_refused_for_a_float() -> None:
    def function(a: float) -> None: ...

    assert issues_of(read_signature(function).convert, {"a": 10**400}) == ["/a: must lie in the range of a double"]


def test_a_check_beyond_the_schema_is_refused_without_values() -> None:
    """Contract 51; design 10.10."""

    def reject(value: str) -> str:
        raise ValueError(f"{value} is bad")

    def function(
        code: Annotated[str, AfterValidator(reject)],
        even: Annotated[int, Predicate(lambda n: n % 2 == 0)],
        lines: list[Line],
        when: dt.date | int,
    ) -> None: ...

    convert = read_signature(function).convert
    assert convert is not None
    sent: dict[str, object] = {"code": "s3cret", "even": 3, "lines": [{"sku": "a"}, {"count": 1}], "when": "s3cret"}
    with pytest.raises(Invalid) as caught:
        convert(sent)
    error = caught.value
    assert error.stage == "instantiate"
    assert Issue("/code", "value_error", "must pass the tool's own check") in error.issues
    assert Issue("/lines/1/sku", "missing", "is required") in error.issues
    assert {issue.pointer for issue in error.issues} == {"/code", "/even", "/lines/1/sku", "/when"}
    assert "s3cret" not in f"{error!r} {error.issues} {error.public}"
    assert error.__context__ is None
    assert error.__cause__ is None


def test_what_needs_no_change_is_not_even_copied() -> None:
    """performance.md 6: the usual call pays two look-ups."""

    def function(a: int, b: int, note: str | None = None) -> None: ...

    convert = read_signature(function).convert
    arguments: dict[str, object] = {"a": 1, "b": 2, "note": None}
    assert convert is not None
    assert convert(arguments) is arguments


# ------------------------------------------------------------------ what comes back


def returning(hint: Any) -> Signature:
    async def function() -> Any: ...

    function.__annotations__["return"] = hint
    return read_signature(function)


@pytest.mark.parametrize("hint", [int, str, float, dict[str, int], list[Any], str | None, Literal[1, "a"]])
def test_a_native_return_type_has_a_schema_and_needs_no_conversion(hint: Any) -> None:
    output = returning(hint).output
    assert output.schema
    assert output.to_json is LOOSE
    assert output.from_json is None


@pytest.mark.parametrize("hint", [None, Any, object])
def test_some_return_types_say_nothing(hint: Any) -> None:
    assert returning(hint).output.schema is None


def test_a_typed_return_goes_to_json_and_back() -> None:
    output = returning(Receipt).output
    receipt = Receipt(id="r", when=dt.date(2026, 1, 2), totalCents=5)
    assert output.schema is not None
    assert output.to_json is not None
    assert output.from_json is not None
    found = output.to_json(receipt)
    assert found == {"id": "r", "when": "2026-01-02", "totalCents": 5}
    fastjsonschema.compile(output.schema)(found)
    assert output.from_json(found) == receipt


def test_a_recursive_return_type_has_an_object_at_its_root() -> None:
    schema = returning(Node).output.schema
    assert schema is not None
    assert schema["type"] == "object"
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert not jsonschema_rs.is_valid(schema, {"name": "a", "children": [{"nome": "b"}]})


def test_a_wrong_return_value_is_left_to_output_validation() -> None:
    to_json = returning(Receipt).output.to_json
    assert to_json is not None
    assert to_json({"id": 5}) == {"id": 5}


def test_output_that_does_not_read_back_is_an_invalid_output_without_values() -> None:
    from_json = returning(Receipt).output.from_json
    assert from_json is not None
    with pytest.raises(Invalid) as caught:
        from_json({"id": "r", "when": "s3cret"})
    assert caught.value.stage == "output"
    assert "s3cret" not in repr(caught.value)


def test_a_tool_that_does_not_say_what_it_returns_may_return_a_model_but_nothing_opaque() -> None:
    def function(): ...  # type: ignore[no-untyped-def]

    to_json = read_signature(function).output.to_json
    assert to_json is not None
    assert to_json(Line("a")) == {"sku": "a", "count": 1}
    assert to_json({"a": 1}) == {"a": 1}
    with pytest.raises(Invalid, match="a JSON form, found Db"):
        to_json([Db()])


def test_an_output_schema_can_be_left_out() -> None:
    async def function() -> Receipt: ...  # type: ignore[empty-body]

    output = read_signature(function, output=False).output
    assert output.schema is None
    assert output.to_json is not None


# ------------------------------------------------------------------ colour


def test_the_colour_of_a_function_is_known() -> None:
    def plain() -> int: ...  # type: ignore[empty-body]
    async def coroutine() -> int: ...  # type: ignore[empty-body]
    def awaitable() -> Awaitable[int]: ...  # type: ignore[empty-body]

    found = [read_signature(call) for call in (plain, coroutine, awaitable)]
    assert [item.is_async for item in found] == [False, True, True]
    assert [item.output.schema for item in found] == [{"type": "integer"}] * 3


def test_an_async_generator_streams_parts() -> None:
    async def parts(n: int) -> AsyncIterator[Line]:
        yield Line("a", n)

    found = read_signature(parts)
    assert found.is_async
    assert found.streams
    assert found.output.to_json is not None
    assert found.output.from_json is not None
    assert found.output.to_json(Line("a")) == {"sku": "a", "count": 1}
    assert found.output.schema is not None
    assert found.output.schema["type"] == "array"
    assert found.output.from_json([{"sku": "a"}]) == [Line("a")]


# ------------------------------------------------------------------ schemas hold what they say


class Everything(BaseModel):
    name: str
    level: Level
    when: dt.date | None = None
    lines: list[Line]


@settings(deadline=None)
@given(
    st.builds(
        Everything,
        name=st.text(),
        level=st.sampled_from(Level),
        when=st.none() | st.dates(),
        lines=st.lists(st.builds(Line, sku=st.text(), count=st.integers(-(2**63), 2**63 - 1)), max_size=3),
    )
)
def test_what_a_schema_admits_converts_and_what_is_returned_fits_its_schema(value: Everything) -> None:
    async def function(value: Everything) -> Everything: ...  # type: ignore[empty-body]

    found = read_signature(function)
    assert found.parameters is not None
    assert found.convert is not None
    assert found.output.to_json is not None
    assert found.output.schema is not None
    sent = {"value": found.output.to_json(value)}
    assert jsonschema_rs.is_valid(dict(found.parameters), sent)
    assert jsonschema_rs.is_valid(found.output.schema, sent["value"])
    assert found.convert(sent) == {"value": value}


ONE = "the first number"
TWO = "the second number"
SECTIONS = {
    "one section": f"Args:\n    a: {ONE}\n    b: {TWO}",
    "keyword args": f"Args:\n    a: {ONE}\n\nKeyword Args:\n    b: {TWO}",
    "keyword arguments, without a blank line": f"Args:\n    a: {ONE}\nKeyword Arguments:\n    b: {TWO}",
    "keyword args alone": f"Keyword Args:\n  a: {ONE}\n  b (int): {TWO}",
    "other parameters": f"Parameters:\n    a: {ONE}\n\nOther Parameters:\n    b: {TWO}",
    "one line": f"Args: a: {ONE}, b: {TWO}",
    "one line each": f"Args: a: {ONE}\nKeyword Args: b: {TWO}",
    "a line, then a section": f"Args: a: {ONE}\n  b: {TWO}",
}


@pytest.mark.parametrize("sections", SECTIONS)
def test_every_usual_section_of_parameters_is_read(sections: str) -> None:
    def add(a: int, *, b: int) -> int:
        return a + b

    add.__doc__ = f"Add.\n\n{SECTIONS[sections]}\n"
    read = read_signature(add)
    properties = (read.parameters or {})["properties"]
    assert {name: properties[name].get("description") for name in "ab"} == {"a": ONE, "b": TWO}
    assert read.description == "Add."


@pytest.mark.parametrize("prose", ["Parameters: see the manual.", "Args: none that matter.", "Arguments: win them."])
def test_prose_that_begins_like_a_section_stays_in_the_description(prose: str) -> None:
    def add(a: int) -> int:
        return a

    add.__doc__ = f"Add.\n\n{prose}\n"
    assert (read_signature(add).description or "").endswith(prose)


class Small(ValueError):
    """An error with a text for the model."""

    public = "give a positive amount"


class Amount(BaseModel):
    cents: int

    @field_validator("cents")
    @classmethod
    def positive(cls, value: int) -> int:
        if value == 0:
            raise ValueError(f"the secret {value}")
        if value < 0:
            raise Small(f"the secret {value}")
        return value


@pytest.mark.parametrize(
    ("cents", "text"),
    [(-1, "give a positive amount"), (0, "must pass the tool's own check")],
    ids=["public", "private"],
)
async def test_a_validators_own_message_reaches_the_model_if_it_is_public(cents: int, text: str) -> None:
    """The pointer is in the text for the model, too; the text of other exceptions is not."""

    @tool(effect="read")
    async def refund(amount: Amount) -> int:
        """Refund."""
        return amount.cents

    async with Gate([refund]) as gate:
        result = await gate.call("refund", {"amount": {"cents": cents}})
    assert result.outcome == "invalid"
    assert result.error is not None
    assert result.error.public == f"The arguments are not valid: /amount/cents: {text}"
    assert "secret" not in str(result)
