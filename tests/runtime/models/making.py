"""Values that a schema allows, the form a strict model would give them, and schemas to try both on; by seed.

Written apart from the code under test: branches of a union are told by a validator, not by shape.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jsonschema_rs

_TEXTS = ("", "a", "main", "x y", "2026-11-22", "2026-11-22T10:00:00Z", "https://a.example/b", "a@b.example", "#fff")
_MORE = ("123", "0f8fad5b-d9cb-469f-a165-70867728950e", "UTC", "abc-1", "ABC", "ABC-1", "PROJ", "/tmp/a", "1.2.3")


@cache
def _fitting(pattern: str, least: int, most: int) -> list[str]:
    return [text for text in (*_TEXTS, *_MORE) if re.search(pattern, text) and least <= len(text) <= most]


class NoValueError(Exception):
    """The maker knows no value for this schema."""


def check(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """A validator for a schema, or for one node within a root."""
    whole = schema
    if root is not None:
        whole = {"$defs": {"root": moved(root)}, "allOf": [moved(schema)]}
    return jsonschema_rs.validator_for(whole, validate_formats=False, offline=True)


def moved(node: Any) -> Any:
    """The node with its references led into ``$defs/root``."""
    if isinstance(node, list):
        return [moved(item) for item in node]
    if not isinstance(node, dict):
        return node
    led = {name: moved(item) for name, item in node.items() if name != "$schema"}
    if isinstance(node.get("$ref"), str):
        led["$ref"] = f"#/$defs/root{node['$ref'].removeprefix('#')}"
    return led


def find(root: dict[str, Any], reference: str) -> Any:
    node: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


@dataclass
class Maker:
    """Makes values for one root schema."""

    root: dict[str, Any]
    rng: random.Random
    deepest: int = 6

    def value(self, node: Any, depth: int = 0) -> Any:
        if depth > 3 * self.deepest:
            raise NoValueError
        if node is True or not node:
            return self.rng.choice([None, "free", 1])
        if "$ref" in node:
            return self.value(find(self.root, node["$ref"]), depth + 1)
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return self.rng.choice(node["enum"])
        for word in ("anyOf", "oneOf", "allOf"):
            if word in node and "properties" not in node:
                return self.value(self.rng.choice(node[word]), depth + 1)
        kind = node.get("type", "object" if "properties" in node else "string")
        return self.typed(node, self.rng.choice(kind) if isinstance(kind, list) else kind, depth)

    def typed(self, node: dict[str, Any], kind: str, depth: int) -> Any:
        match kind:
            case "object":
                return self.object(node, depth)
            case "array":
                least = node.get("minItems", 0)
                most = min(node.get("maxItems", least + 2), least + 2)
                number = least if depth > self.deepest else self.rng.randint(least, most)
                return [self.value(node.get("items", True), depth + 1) for _ in range(number)]
            case "string":
                return self.text(node)
            case "integer" | "number":
                return self.number(node, kind)
            case "boolean":
                return self.rng.random() < 0.5
            case _:
                return None

    def object(self, node: dict[str, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, inner in node.get("properties", {}).items():
            needed = name in node.get("required", ())
            if not needed and (depth > self.deepest or self.rng.random() < 0.5):
                continue
            try:
                made[name] = self.value(inner, depth + 1)
            except NoValueError:
                if needed:
                    raise
        return made

    def text(self, node: dict[str, Any]) -> str:
        least, most = int(node.get("minLength", 0)), int(node.get("maxLength", 10_000))
        fitting = _fitting(node.get("pattern", ""), least, most)
        if not fitting and "pattern" not in node:
            return "m" * least
        if not fitting:
            raise NoValueError
        return str(self.rng.choice(fitting))

    def number(self, node: dict[str, Any], kind: str) -> Any:
        least = node.get("minimum", node.get("exclusiveMinimum", -3) + 1)
        most = node.get("maximum", node.get("exclusiveMaximum", least + 10))
        step = node.get("multipleOf", 1)
        whole = step * self.rng.randint(int(-(-least // step)), max(int(-(-least // step)), int(most // step)))
        return float(whole) + 0.5 if kind == "number" and whole + 0.5 < most and "multipleOf" not in node else whole


@dataclass
class Speaker:
    """Says a canonical value as a view has a model say it; this one, as it is."""

    root: dict[str, Any]
    ambiguous: int = 0  # nulls given for an absent property that may also be null
    checks: dict[int, Any] = field(default_factory=dict[int, Any])

    def allows(self, value: Any, node: dict[str, Any]) -> bool:
        if id(node) not in self.checks:
            self.checks[id(node)] = check(node, self.root)
        return bool(self.checks[id(node)].is_valid(value))

    def say(self, value: Any, node: Any) -> Any:
        while "$ref" in node or (len(node.get("allOf", ())) == 1 and "properties" not in node):
            node = find(self.root, node["$ref"]) if "$ref" in node else node["allOf"][0]
        for word in ("anyOf", "oneOf"):
            if word in node and "properties" not in node:
                return self.say(value, next(branch for branch in node[word] if self.allows(value, branch)))
        if isinstance(value, list):
            return [self.say(item, node.get("items", {})) for item in value]
        return self.object(value, node.get("properties", {})) if isinstance(value, dict) else self.scalar(value, node)

    def object(self, value: dict[str, Any], declared: dict[str, Any]) -> dict[str, Any]:
        return {name: self.say(item, declared[name]) if name in declared else item for name, item in value.items()}

    def scalar(self, value: Any, node: dict[str, Any]) -> Any:
        return value


class Strict(Speaker):
    """OpenAI's strict mode: every declared property is there, be it null."""

    def object(self, value: dict[str, Any], declared: dict[str, Any]) -> dict[str, Any]:
        self.ambiguous += sum(name not in value and self.allows(None, node) for name, node in declared.items())
        return {name: self.say(value[name], node) if name in value else None for name, node in declared.items()}


