"""``format`` restricts values or is a remark: the default by author and dialect, and the setting."""

from __future__ import annotations

from typing import Any

import pytest

from callgate import Effect, Options, Outcome, ToolDefinition, ToolRecord
from callgate.errors import DefinitionError
from callgate.tools.schemas.engines.dialect import Formats
from callgate.tools.schemas.validation import Validator, compile_schema
from tests.runtime.gate.making import USER, call, gate_of, made

DIALECTS = {
    "draft-04": "http://json-schema.org/draft-04/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
    "draft-07": "http://json-schema.org/draft-07/schema#",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
    "none": None,
}


def schema(name: str) -> dict[str, Any]:
    declared = {} if DIALECTS[name] is None else {"$schema": DIALECTS[name]}
    return {**declared, "type": "object", "properties": {"at": {"type": "string", "format": "date"}}}


def asserts(validator: Validator) -> bool:
    validator.check({"at": "2026-03-01"})
    try:
        validator.check({"at": "tomorrow"})
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("name", DIALECTS)
def test_a_schema_of_the_author_asserts_formats_and_one_from_outside_follows_its_dialect(name: str) -> None:
    """Contract 28, C7."""
    assert asserts(compile_schema(schema(name)))
    assert asserts(compile_schema(schema(name), trusted=False)) is name.startswith("draft")


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        ("assert", {True}),
        ("annotate", {False}),
        ({"2020-12": "annotate", "draft-07": "annotate"}, {True, False}),
        ({"2020-12": "assert", "2019-09": "assert"}, {True}),
    ],
)
def test_the_setting_decides_for_every_schema_or_by_dialect(
    name: str, formats: Formats, expected: set[bool], trusted: bool
) -> None:
    found = asserts(compile_schema(schema(name), trusted=trusted, formats=formats))
    assert found in expected
    if not isinstance(formats, str):
        rule = formats.get("2020-12" if name == "none" else name)
        default = trusted or name.startswith("draft")
        assert found is (default if rule is None else rule == "assert")


def test_the_id_of_a_validator_says_whether_formats_are_asserted() -> None:
    ids = [compile_schema(schema("none"), formats=rule).id for rule in ("assert", "annotate")]
    assert ["formats=on" in one for one in ids] == [True, False]


@pytest.mark.parametrize("wrong", ["maybe", {"2020-12": "maybe"}, {"2020-11": "assert"}])
def test_a_setting_that_is_unknown_is_refused_with_those_that_exist(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match='write "assert", "annotate"'):
        Options(formats=wrong)


async def test_a_gate_has_the_setting_and_a_tool_may_keep_its_own() -> None:
    async def at(**arguments: Any) -> Any:
        return arguments

    own = ToolRecord(ToolDefinition("own", "x", schema("none"), effect=Effect.READ), _echo, formats="assert")
    async with gate_of([made(at, parameters=schema("none")), own], formats="annotate") as gate:
        assert (await gate.call(call({"at": "tomorrow"}), user=USER)).ok
        assert (await gate.call(call({"at": "tomorrow"}, "own"), user=USER)).outcome is Outcome.INVALID


async def _echo(arguments: Any, _ctx: Any) -> Any:
    return arguments
