"""Views of schemas that no author would write: they are refused at registration, and no view trips over them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from callgate.runtime.models.wire.reverse import canonical_arguments
from callgate.runtime.models.wire.schema_walk import ASSERTIONS
from callgate.tools.values import digest
from tests.runtime.models.catalogs import FORMS
from tests.runtime.models.wires import tool

WORDS = sorted(ASSERTIONS | {"$defs", "definitions", "description", "title", "default", "$schema"})
KINDS: list[Any] = ["object", "array", "string", "integer", "null", ["string", "null"], ["integer", "string"]]
SCALARS: list[Any] = [None, True, False, 0, -1, 2.5, 10**30, "", "a", "object", "#", "#/$defs/a", "date-time", "(?=x)"]


def odd_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Known words with values of any kind."""
    made = {rng.choice(WORDS): odd_value(rng, depth) for _ in range(rng.randint(0, 4))}
    if rng.random() < 0.6:
        made["type"] = rng.choice(KINDS)
    if rng.random() < 0.6 and depth < 4:
        made["properties"] = {rng.choice("abc"): odd_schema(rng, depth + 1) for _ in range(2)}
    return made


def odd_value(rng: random.Random, depth: int) -> Any:
    dice = rng.random() if depth < 5 else 1
    if dice < 0.45:
        return odd_schema(rng, depth + 1)
    if dice < 0.55:
        return [odd_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return rng.choice([*SCALARS, *KINDS, {}, []])


@pytest.mark.parametrize("form", list(FORMS))
def test_contract_60_no_schema_makes_a_view_raise_or_is_changed_by_it(form: str) -> None:
    """Contract 60."""
    rng = random.Random(3)
    made = 0
    for _ in range(400):
        schema = {**odd_schema(rng), "type": "object", "$defs": {"a": odd_schema(rng, 2)}}
        definition = tool(schema, strict=FORMS[form].strict)
        before = digest(definition.parameters)
        view = FORMS[form].view(definition)
        json.dumps(view.schema)
        value = odd_value(rng, 2)
        canonical_arguments(value, schema, view.nullable, view.spelled)
        canonical_arguments(json.dumps(value), schema, view.nullable, view.spelled)
        assert digest(definition.parameters) == before
        made += view.fallback is None
    assert made >= 40


@pytest.mark.needs_data
@pytest.mark.parametrize("form", list(FORMS))
def test_the_adversarial_schemas_make_no_view_raise(form: str, shared_data: Path) -> None:
    listed = json.loads((shared_data / "adversarial_schemas.json").read_text("utf-8"))
    schemas = [case["schema"] for case in found(listed) if isinstance(case.get("schema"), dict)]
    assert schemas
    for schema in schemas:
        json.dumps(FORMS[form].view(tool(schema, strict=FORMS[form].strict)).schema)


def found(node: Any) -> list[dict[str, Any]]:
    """Every object that holds a schema."""
    if isinstance(node, list):
        return [case for item in node for case in found(item)]
    if not isinstance(node, dict):
        return []
    return [node] if "schema" in node else [case for item in node.values() for case in found(item)]


@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.respells])
def test_a_schema_deeper_than_the_stack_is_sent_as_it_is(form: str) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"leaf": {"type": "string"}}}
    for _ in range(100):
        schema = {"type": "object", "properties": {"p": {"type": "array", "items": schema}}}
    made = FORMS[form].view(tool(schema, strict=FORMS[form].strict))
    assert "too deep" in (made.fallback or "") or "levels" in (made.fallback or ""), made.fallback
    assert made.schema == schema
