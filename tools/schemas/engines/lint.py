"""Lint for schemas: probable mistakes in a schema that may be registered."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines.base import guard_depth
from callgate.tools.schemas.engines.dialect import KEYWORDS
from callgate.tools.schemas.engines.document import Document, read
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS, SchemaLimits
from callgate.tools.schemas.engines.rust import subschema_checks
from callgate.tools.schemas.engines.texts import is_of_type, show, types_of
from callgate.tools.values import clip

_FORMATS4 = frozenset({"date", "time", "date-time", "email", "idn-email", "hostname", "ipv4", "ipv6", "uri", "regex"})
_FORMATS6 = _FORMATS4 | {"uri-reference", "uri-template", "json-pointer"}
_FORMATS7 = _FORMATS6 | {"idn-hostname", "iri", "iri-reference", "relative-json-pointer"}
_FORMATS2019 = _FORMATS7 | {"duration", "uuid"}
_FORMATS = {4: _FORMATS4, 6: _FORMATS6, 7: _FORMATS7, 2019: _FORMATS2019, 2020: _FORMATS2019}
MAX_COMPILED = 500  # every subschema is compiled by itself
_NEEDS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}


def lint_schema(schema: Mapping[str, object], limits: SchemaLimits = AUTHOR_LIMITS) -> list[str]:
    """List advice on a schema that may be registered; each line starts with the JSON Pointer of its subject.

    Raises:
        SchemaRefused: the schema may not be registered.
    """
    document = read(schema, limits)
    found: list[str] = []
    if "type" not in document.schema:
        found.append('/: no "type"; taken as "object" for parameters')
    if "properties" in document.schema and "additionalProperties" not in document.schema:
        found.append('/: no "additionalProperties": false, so invented argument names are accepted')
    for at, subschema in document.nodes.items():
        if isinstance(subschema, dict):
            found.extend(f"{clip(at, 200) or '/'}: {advice}" for advice in _advice(subschema, document))
    return found + list(_defaults(document))


def _advice(schema: dict[str, Any], document: Document) -> Iterator[str]:
    yield from _on_keywords(schema)
    yield from _on_properties(schema)
    types = types_of(schema)
    odd = [option for option in schema.get("enum", ()) if types and not is_of_type(option, types)]
    if odd:
        yield f"enum lists {show(odd[0])}, which is not of its type"
    if schema.get("enum") == []:
        yield "enum is empty: no value is valid"
    if "array" in types and "items" not in schema and "prefixItems" not in schema:
        yield "an array without items: any item is valid"
    name, dialect = schema.get("format"), document.dialect
    if isinstance(name, str) and name not in _FORMATS[dialect.draft]:
        yield f"format {clip(name, 40)} is not asserted in {dialect.name}"
    if dialect.draft not in {6, 7} and not schema.keys().isdisjoint({"contentEncoding", "contentMediaType"}):
        yield f"content keywords are not asserted in {dialect.name}"


def _on_keywords(schema: Mapping[str, object]) -> Iterator[str]:
    for key in schema:
        if key not in KEYWORDS and not key.startswith("x-"):
            near = difflib.get_close_matches(key, sorted(KEYWORDS), 1) if len(key) < 40 else []
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"{clip(key)} is not a keyword and is not enforced{hint}"
        elif key in _NEEDS and _NEEDS[key] not in schema:
            yield f"{key} does nothing without {_NEEDS[key]}"


def _on_properties(schema: dict[str, Any]) -> Iterator[str]:
    properties: dict[str, Any] = schema.get("properties", {})
    if properties and "$ref" not in schema:
        for name in schema.get("required", ()):
            if name not in properties:
                yield f"required names {show(name)}, which properties does not define"


def _defaults(document: Document) -> Iterator[str]:
    with_default = [at for at, node in document.nodes.items() if isinstance(node, dict) and "default" in node]
    if not with_default or len(document.nodes) > MAX_COMPILED:
        return
    try:
        checks = subschema_checks(document)
    except SchemaRefused:
        return
    for at in with_default:
        subschema: Any = document.nodes[at]
        is_valid = checks(at)
        if is_valid is not None and guard_depth(subschema["default"]) and not is_valid(subschema["default"]):
            yield f"{clip(at, 200) or '/'}: default {show(subschema['default'])} is not valid here"
