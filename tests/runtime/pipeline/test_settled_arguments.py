"""What runs is what was authorised, keyed, shown and recorded: defaults and conversions come before the freeze."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    StringConstraints,
    TypeAdapter,
)

from callgate import Approval, Effects, Gate, Hook, ToolCall, User, tool
from callgate.errors import DefinitionError
from callgate.hooks import Audit, Cache
from callgate.runtime.suspensions.decisions import Edit

ANN, BOB = User("ann", "acme"), User("bob", "acme", roles=["boss"])
FREE: dict[str, Any] = {"allow_unguarded": True, "effects": Effects(durable=False)}
Upper = Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True)]


class Currency(enum.Enum):
    EUR = "eur"
    USD = "usd"


class Line(BaseModel):
    sku: Upper
    count: int = 1
    tags: list[str] = Field(default_factory=lambda: ["new"])


@dataclass
class Address:
    city: str
    country: str = "NO"
    lines: list[Line] = field(default_factory=list)


CONVERTED: dict[str, tuple[Any, Any, Any, Any]] = {
    # a type, two spellings of one value, and what hooks see of it
    "text": (Upper, "a1", " A1 ", "A1"),
    "uuid": (uuid.UUID, "0B8A1F1E-4A6F-4C7E-9D5B-2F6F3A9C1D2E", "0b8a1f1e-4a6f-4c7e-9d5b-2f6f3a9c1d2e", None),
    "instant": (dt.datetime, "2026-05-01T10:00:00Z", "2026-05-01T12:00:00+02:00", None),
    "spelling of an instant": (dt.datetime, "2026-05-01T10:00:00Z", "2026-05-01T10:00:00.000+00:00", None),
    "decimal": (Decimal, "1.0", "1.00", None),
    "whole number": (int, 2, 2.0, 2),
    "number": (float, 2, 2.0, 2.0),
    "duration": (dt.timedelta, "PT1H", "PT60M", "PT1H"),
    "choice": (Currency, "eur", "eur", "eur"),
    "set": (frozenset[str], ["b", "a"], ["a", "b"], ["a", "b"]),
    "model": (
        Line,
        {"sku": "x"},
        {"sku": " X", "count": 1, "tags": ["new"]},
        {"sku": "X", "count": 1, "tags": ["new"]},
    ),
    "dataclass": (Address, {"city": "Oslo"}, {"city": "Oslo", "country": "NO", "lines": []}, None),
    "union": (int | Line, {"sku": "x"}, {"sku": "X"}, {"sku": "X", "count": 1, "tags": ["new"]}),
    "list of models": (list[Line], [{"sku": "a"}], [{"sku": "A "}], [{"sku": "A", "count": 1, "tags": ["new"]}]),
}


class Sees(Hook):
    """Notes the frozen arguments of each call."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def will_authorize_input(self, ctx: Any) -> None:
        self.seen.append(json.loads(json.dumps(ctx.input)))


def paying(kind: Any, got: list[Any], **options: Any) -> Any:
    async def pay(value: Any, currency: str = "EUR") -> int:
        got.append((value, currency))
        return len(got)

    pay.__annotations__["value"] = kind
    return tool(effect="irreversible", **options)(pay)


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize("identity", ["key", "dedupe"])
async def test_two_spellings_of_one_value_are_one_effect(name: str, identity: str) -> None:
    kind, one, other, shown = CONVERTED[name]
    got: list[Any] = []
    options = {"key": ("value", "currency")} if identity == "key" else {"dedupe": "arguments", "within": 60}
    sees = Sees()
    async with Gate([paying(kind, got, **options)], hooks=[sees], **FREE) as gate:
        results = [
            await gate.call(ToolCall(id=f"c{n}", name="pay", arguments=arguments), user=ANN)
            for n, arguments in enumerate([{"value": one}, {"value": other, "currency": "EUR"}, {"value": one}])
        ]
    assert [result.outcome for result in results] == ["success"] * 3
    assert [result.output for result in results] == [1, 1, 1]
    assert len(got) == 1
    assert [result.replayed for result in results] == [False, True, True]
    assert all(seen["currency"] == "EUR" for seen in sees.seen)
    if shown is not None:
        assert [seen["value"] for seen in sees.seen] == [shown] * len(sees.seen)


