"""The OpenAPI 3.1 document of a gate for one user, from the same definitions that validate the calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from callgate.runtime.gate.gate import Gate
from callgate.runtime.models import codecs
from callgate.tools.calls import User
from callgate.tools.definition import ToolDefinition
from callgate.tools.schemas.engines.dialect import SUB_MAP
from callgate.tools.values import thaw

_LISTED = (
    "name",
    "title",
    "description",
    "parameters",
    "outputSchema",
    "effect",
    "key",
    "tags",
    "version",
    "annotations",
)
_CALL_FAILS = (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503, 504)
_READ_FAILS = (401, 500, 503)
_LITERALS = frozenset({"const", "enum", "default", "examples", "example"})  # their values are not schemas
_TEXT = {"type": "string"}
_TEXT_LIST = {"type": "array", "items": _TEXT}
_OBJECT = {"type": "object"}


def listed(definition: ToolDefinition) -> dict[str, object]:
    """Return the public part of a definition, without its roles and the metadata of the application."""
    whole = definition.to_dict()
    return {name: whole[name] for name in _LISTED if name in whole}


def openapi(gate: Gate, user: User, challenge: str | None, root: str = "") -> dict[str, Any]:
    """Build the document: one operation for each tool that this user may see, and one for its stream."""
    definitions: list[ToolDefinition] = gate.definitions(user=user)
    paths: dict[str, Any] = {  # no tool has a dot in its name, so its operation has an id of its own
        "/health": {"get": _health("service.health", "Not open.")},
        "/health/ready": {"get": _health("service.ready", "Not open, or its store does not answer.")},
        "/tools": {"get": _list()},
        "/openapi.json": {"get": _read("service.openapi", "This document", {"type": "object"})},
    }
    schemas: dict[str, object] = {"Problem": _PROBLEM, "Suspended": _SUSPENDED, "Tool": _TOOL}
    for definition in definitions:
        name = definition.name
        schemas[f"{name}.arguments"] = embedded(definition.parameters or {"type": "object"}, f"{name}.arguments")
        schemas[f"{name}.output"] = embedded(definition.output_schema or {}, f"{name}.output")
        paths[f"/tools/{name}"] = {"post": _call(definition)}
        paths[f"/tools/{name}/stream"] = {"post": _stream(definition)}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Tools", "version": "1"},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {"schemas": schemas, "responses": {str(status): _failure(status) for status in _CALL_FAILS}},
    }
    scheme = (challenge or "").partition(" ")[0].lower()
    if scheme in {"bearer", "basic"}:
        document["components"]["securitySchemes"] = {"user": {"type": "http", "scheme": scheme}}
        document["security"] = [{"user": []}]
        paths["/health"]["get"]["security"] = paths["/health/ready"]["get"]["security"] = []
    return document


def embedded(schema: Mapping[str, object], name: str) -> dict[str, Any]:
    """Embed a schema in the document: its references point to its new place."""
    root: dict[str, Any] = thaw(schema)
    for word in ("$id", "id", "$schema"):
        if isinstance(root.get(word), str):
            del root[word]
    moved: dict[str, Any] = _moved(root, f"#/components/schemas/{name}", dict(_anchors(root, "")))
    return moved


def _anchors(node: object, at: str) -> Iterator[tuple[str, str]]:
    """Yield each anchor of a schema with the pointer to it: in the document, other tools may have the same anchor."""
    for key, item in enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ():
        if key in ("$anchor", "$dynamicAnchor") and isinstance(item, str):
            yield item, at
        elif key in SUB_MAP and isinstance(item, dict):
            for name, schema in item.items():  # a name may be that of a keyword
                yield from _anchors(schema, f"{at}/{key}/{_escaped(name)}")
        elif key not in _LITERALS:
            yield from _anchors(item, f"{at}/{_escaped(str(key))}")


def _escaped(name: str) -> str:
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~$")


def _moved(node: object, home: str, anchors: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_moved(item, home, anchors) for item in node]
    if not isinstance(node, dict):
        return node
    made: dict[str, object] = {}
    for key, item in node.items():
        if key in ("$anchor", "$dynamicAnchor") and isinstance(item, str):
            continue  # a reference to it is a pointer
        if key in ("$ref", "$dynamicRef"):  # one document has one such anchor, so both lead to the same place
            made["$ref"] = _reference(item, home, anchors)
        elif key == "discriminator" and isinstance(item, dict):
            mapping = {name: _reference(one, home, anchors) for name, one in (item.get("mapping") or {}).items()}
            made[key] = item | ({"mapping": mapping} if mapping else {})
        elif key in _LITERALS:
            made[key] = item
        elif key in SUB_MAP and isinstance(item, dict):
            made[key] = {name: _moved(schema, home, anchors) for name, schema in item.items()}
        else:
            made[key] = _moved(item, home, anchors)
    return made


def _reference(target: object, home: str, anchors: Mapping[str, str]) -> object:
    if not isinstance(target, str) or not target.startswith("#"):
        return target
    return home + anchors.get(target[1:], target[1:])


def _call(definition: ToolDefinition) -> dict[str, object]:
    output = {"$ref": f"#/components/schemas/{definition.name}.output"}
    return _operation(definition, definition.name, _json("The output.", output))


def _stream(definition: ToolDefinition) -> dict[str, object]:
    text = "Server-sent events: any number of `progress` and `partial`, then one `result`; each holds a JSON value."
    events = {"description": text, "content": {"text/event-stream": {"schema": _EVENT}}}
    return _operation(definition, f"{definition.name}.stream", events)


def _operation(definition: ToolDefinition, operation: str, done: Mapping[str, object]) -> dict[str, object]:
    waits = "The call is suspended until a person or a client answers."
    media = {"schema": {"$ref": f"#/components/schemas/{definition.name}.arguments"}}
    made: dict[str, object] = {
        "operationId": operation,
        "tags": sorted(definition.tags),
        "parameters": [
            _header("X-Request-ID", "The correlation id.", r"^[A-Za-z0-9._:-]{1,128}$"),
            _header("Session-Id", "The session of the call.", r"^[\x21-\x7e]{1,128}$"),
            _header("Idempotency-Key", "The idempotency key of the effect.", r"^[\x21-\x7e]{1,255}$"),
        ],
        "requestBody": {"required": True, "content": {"application/json": media}},
        "responses": {
            "200": done,
            "202": _json(waits, {"$ref": "#/components/schemas/Suspended"}),
            **_failures(_CALL_FAILS),
        },
    }
    if definition.title:
        made["summary"] = definition.title
    if definition.description:
        made["description"] = definition.description
    if definition.deprecated is not None:
        made["deprecated"] = True
    return made


def _header(name: str, description: str, pattern: str) -> dict[str, object]:
    return {
        "name": name,
        "in": "header",
        "description": description,
        "schema": {"type": "string", "pattern": pattern},
    }


def _health(operation: str, unready: str) -> dict[str, object]:
    members = {"live": {"type": "boolean"}, "ready": {"type": "boolean"}}
    body = {"type": "object", "properties": members, "required": ["live", "ready"]}
    return {
        "operationId": operation,
        "responses": {"200": _json("Ready.", body), "503": _json(unready, body)},
    }


def _list() -> dict[str, object]:
    made: dict[str, Any] = _read(
        "service.list", "The tools that this user may see; with `wire`, in the format of that provider's API.", {}
    )
    wire = {"type": "string", "enum": list(codecs())}
    made["parameters"] = [{"name": "wire", "in": "query", "schema": wire}]
    tools = {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}}
    either = {"type": "object", "properties": {"tools": {"anyOf": [tools, {"type": "array"}]}}, "required": ["tools"]}
    made["responses"]["200"] = _json("The tools.", either)
    made["responses"]["400"] = {"$ref": "#/components/responses/400"}
    return made


def _read(operation: str, text: str, schema: Mapping[str, object]) -> dict[str, object]:
    responses = {"200": _json(text, schema), **_failures(_READ_FAILS)}
    return {"operationId": operation, "description": text, "responses": responses}


def _failures(statuses: Iterable[int]) -> dict[str, object]:
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}


def _json(description: str, schema: Mapping[str, object]) -> dict[str, object]:
    return {"description": description, "content": {"application/json": {"schema": dict(schema)}}}


def _failure(status: int) -> dict[str, object]:
    made: dict[str, object] = {
        "description": HTTPStatus(status).phrase,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status in {409, 429}:
        text = "In seconds." if status == 429 else "In seconds, with the code `in_flight`: the same call is running."
        made["headers"] = {"Retry-After": {"description": text, "schema": {"type": "integer"}}}
    return made


_EVENT: dict[str, object] = {
    "type": "object",
    "properties": {"event": {"enum": ["progress", "partial", "result"]}, "data": _TEXT},
    "required": ["event", "data"],
}
_PROBLEM: dict[str, object] = {
    "type": "object",
    "description": "Problem details (RFC 9457). They contain no argument values.",
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "code": _TEXT,
        "correlation_id": _TEXT,
        "retry_after_ms": {"type": "integer"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": _TEXT, "keyword": _TEXT, "detail": _TEXT},
                "required": ["pointer", "keyword", "detail"],
            },
        },
    },
    "required": ["type", "title", "status", "detail", "code"],
}
_SUSPENDED: dict[str, object] = {
    "type": "object",
    "properties": {"code": _TEXT, "detail": _TEXT, "handle": {"type": ["string", "null"]}, "correlation_id": _TEXT},
    "required": ["code", "detail", "handle", "correlation_id"],
}
_TOOL: dict[str, object] = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "title", "description", "effect", "version"), _TEXT),
        **dict.fromkeys(("parameters", "outputSchema", "annotations"), _OBJECT),
        **dict.fromkeys(("key", "tags"), _TEXT_LIST),
    },
    "required": ["name"],
}