class OpenAPI(Speaker):
    """Gemini's OpenAPI subset: choices are text."""

    def scalar(self, value: Any, node: dict[str, Any]) -> Any:
        listed = [node["const"]] if "const" in node else node.get("enum", [])
        odd = any(not isinstance(item, str) for item in listed if item is not None)
        return json.dumps(value) if odd and value is not None and not isinstance(value, str) else value


def random_schema(rng: random.Random) -> dict[str, Any]:
    """A schema that strict mode can say: nested objects, arrays, told-apart unions, references, recursion."""
    shared = {f"d{number}": _object(rng, 2, number) for number in range(2)}
    shared["tree"] = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}, "alt": {"$ref": "#"}},
        "required": ["v"],
    }
    return {**_object(rng, 0, 9), "$defs": shared}


def _object(rng: random.Random, depth: int, tag: int) -> dict[str, Any]:
    names = rng.sample(["a", "b", "c/d", "e~f", "g", "§"], rng.randint(1, 4))
    properties = {"tag": {"const": f"t{tag}"}, **{name: _node(rng, depth + 1) for name in names}}
    needed = ["tag", *(name for name in names if rng.random() < 0.4)]
    closed = {"additionalProperties": False} if rng.random() < 0.5 else {}
    return {"type": "object", "properties": properties, "required": needed, **closed}


def _node(rng: random.Random, depth: int) -> dict[str, Any]:
    simple = ("string", "integer", "boolean", "null-able", "enum", "mixed", "described")
    nested = ("object", "array", "anyOf", "oneOf", "ref", "allOf", "maybe")
    match rng.choice(simple if depth > 3 else simple + nested):
        case "string":
            return {"type": "string", **rng.choice([{}, {"minLength": 1}, {"default": "x"}, {"title": "T"}])}
        case "integer":
            return {"type": "integer", "minimum": 0}
        case "boolean":
            return {"type": "boolean"}
        case "null-able":
            return {"type": ["string", "null"]}
        case "enum":
            texts: list[dict[str, Any]] = [
                {"enum": ["p", "q"]},
                {"enum": ["p", None]},
                {"type": "string", "enum": ["p"]},
            ]
            return rng.choice([*texts, {"enum": [1, "p", True]}, {"type": ["integer", "null"], "enum": [2, None]}])
        case "mixed":
            return {"type": ["string", "integer"]}
        case "described":
            return {"type": "number", "description": "A number", "multipleOf": 1}
        case "object":
            return _object(rng, depth, 0)
        case "array":
            return {"type": "array", "items": _node(rng, depth + 1)}
        case "ref":
            return {"$ref": f"#/$defs/{rng.choice(['d0', 'd1', 'tree'])}", **rng.choice([{}, {"description": "D"}])}
        case "allOf":
            return {"allOf": [_object(rng, depth, 0)], "description": "D"}
        case "maybe":
            return {**_object(rng, depth, 0), "type": ["object", "null"]}
        case word:
            branches = [
                _object(rng, depth, 1),
                _object(rng, depth, 2),
                {"type": "array", "items": _object(rng, depth, 3)},
            ]
            return {word: rng.sample([*branches, {"type": "string"}, {"type": "null"}], rng.randint(2, 4))}
