"""Makes values for a schema, broken values, and random schemas; other tests of the engines draw from here.

Deterministic: everything comes from a ``random.Random``. (hypothesis-jsonschema does not work with today's hypothesis.)
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import jsonschema_rs
import pytest

DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT2020 = "https://json-schema.org/draft/2020-12/schema"
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
WORDS = ["", "a", "b", "abc", "A-1", "a\n", "é", "地", "x" * 12, "2024-01-02", "0", "$", "a b"]
NUMBERS = [0, 1, -1, 2, 3, 5, 10, 2.0, 2.5, -0.5, 100]
HUGE = [1e300, 10**25, 2**53 + 1, -1e300]
ODD = [None, True, False, 0, 1, 1.0, 2.5, "", "a", [], [1], {}, {"a": 1}, 10**30, -1e300]
NAMES = [
    "a",
    "b",
    "c",
    "a-b",
    "a_b",
    "id",
    "type",
    "$ref",
    "properties",
    "地址",
    "x.y",
    "a/b",
    "a~b",
    "",
    'q"',
    "{n}",
    "%s",
]


def value_for(schema: Any, root: Any, rng: Random, depth: int = 0) -> Any:
    """A value that is probably valid under *schema*."""
    if isinstance(schema, bool) or depth > 8:
        return rng.choice(ODD)
    if "$ref" in schema:
        return value_for(target(root, schema["$ref"]), root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"] or [None])
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            rest = {name: item for name, item in schema.items() if name != key}
            picked = value_for(rng.choice(schema[key]), root, rng, depth + 1)
            if not isinstance(picked, dict) or "properties" not in rest:
                return picked
            base = value_for(rest | {"type": "object"}, root, rng, depth + 1)
            return {**base, **picked} if isinstance(base, dict) else base
    kinds = schema.get("type") or guess(schema)
    kind = rng.choice(kinds) if isinstance(kinds, list) else kinds
    return MAKERS[kind](schema, root, rng, depth)


def guess(schema: dict[str, Any]) -> str:
    """The type that the keywords of an untyped schema speak of."""
    for kind, keys in {
        "object": {"properties", "required", "additionalProperties", "minProperties", "propertyNames", "maxProperties"},
        "array": {"items", "minItems", "maxItems", "contains", "prefixItems", "uniqueItems"},
        "string": {"minLength", "maxLength", "pattern", "format"},
    }.items():
        if keys & schema.keys():
            return kind
    return "number"


def target(root: Any, ref: str) -> Any:
    """What a local reference leads to."""
    at = root
    for part in ref.removeprefix("#").split("/")[1:]:
        at = at[part.replace("~1", "/").replace("~0", "~")]
    return at


def _number(schema: dict[str, Any], _root: Any, rng: Random, _depth: int) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -5) + ("exclusiveMinimum" in schema))
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 20) - ("exclusiveMaximum" in schema))
    picked = rng.randint(int(low), max(int(low), int(high)))
    return float(picked) if rng.random() < 0.15 else picked


def _string(schema: dict[str, Any], _root: Any, rng: Random, _depth: int) -> str:
    known = {"uuid": "123e4567-e89b-12d3-a456-426614174000", "uri": "https://a.example/b", "date": "2024-01-02"}
    text: str = known.get(schema.get("format", ""), rng.choice(WORDS))
    low, high = schema.get("minLength", 0), schema.get("maxLength", 10_000)
    return str((text + "a" * max(0, low - len(text)))[:high])


def _array(schema: dict[str, Any], root: Any, rng: Random, depth: int) -> list[Any]:
    low = schema.get("minItems", 0)
    count = rng.randint(low, max(low, min(low + 3, schema.get("maxItems", low + 3))))
    prefix = schema.get("prefixItems", schema["items"] if isinstance(schema.get("items"), list) else [])
    rest = schema.get("items", True) if not isinstance(schema.get("items"), list) else True
    made = [value_for(prefix[n] if n < len(prefix) else rest, root, rng, depth + 1) for n in range(count)]
    if schema.get("contains") and not isinstance(schema["contains"], bool) and made:
        made[-1] = value_for(schema["contains"], root, rng, depth + 1)
    return made


def _object(schema: dict[str, Any], root: Any, rng: Random, depth: int) -> dict[str, Any]:
    properties, made = schema.get("properties", {}), {}
    for name, child in properties.items():
        if name in schema.get("required", ()) or rng.random() < (0.6 if depth < 4 else 0.1):
            made[name] = value_for(child, root, rng, depth + 1)
    for name in schema.get("required", ()):
        made.setdefault(name, rng.choice(ODD))
    extra = schema.get("additionalProperties", True)
    if extra is not False and rng.random() < 0.2:
        made["extra"] = value_for(extra, root, rng, depth + 1)
    while len(made) < schema.get("minProperties", 0):
        made[f"more{len(made)}"] = 1
    return made


MAKERS: dict[str, Any] = {
    "null": lambda *_: None,
    "boolean": lambda _s, _r, rng, _d: rng.random() < 0.5,
    "integer": _number,
    "number": _number,
    "string": _string,
    "array": _array,
    "object": _object,
}


def broken(value: Any, schema: Any, rng: Random, count: int) -> Iterator[Any]:
    """Variants of *value*: a member dropped, added, of another type, out of range, off by one."""
    pool = [*ODD, *edges(schema)]
    if isinstance(value, dict):
        for name in list(value)[:6]:
            yield {key: item for key, item in value.items() if key != name}
        yield {**value, "unknown_name": 1}
    yield from rng.sample(ODD, 3)
    for _ in range(count):
        changed = copy.deepcopy(value)
        places = list(_places(changed))
        if not places:
            yield rng.choice(pool)
            continue
        holder, key = rng.choice(places)
        holder[key] = _twist(holder[key], rng, pool)
        yield changed


def _twist(item: Any, rng: Random, pool: list[Any]) -> Any:
    if isinstance(item, str) and rng.random() < 0.5:
        return rng.choice([item + "\n", item + "x", item[:-1], item.upper(), item * 40])
    if isinstance(item, int | float) and rng.random() < 0.5:
        return rng.choice([item + 1, item - 1, float(item), str(item), not item, item + 0.5, -item])
    if isinstance(item, list) and item and rng.random() < 0.6:
        return rng.choice([item + item[:1], item * 5, item[1:], [*item, None]])
    if isinstance(item, dict) and rng.random() < 0.5:
        return rng.choice([{**item, "unknown_name": 1}, dict(list(item.items())[1:]), list(item.values())])
    return copy.deepcopy(rng.choice(pool))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, item in pairs:
        yield value, key
        yield from _places(item)


def edges(schema: Any) -> list[Any]:
    """Values around the bounds and constants that a schema names anywhere."""
    found: list[Any] = []
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack.extend(part)
        if not isinstance(part, dict):
            continue
        stack.extend(part.values())
        for key, item in part.items():
            if key in {"const", "default"}:
                found.append(item)
            elif key == "enum" and isinstance(item, list):
                found.extend(item[:4])
            elif key in {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} and isinstance(
                item, int | float
            ):
                found.extend([item, item - 1, item + 1, item + 0.5])
            elif key in {"minLength", "maxLength"} and isinstance(item, int) and item < 5000:
                found.extend(["é" * item, "é" * (item + 1), "é" * max(0, item - 1)])
            elif key in {"minItems", "maxItems"} and isinstance(item, int) and item < 500:
                found.extend([list(range(item)), list(range(item + 1))])
    return found[:60]


def random_schema(rng: Random, draft: str | None) -> dict[str, Any]:
    """A schema that means something, of every keyword that fastjsonschema may be trusted with and a few others."""
    root: dict[str, Any] = _part(rng, 0, top=True)
    names = rng.sample(["User", "user", "A-B", "A_B", "node", "x.y", "item"], 3)
    key = rng.choice(["$defs", "definitions"])
    root[key] = {name: _part(rng, 2) for name in names}
    places = [holder for holder in _subschemas(root) if rng.random() < 0.15]
    for holder in places:
        holder.clear()
        holder["$ref"] = f"#/{key}/{rng.choice(names)}"
    if draft is not None:
        root["$schema"] = draft
    return root


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    for name in ("properties",):
        for child in schema.get(name, {}).values():
            if isinstance(child, dict):
                yield child
    for name in ("items", "additionalProperties", "contains", "not"):
        if isinstance(schema.get(name), dict):
            yield schema[name]
    for name in ("anyOf", "allOf", "oneOf"):
        yield from (child for child in schema.get(name, []) if isinstance(child, dict))


def _part(rng: Random, depth: int, *, top: bool = False) -> Any:
    if not top and rng.random() < 0.06:
        return rng.random() < 0.7
    schema: dict[str, Any] = {}
    kind = "object" if top and rng.random() < 0.8 else rng.choice(TYPES)
    if rng.random() < 0.85:
        schema["type"] = kind if rng.random() < 0.8 else rng.sample(TYPES, 2)
    makers = {"object": _object_keys, "array": _array_keys, "string": _string_keys}
    makers.get(kind, _number_keys)(schema, rng, depth)
    if depth < 3 and rng.random() < 0.3:
        for key in rng.sample(["anyOf", "oneOf", "allOf"], 1 if rng.random() < 0.8 else 2):
            schema[key] = [_part(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if depth < 3 and rng.random() < 0.12:
        schema["not"] = _part(rng, depth + 1)
    if depth < 3 and rng.random() < 0.12:
        schema |= {key: _part(rng, depth + 1) for key in ("if", "then", "else") if key == "if" or rng.random() < 0.7}
    if rng.random() < 0.1:
        schema["enum"] = rng.sample([*ODD[:-2], *WORDS, {"k": [1, True]}], rng.randint(1, 5))
    if rng.random() < 0.05:
        schema["const"] = rng.choice([*ODD[:-2], {"k": {"z": [1, None]}}])
    if rng.random() < 0.2:
        schema |= {"description": "text {name} %s", "default": {"$ref": "#/nowhere"}, "title": '"""'}
    return schema