@pytest.mark.parametrize("name", CONVERTED)
async def test_hook_cache_audit_and_body_have_the_same_arguments(name: str) -> None:
    kind, one, other, _ = CONVERTED[name]
    got: list[Any] = []

    async def look(value: Any, currency: str = "EUR") -> int:
        got.append(value)
        return len(got)

    look.__annotations__["value"] = kind
    sees = Sees()
    rows: list[Any] = []
    hooks = [sees, Cache(ttl=60), Audit(sink=rows.append)]
    async with Gate([tool(effect="read")(look)], hooks=hooks) as gate:
        for number, arguments in enumerate([{"value": one}, {"value": other, "currency": "EUR"}]):
            result = await gate.call(ToolCall(id=f"c{number}", name="look", arguments=arguments), user=ANN)
            assert result.ok
    body = TypeAdapter(kind).dump_python(got[0], mode="json")
    assert sees.seen[0] == {"value": sorted(body) if name == "set" else body, "currency": "EUR"}
    if name not in {"decimal", "instant"}:  # equal, and not the same text: the cache keeps them apart
        assert len(got) == 1
    recorded = [row.body["input"] for row in rows if row.body.get("input") is not None]
    assert recorded
    assert all(row in sees.seen for row in recorded)


async def test_a_policy_cannot_be_passed_by_a_value_that_a_conversion_changes() -> None:
    class NoRoot(Hook):
        def will_authorize_input(self, ctx: Any) -> None:
            if ctx.input["value"] == "ROOT":
                ctx.abort("not root")

    got: list[Any] = []
    async with Gate([paying(Upper, got, key=("value",))], hooks=[NoRoot()], **FREE) as gate:
        for spelling in ("ROOT", " root", "Root "):
            result = await gate.call(ToolCall(id=spelling, name="pay", arguments={"value": spelling}), user=ANN)
            assert result.outcome == "denied"
    assert got == []


async def test_an_approver_sees_the_defaults_and_an_edit_gets_them_too() -> None:
    got: list[Any] = []

    @tool(effect="irreversible", key=("order",), requires_approval=Approval(roles=["boss"]))
    async def refund(order: str, cents: int = 50_000) -> int:
        got.append((order, cents))
        return cents

    async with Gate([refund], **FREE, signing_keys=["k" * 32]) as gate:
        result = await gate.call(ToolCall(id="c", name="refund", arguments={"order": "A"}), user=ANN)
        assert result.pending is not None
        handle = result.pending.handle
        assert handle is not None
        assert (await gate.waits.look(handle, BOB)).arguments == {"order": "A", "cents": 50_000}
        await gate.resume(handle, Edit({"order": "B"}), approver=BOB)
    assert got == [("B", 50_000)]


class Opaque:
    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]


class Hidden(BaseModel):
    a: int
    b: int = Field(default=1, exclude=True)


class Renamed(BaseModel):
    a: int = Field(validation_alias="in", serialization_alias="out")


LOSSY: dict[str, Any] = {
    "a secret": SecretStr,
    "a secret in a list": list[SecretStr],
    "a conversion that is not stable": Annotated[int, AfterValidator(lambda value: value + 1)],
    "a serialiser that hides": Annotated[str, PlainSerializer(lambda value: "***")],
    "a serialiser of another kind": Annotated[int, PlainSerializer(lambda value: {"n": value})],
    "a field that is left out": Hidden,
    "two names": Renamed,
    "a model in a model": dict[str, Renamed],
}


@pytest.mark.parametrize("name", LOSSY)
def test_a_type_whose_json_does_not_give_it_back_is_refused_at_registration(name: str) -> None:
    with pytest.raises(DefinitionError, match="does not give the value back"):
        paying(LOSSY[name], [])


