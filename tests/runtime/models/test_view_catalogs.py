"""Every real tool of the catalogues in every form, held to the providers' rules (contract 12, 60, 61; schemas 6)."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from callgate.runtime.models.wire.anthropic_view import strict_views
from callgate.runtime.models.wire.schema_views import View
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import FrozenDict, digest
from tests.runtime.models.catalogs import FORMS, catalog, everything, views
from tests.runtime.models.making import Maker, NoValueError, check
from tests.runtime.models.provider_rules import RULES, anthropic_request, read_rules
from tests.runtime.models.trips import trips

pytestmark = pytest.mark.needs_data
TOLD_TYPES = {"gemini openapi": "parameters", "gemini": "parametersJsonSchema"}


def rules_for(form: str, made: View) -> str:
    """The rules that a view has to keep: those of what it fell back to, if it did."""
    if made.fallback is None:
        return form
    return {"gemini openapi": "gemini"}.get(form, form.removesuffix(" strict"))


@pytest.mark.parametrize("form", list(FORMS))
def test_contract_61_every_real_tool_keeps_the_rules_of_its_provider(form: str, shared_data: Path) -> None:
    """Contract 61: by a checker that knows only the gathered rules."""
    rules, tools = read_rules(shared_data), everything(shared_data)
    assert len(catalog(shared_data)) == 1044
    strict = 0
    for name, _, made in views(FORMS[form], tools):
        assert list(RULES[rules_for(form, made)](made.schema, rules)) == [], name
        strict += made.fallback is None
        assert made.key == TOLD_TYPES.get(rules_for(form, made)), name
    assert strict >= 0.9 * len(tools)


@pytest.mark.parametrize("form", [form for form in FORMS if " " in form])
def test_the_checker_refuses_the_canonical_schemas_themselves(form: str, shared_data: Path) -> None:
    """The control: rules that every schema kept would prove nothing."""
    rules = read_rules(shared_data)
    broken = [list(RULES[form](copy.deepcopy(schema), rules)) for schema in catalog(shared_data).values()]
    assert sum(map(bool, broken)) >= 800


SABOTAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "an open object": ("openai strict", {"type": "object", "properties": {}}),
    "an optional property": ("openai strict", {"properties": {"a": {"type": "string"}}, "required": []}),
    "a keyword": ("openai strict", {"minProperties": 1}),
    "a format": ("openai strict", {"properties": {"a": {"type": "string", "format": "uri"}}, "required": ["a"]}),
    "lookaround": ("openai strict", {"properties": {"a": {"type": "string", "pattern": "(?=a)"}}, "required": ["a"]}),
    "untyped": ("openai strict", {"properties": {"a": {"description": "any"}}, "required": ["a"]}),
    "siblings": ("openai strict", {"properties": {"a": {"$ref": "#", "title": "A"}}, "required": ["a"]}),
    "type list": ("anthropic strict", {"properties": {"a": {"type": ["string", "null"]}}, "required": []}),
    "recursion": ("anthropic strict", {"properties": {"a": {"$ref": "#"}}, "required": []}),
    "a bound": ("anthropic strict", {"properties": {"a": {"type": "integer", "minimum": 1}}, "required": []}),
    "many items": (
        "anthropic strict",
        {"properties": {"a": {"type": "array", "items": {"type": "null"}, "minItems": 2}}},
    ),
    "lower case": ("gemini openapi", {"type": "object"}),
    "an enum of numbers": ("gemini openapi", {"properties": {"a": {"type": "INTEGER", "enum": [1]}}}),
    "a const": ("gemini openapi", {"properties": {"a": {"type": "STRING", "const": "a"}}}),
    "a name": ("gemini openapi", {"properties": {"a-b": {"type": "STRING"}}}),
    "const in JSON Schema": ("gemini", {"properties": {"a": {"const": 1}}}),
}


@pytest.mark.parametrize("case", list(SABOTAGE))
def test_the_checker_sees_a_broken_rule(case: str, shared_data: Path) -> None:
    """The control, rule by rule."""
    form, part = SABOTAGE[case]
    sound: dict[str, Any] = {"type": "OBJECT"} if form == "gemini openapi" else {"type": "object"}
    if " strict" in form and case != "an open object":
        sound |= {"properties": {}, "required": [], "additionalProperties": False}
    assert list(RULES[form]({**sound, **part}, read_rules(shared_data))) != []


@pytest.mark.parametrize("form", list(FORMS))
def test_contract_60_no_view_changes_the_canonical_schema_or_shares_a_part_of_it(form: str, shared_data: Path) -> None:
    """Contract 60: by hash, and by a schema that refuses every change."""
    for name, definition, made in views(FORMS[form], catalog(shared_data)):
        assert isinstance(definition.parameters, FrozenDict)
        assert digest(definition.parameters) == digest(catalog(shared_data)[name]), name
        scribbled(made.schema)
        assert digest(definition.parameters) == digest(catalog(shared_data)[name]), name


def scribbled(node: Any) -> None:
    """Change everything that can be reached."""
    inner = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
    for item in inner:
        scribbled(item)
    if isinstance(node, dict | list):
        node.clear()


@pytest.mark.parametrize("form", list(FORMS))
def test_contract_61_the_reverse_step_takes_every_canonical_value(form: str, shared_data: Path) -> None:
    """Contract 61: said as the view has a model say it, and taken back, a value is what it was."""
    rng = random.Random(20261122)
    counts: Counter[str] = Counter()
    for name, _, made in views(FORMS[form], everything(shared_data)):
        words = trips(form, everything(shared_data)[name], made, rng)
        counts.update(words)
        counts["tools"] += any(word != "no value" for word in words)
    print(f"{form}: {dict(counts)}")
    assert counts["tools"] >= 0.9 * len(everything(shared_data))
    assert counts["equal"] >= 4000
    if form == "openai strict":
        assert counts["wrong without the way back"] >= 1000


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini", "ollama"])
def test_a_view_without_strict_mode_says_of_every_value_what_the_canonical_schema_says(
    form: str, shared_data: Path
) -> None:
    """Contract 60: nothing is lost where the whole of JSON Schema can be sent, for right values and for wrong ones."""
    rng = random.Random(7)
    verdicts: Counter[bool] = Counter()
    for name, schema in everything(shared_data).items():
        ((_, _, made),) = views(FORMS[form], {name: schema})
        assert (made.dropped, made.fallback) == ((), None)
        canonical, shown = check({"type": "object", **schema}), check(made.schema)
        for _ in range(4):
            try:
                value = Maker(schema, rng).value({"type": "object", **schema})
            except NoValueError:
                continue
            for tried in (value, spoilt(value, rng)):
                assert canonical.is_valid(tried) == shown.is_valid(tried), (name, tried)
                verdicts[canonical.is_valid(tried)] += 1
    assert min(verdicts.values()) >= 1000


def spoilt(value: Any, rng: random.Random) -> Any:
    """The value with one thing in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        rest = {key: item for key, item in value.items() if key != name}
        return rest if rng.random() < 0.3 else {**rest, name: spoilt(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        return [spoilt(value[0], rng), *value[1:]]
    return rng.choice([None, True, -1, 10**6, 0.5, "", "x" * 2000, [], [1], {}, {"odd": 1}])


def test_anthropics_budget_holds_for_every_request_of_real_tools(shared_data: Path) -> None:
    """Contract 12: what goes beyond is sent without strict mode, with the reason on record."""
    rules, tools = read_rules(shared_data), list(catalog(shared_data).values())
    reasons: Counter[str] = Counter()
    for start in range(0, len(tools), 40):
        view = strict_views()
        made = [
            view(ToolDefinition(name=f"t{number}", parameters=schema, strict=True))
            for number, schema in enumerate(tools[start : start + 40])
        ]
        assert list(anthropic_request([each.schema for each in made if each.strict], rules)) == []
        reasons.update(each.fallback for each in made if each.fallback and "in a request" in each.fallback)
    assert set(reasons) >= {"more than 20 strict tools in a request"}
    assert any("optional" in reason for reason in reasons)


def test_anthropics_budget_checker_sees_what_goes_beyond(shared_data: Path) -> None:
    """The control: the same tools with a budget for each."""
    tools = list(catalog(shared_data).values())[:200]
    made = [strict_views()(ToolDefinition(name="t", parameters=schema, strict=True)).schema for schema in tools]
    assert len(list(anthropic_request(made, read_rules(shared_data)))) >= 2