def _object_keys(schema: dict[str, Any], rng: Random, depth: int) -> None:
    if depth < 3:
        names = rng.sample(NAMES, rng.randint(0, 4))
        schema["properties"] = {name: _part(rng, depth + 1) for name in names}
        if rng.random() < 0.6:
            schema["required"] = rng.sample(names, rng.randint(0, len(names)))
    if rng.random() < 0.5:
        schema["additionalProperties"] = rng.choice(
            [False, False, True, {"type": "integer"}, {"type": ["string", "null"]}]
        )
    if rng.random() < 0.15:
        schema["minProperties"] = rng.randint(0, 2)
    if rng.random() < 0.15:
        schema["maxProperties"] = rng.randint(1, 4)
    if rng.random() < 0.15:
        schema["propertyNames"] = rng.choice([{"maxLength": 3}, {"pattern": "^[a-z]+$"}, {"enum": ["a", "b"]}, True])


def _array_keys(schema: dict[str, Any], rng: Random, depth: int) -> None:
    if depth < 3 and rng.random() < 0.8:
        schema["items"] = _part(rng, depth + 1)
    if depth < 3 and rng.random() < 0.2:
        schema["contains"] = _part(rng, depth + 1)
    for key, low in (("minItems", 0), ("maxItems", 1)):
        if rng.random() < 0.2:
            schema[key] = rng.randint(low, low + 2)
    if rng.random() < 0.2:
        schema["uniqueItems"] = rng.random() < 0.8
        schema["items"] = {"type": rng.choice(["string", ["boolean", "null"], "number"])}


