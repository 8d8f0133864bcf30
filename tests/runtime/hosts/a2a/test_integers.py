"""Integers that protobuf has made floats of, made integers again by schema."""

from __future__ import annotations

from typing import Any

import pytest
from a2a import helpers as h
from hypothesis import given
from hypothesis import strategies as st

from callgate.runtime.hosts.a2a.integers import EXACT, InexactInteger, encode_integers, restore_integers

INTEGER = {"type": "integer"}
TREE = {
    "$defs": {"node": {"type": "object", "properties": {"n": INTEGER, "kids": {"items": {"$ref": "#/$defs/node"}}}}},
    "$ref": "#/$defs/node",
}


def travelled(value: Any) -> Any:
    """A value after its way through a data part."""
    return h.get_data_parts([h.new_data_part(encode_integers(value))])[0]


CASES: list[tuple[Any, Any, Any]] = [
    (INTEGER, 1.0, 1),
    (INTEGER, -0.0, 0),
    (INTEGER, 1.5, 1.5),
    (INTEGER, "1", "1"),
    (INTEGER, "9007199254740993", 9007199254740993),
    (INTEGER, "-9007199254740993", -9007199254740993),
    (INTEGER, "09007199254740993", "09007199254740993"),
    (INTEGER, " 9007199254740993", " 9007199254740993"),
    (INTEGER, "9" * 401, "9" * 401),
    (INTEGER, True, True),
    ({"type": "number"}, 1.0, 1.0),
    ({"type": "string"}, "9007199254740993", "9007199254740993"),
    ({"type": ["integer", "string"]}, "9007199254740993", "9007199254740993"),
    ({"type": ["integer", "null"]}, 2.0, 2),
    ({"type": ["integer", "number"]}, 2.0, 2.0),
    ({"anyOf": [INTEGER, {"type": "null"}]}, 2.0, 2),
    ({"anyOf": [INTEGER, {"type": "number"}]}, 2.0, 2.0),
    ({"enum": [1, 2]}, 2.0, 2),
    ({"const": 2}, 2.0, 2),
    ({}, 2.0, 2.0),
    (True, 2.0, 2.0),
    ({"items": INTEGER}, [1.0, 2.5], [1, 2.5]),
    ({"prefixItems": [INTEGER, {"type": "number"}], "items": INTEGER}, [1.0, 1.0, 1.0], [1, 1.0, 1]),
    ({"items": [INTEGER], "additionalItems": {"type": "number"}}, [1.0, 1.0], [1, 1.0]),
    ({"additionalProperties": INTEGER}, {"a": 1.0}, {"a": 1}),
    ({"properties": {"a": INTEGER}}, {"a": 1.0, "b": 1.0}, {"a": 1, "b": 1.0}),
    ({"allOf": [{"properties": {"a": INTEGER}}]}, {"a": 1.0}, {"a": 1}),
    ({"if": True, "then": {"properties": {"a": INTEGER}}}, {"a": 1.0}, {"a": 1}),
    (TREE, {"n": 1.0, "kids": [{"n": 2.0, "kids": []}]}, {"n": 1, "kids": [{"n": 2, "kids": []}]}),
    ({"$ref": "#"}, 1.0, 1.0),
    ({"$ref": "#/nowhere", "type": "integer"}, 1.0, 1),
]


@pytest.mark.parametrize(("schema", "came", "meant"), CASES)
def test_what_a_schema_calls_an_integer_becomes_one_if_it_is_exact(schema: Any, came: Any, meant: Any) -> None:
    """Contract 33, C7."""
    found = restore_integers(came, schema)
    assert (found, repr(found)) == (meant, repr(meant))


@pytest.mark.parametrize("came", [float(EXACT), -float(EXACT), 1e300])
def test_an_integer_that_a_float_may_not_hold_is_refused(came: float) -> None:
    """Contract 33: a sum of money is not rounded in silence."""
    with pytest.raises(InexactInteger):
        restore_integers({"n": came}, {"properties": {"n": INTEGER}})
    assert restore_integers({"n": came}, {"properties": {"n": {"type": "number"}}}) == {"n": came}


@given(st.integers(-(10**30), 10**30))
def test_every_integer_comes_back_as_it_was_sent(number: int) -> None:
    """Contract 33."""
    found = restore_integers(travelled({"n": number}), {"properties": {"n": INTEGER}})["n"]
    assert (found, type(found)) == (number, int)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(1 - EXACT, EXACT - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_without_a_schema_a_value_is_the_same_json(value: Any) -> None:
    """Contract 33: 2 and 2.0 are one number."""
    assert restore_integers(travelled(value), None) == value


def test_members_come_in_the_order_of_the_schema() -> None:
    """B7: what an approver reads does not depend on chance."""
    schema = {"properties": {"z": INTEGER, "a": INTEGER}, "additionalProperties": True}
    assert list(restore_integers({"b": 1.0, "a": 1.0, "0": 1.0, "z": 1.0}, schema)) == ["z", "a", "0", "b"]


def test_a_schema_that_refers_to_itself_in_circles_ends() -> None:
    """I14."""
    schema = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    assert restore_integers({"n": [1.0]}, schema) == {"n": [1.0]}
