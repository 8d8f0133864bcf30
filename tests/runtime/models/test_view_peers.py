"""Our views beside what the providers' own packages make of a schema (contract 12, 60, 61; schemas 6).

A view that keeps to a provider's dialect is a fixed point of the provider's own rewriting: nothing is left to change.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import transform_schema
from google.genai import types
from google.genai._transformers import process_schema
from ollama import Tool
from openai.lib._pydantic import _ensure_strict_json_schema

from callgate.runtime.models import codec
from tests.runtime.models.catalogs import FORMS, catalog, everything, views
from tests.runtime.models.provider_rules import nodes
from tests.runtime.models.wires import tool

pytestmark = pytest.mark.needs_data


def openai_rewrites(schema: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(schema)
    return _ensure_strict_json_schema(made, path=(), root=made)


def anthropic_rewrites(schema: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's own, which moves every pattern to the description, though the API reads the simple ones."""
    made = copy.deepcopy(schema)
    for _, node in nodes(made):
        node.pop("pattern", None)
    return transform_schema(made)


def google_reads(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema after Google's types have read it: an unknown keyword is an error."""
    declared = types.FunctionDeclaration(name="f", parameters=types.Schema.model_validate(copy.deepcopy(schema)))
    read: dict[str, Any] = declared.model_dump(by_alias=True, exclude_none=True, mode="json")["parameters"]
    process_schema(read, None, order_properties=False)
    return read


REWRITERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "openai strict": openai_rewrites,
    "anthropic strict": anthropic_rewrites,
    "gemini openapi": google_reads,
}


@pytest.mark.parametrize("form", list(REWRITERS))
def test_contract_61_the_providers_own_rewriting_finds_nothing_left_to_change(form: str, shared_data: Path) -> None:
    """Contract 61: of all real tools that can be told in this form."""
    compared = 0
    for name, _, made in views(FORMS[form], everything(shared_data)):
        if made.fallback is None:
            expected = copy.deepcopy(made.schema)
            if form == "anthropic strict":
                for _, node in nodes(expected):
                    node.pop("pattern", None)
            assert REWRITERS[form](made.schema) == expected, name
            compared += 1
    assert compared >= 1500


@pytest.mark.parametrize("form", list(REWRITERS))
def test_the_providers_own_rewriting_does_change_or_refuse_the_canonical_schemas(form: str, shared_data: Path) -> None:
    """The control: a rewriting that left everything alone would prove nothing."""
    changed = 0
    for schema in catalog(shared_data).values():
        try:
            changed += REWRITERS[form](schema) != schema
        except (ValueError, TypeError, AssertionError, AttributeError):
            changed += 1
    assert changed >= 900


def test_contract_12_what_anthropics_own_rewriting_refuses_is_sent_without_strict_mode(shared_data: Path) -> None:
    """Contract 12."""
    refused = 0
    for name, _, made in views(FORMS["anthropic strict"], everything(shared_data)):
        try:
            transform_schema(copy.deepcopy(everything(shared_data)[name]))
        except (ValueError, TypeError, AssertionError, AttributeError):
            assert made.fallback is not None or any(
                isinstance(node.get("type"), list) for _, node in nodes(everything(shared_data)[name])
            ), name
            refused += 1
    assert refused >= 1


def test_google_takes_the_json_schema_of_every_real_tool_as_it_is(shared_data: Path) -> None:
    """Contract 60."""
    for name, _, made in views(FORMS["gemini"], catalog(shared_data)):
        declared = types.FunctionDeclaration(name="f", parameters_json_schema=made.schema)
        read = declared.model_dump(by_alias=True, exclude_none=True, mode="json")
        assert read["parametersJsonSchema"] == made.schema, name


def test_contract_59_ollamas_types_take_every_real_tool_and_would_lose_keywords_that_we_send(shared_data: Path) -> None:
    """Contract 59: the reason why the schema goes out as raw JSON and not through Ollama's own client."""
    lost: Counter[bool] = Counter()
    for name, schema in catalog(shared_data).items():
        (sent,) = codec("ollama").translate([tool(schema)]).request["tools"]
        read = Tool.model_validate(copy.deepcopy(sent)).model_dump(by_alias=True, exclude_none=True)
        assert sent["function"]["parameters"] == schema, name
        lost[read["function"]["parameters"] != schema] += 1
    print(f"lost in Ollama's own types: {lost[True]} of {lost.total()}")
    assert lost[True] >= 200
