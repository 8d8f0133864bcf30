"""Canonical values said in a view and taken back; how to say them is found without the code under test."""

from __future__ import annotations

import json
import random
from typing import Any

from callgate.runtime.models.wire.reverse import canonical_arguments
from callgate.runtime.models.wire.schema_views import View
from tests.runtime.models.catalogs import SPEAKERS
from tests.runtime.models.making import Maker, NoValueError, Speaker, check


def trips(form: str, schema: dict[str, Any], made: View, rng: random.Random, times: int = 4) -> list[str]:
    """Say values in the view, take them back, compare; a word for each thing seen."""
    canonical, shown = check(schema), check(as_json_schema(made.schema) if made.key == "parameters" else made.schema)
    seen: list[str] = []
    for _ in range(times):
        try:
            value = Maker(schema, rng).value({"type": "object", **schema})
        except NoValueError:
            value = None
        if value is None or not canonical.is_valid(value):
            seen.append("no value")
            continue
        speaker = (SPEAKERS.get(form, Speaker) if made.fallback is None else Speaker)(schema)
        told = speaker.say(value, schema)
        assert shown.is_valid(told), (schema, told)
        back = json.loads(canonical_arguments(json.dumps(told), schema, made.nullable, made.spelled))
        assert canonical_arguments(told, schema, made.nullable, made.spelled) == back
        assert canonical.is_valid(back), (schema, value, told, back)
        assert back == value or speaker.ambiguous, (schema, value, told, back)
        seen.append("equal" if back == value else "accepted, ambiguous null kept")
        seen += [] if canonical.is_valid(told) else ["wrong without the way back"]
    return seen


def as_json_schema(node: Any) -> Any:
    """Convert a schema of the OpenAPI subset to JSON Schema."""
    if isinstance(node, list):
        return [as_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    said = {word: as_json_schema(value) for word, value in node.items() if word not in {"properties", "nullable"}}
    if "properties" in node:
        said["properties"] = {name: as_json_schema(inner) for name, inner in node["properties"].items()}
    if isinstance(said.get("type"), str):
        said["type"] = said["type"].lower()
    return {"anyOf": [said, {"type": "null"}]} if node.get("nullable") is True else said