def _string_keys(schema: dict[str, Any], rng: Random, _depth: int) -> None:
    for key, low in (("minLength", 0), ("maxLength", 1)):
        if rng.random() < 0.3:
            schema[key] = rng.randint(low, low + 3)
    if rng.random() < 0.3:
        schema["pattern"] = rng.choice(
            ["^[a-z]+$", "a", "^a?b?$", "^[A-Z]-[0-9]{1,2}$", r"\.", "b$", r"^\d+$", "^(a|b)$"]
        )


def _number_keys(schema: dict[str, Any], rng: Random, _depth: int) -> None:
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.25:
            schema[key] = rng.choice(NUMBERS if rng.random() < 0.97 else HUGE)
    if rng.random() < 0.02:
        schema["multipleOf"] = rng.choice([1, 2, 0.5, 3])


def mcp_schemas(data: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, role, schema) of the tools of real MCP servers."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for line in (data / "mcp_tool_schemas.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for key, role in (("inputSchema", "parameters"), ("outputSchema", "output")):
            if isinstance(row.get(key), dict):
                found.append((f"{row['package']}:{row['name']}:{key}", role, row[key]))
    return found


@pytest.mark.parametrize("draft", [None, DRAFT7, DRAFT2020])
def test_most_values_made_for_a_random_schema_are_valid_and_most_broken_ones_are_not(draft: str | None) -> None:
    rng = Random(5)
    good = bad = both = 0
    for _ in range(80):
        schema = random_schema(rng, draft)
        try:
            validator = jsonschema_rs.validator_for(schema, offline=True)
        except ValueError:
            continue
        for _ in range(5):
            value = value_for(schema, schema, rng)
            good += validator.is_valid(value)
            variants = list(broken(value, schema, rng, 4))
            bad += sum(not validator.is_valid(variant) for variant in variants)
            both += len(variants)
    assert good > 100
    assert bad > both / 2
