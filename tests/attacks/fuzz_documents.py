"""The surface of OpenAPI documents: schemas from outside become parts of a document that generators of clients read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from callgate import Effects, Gate, ToolDefinition, ToolRecord, User
from callgate.errors import DefinitionError
from callgate.runtime.hosts.asgi.spec import openapi
from callgate.tools.definition import Effect
from tests.attacks.fuzzing import Surface, Take

MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}


async def run(arguments: object, ctx: object) -> None:
    """Run nothing."""


SCHEMAS = {
    "items",
    "prefixItems",
    "additionalProperties",
    "additionalItems",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
}


def references(node: Any, *, names: bool = False) -> Iterator[str]:
    """The references of a schema, without those that are values or within keywords that nobody knows."""
    if isinstance(node, list):
        for one in node:
            yield from references(one)
    for key, item in node.items() if isinstance(node, dict) else ():
        if not names and key == "$ref" and isinstance(item, str):
            yield item
        elif names or key in MAPS | SCHEMAS:
            yield from references(item, names=not names and key in MAPS)


def has_place(document: Any, reference: str) -> bool:
    """True if a reference leads to a part of the document."""
    node = document
    for part in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict) and name in node:
            node = node[name]
        else:
            return False
    return reference.startswith("#/")


@contextlib.asynccontextmanager
async def documents() -> AsyncGenerator[Take]:
    """The document of a gate with one tool."""

    async def take(data: bytes) -> bool:
        try:
            schema = json.loads(data)
            definition = ToolDefinition("act", "Acts.", schema, effect=Effect.READ, output_schema=schema)
            gate = Gate([ToolRecord(definition, run)], allow_unguarded=True, effects=Effects(durable=False))
        except (DefinitionError, TypeError, ValueError, RecursionError):
            return False
        document = openapi(gate, User("ann"), "Bearer")
        whole = json.loads(json.dumps(document))
        lost = [one for one in references(whole["components"]["schemas"], names=True) if not has_place(whole, one)]
        assert not lost, f"references without a place: {lost}"
        return True

    yield take


def document_seeds() -> Sequence[bytes]:
    """Schemas with each kind of reference."""
    node = {"$ref": "#/$defs/a~1b%20c"}
    made: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"x": node, "$ref": {"type": "string"}},
            "$defs": {"a/b c": {"type": "string"}},
        },
        {
            "type": "object",
            "properties": {"x": {"anyOf": [{"$ref": "#/$defs/p"}]}},
            "$defs": {"p": {"items": {"$ref": "#"}}},
        },
        {
            "type": "object",
            "properties": {"x": {"$ref": "#"}, "y": {"enum": [{"$ref": "#/no"}], "default": {"$ref": "#n"}}},
        },
    ]
    return [json.dumps(one).encode() for one in made]


DOCUMENTS = (Surface("OpenAPI documents", document_seeds, documents, quick=100, soak=40_000),)