async def test_a_type_that_no_sample_fits_is_checked_at_each_call() -> None:
    def read(value: Any) -> Any:
        if not str(value).startswith("order-"):
            raise ValueError("no order")
        return value

    kind = Annotated[str, BeforeValidator(read), AfterValidator(lambda value: value + "!")]
    got: list[Any] = []
    async with Gate([paying(kind, got, key=("value",))], **FREE) as gate:
        result = await gate.call(ToolCall(id="c", name="pay", arguments={"value": "order-1"}), user=ANN)
    assert (result.outcome, got) == ("invalid", [])


async def test_a_default_that_the_schema_refuses_is_seen_and_cannot_be_sent() -> None:
    """Such as None for a str: the body gets its own default, hooks see it, and a caller may not send it."""
    got: list[Any] = []

    @tool(effect="read")
    async def look(order: str, note: str = None, when: dt.date = None) -> None:  # type: ignore[assignment]  # noqa: RUF013  (people write it)
        got.append((order, note, when))

    sees = Sees()
    async with Gate([look], hooks=[sees]) as gate:
        assert (await gate.call(ToolCall(id="a", name="look", arguments={"order": "A"}), user=ANN)).ok
        sent = {"order": "A", "note": None}
        assert (await gate.call(ToolCall(id="b", name="look", arguments=sent), user=ANN)).outcome == "invalid"
    assert got == [("A", None, None)]
    assert sees.seen == [{"order": "A", "note": None, "when": None}]


KINDS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**53), 2**53) | st.integers(-100, 100).map(float),
    float: st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False, width=32),
    str: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
    bool: st.booleans(),
    Upper: st.text("aB ", max_size=5),
    uuid.UUID: st.uuids().map(str) | st.uuids().map(lambda value: str(value).upper()),
    dt.date: st.dates().map(str),
    dt.datetime: st.datetimes(timezones=st.just(dt.UTC)).map(dt.datetime.isoformat),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    Currency: st.sampled_from(["eur", "usd"]),
    frozenset[int]: st.lists(st.integers(0, 9), max_size=4, unique=True),
    Line: st.fixed_dictionaries({"sku": st.text("ab ", max_size=3)}, optional={"count": st.integers(0, 9)}),
    list[Line]: st.lists(st.fixed_dictionaries({"sku": st.text("ab ", max_size=3)}), max_size=2),
}
DEFAULTS: dict[Any, Any] = {int: 3, float: 1, str: "x", bool: True, Upper: "eur", Decimal: Decimal("1.50"), Line: None}


@given(st.data())
async def test_what_a_hook_sees_equals_what_the_body_gets(drawn: st.DataObject) -> None:
    kinds = drawn.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    optional = {name: drawn.draw(st.booleans()) for name in range(len(kinds))}
    got: list[dict[str, Any]] = []

    async def body(**values: Any) -> None:
        got.append(values)

    import inspect

    parameters, arguments = [], {}
    for number, kind in enumerate(kinds):
        name = f"p{number}"
        has_default = kind in DEFAULTS and optional[number]
        default = DEFAULTS[kind] if has_default else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        if not has_default or drawn.draw(st.booleans()):
            arguments[name] = drawn.draw(KINDS[kind])

    async def look(**given_: Any) -> None:
        await body(**given_)

    look.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    look.__annotations__ = {one.name: one.annotation for one in parameters}
    sees = Sees()
    async with Gate([tool(effect="read")(look)], hooks=[sees]) as gate:
        result = await gate.call(ToolCall(id="c", name="look", arguments=arguments), user=ANN)
    assert result.ok, result.error
    (seen,), (taken,) = sees.seen, got
    values = {**{one.name: one.default for one in parameters if one.default is not one.empty}, **taken}
    assert seen.keys() == values.keys() == {one.name for one in parameters}
    for one in parameters:
        shown = TypeAdapter(one.annotation | None if one.default is None else one.annotation).dump_python(
            values[one.name], mode="json"
        )
        assert seen[one.name] == (sorted(shown) if isinstance(values[one.name], frozenset) else shown), one
