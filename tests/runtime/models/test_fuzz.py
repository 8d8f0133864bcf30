"""Broken answers: whatever a server sends, reading it gives tool calls or none, and never raises (contract 61)."""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from typing import Any

import pytest

from callgate.runtime.models import codec
from callgate.runtime.models.wire.codec import Codec, Translation, WireError
from callgate.runtime.models.wire.endings import NO_CALL_RUNS, ReplyEnding
from callgate.tools.calls import ToolCall
from tests.runtime.models.wires import (
    WIRES,
    chat,
    function,
    function_call,
    gemini,
    gemini_call,
    message,
    ours,
    response,
    tool,
    tool_use,
)

ROUNDS = 100


def deep(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = {"p": value} if levels % 2 else [value]
    return value


ODD: list[Any] = [
    *(None, "", "x", "length", "tool_use", "custom", "call_1", "{}", '{"a": null}', '{"a": nul', "\ud800", "\0"),
    *(True, False, 0, -1, 10**400, 0.5, float("nan"), float("inf"), [], {}, [None], [[]], {"": None}, {1: 2}),
    *({"name": "f"}, [{"type": "tool_use"}], {"function": {"name": ["f"]}}, b"bytes", object(), deep(30), deep(3001)),
]


def places(node: Any) -> list[tuple[Any, Any]]:
    """The containers of a tree with each of their keys, breadth first, the first thousand."""
    found: list[tuple[Any, Any]] = []
    todo = deque([node])
    while todo and len(found) < 1000:
        here = todo.popleft()
        keys = list(here) if isinstance(here, dict) else list(range(len(here))) if isinstance(here, list) else []
        found += [(here, key) for key in keys]
        todo += [here[key] for key in keys]
    return found


def fresh(value: Any) -> Any:
    """A copy, so that one round does not change the next; the deepest value is shared."""
    try:
        return copy.deepcopy(value)
    except RecursionError:
        return value


def mutate(node: Any, rng: random.Random) -> None:
    """Delete, replace, duplicate, rename or swap something, in place."""
    found = places(node)
    if not found:
        return
    container, key = rng.choice(found)
    deed = rng.choice(["delete", "replace", "duplicate", "swap"])
    if deed == "delete":
        del container[key]
    elif deed == "replace":
        container[key] = fresh(rng.choice(ODD))
    elif deed == "duplicate" and isinstance(container, list):
        container.insert(key, container[key])
    elif deed == "duplicate":
        container[rng.choice(["name", "id", "type", "input", "arguments", "error", "x"])] = container[key]
    else:
        other, place = rng.choice(found)
        container[key], other[place] = other[place], container[key]


def read(wire: Codec, answer: Any, translation: Translation | None) -> list[ToolCall]:
    """Read the answer, and hold what is promised of whatever comes back."""
    try:
        calls = wire.calls(answer, translation)
    except WireError:
        assert not isinstance(answer, dict)
        return []
    assert all(isinstance(call.id, str) and call.id and isinstance(call.name, str) for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    reply = wire.reply(answer, translation)
    if reply.ending is ReplyEnding.FAILED:
        assert reply.error
        return calls
    lost = reply.ending in NO_CALL_RUNS
    assert [(call.id, call.name, call.truncated) for call in reply.calls] == [
        (call.id, call.name, lost or call.truncated) for call in calls
    ]
    assert isinstance(reply.text, str)
    assert isinstance(reply.reasoning, str)
    assert all(isinstance(each, dict) for each in reply.messages)
    return calls


def translation_for(wire: Codec, names: set[str]) -> Translation:
    """Strict views with optional properties for every tool that was called, so that the way back is walked too."""
    leaf = {"type": "object", "properties": {"p": {"$ref": "#/$defs/leaf"}, "a": {"type": "integer"}}}
    fields = ("a", "p", "city", "location", "query", "x", "y", "b")
    either = {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    schema = {"type": "object", "properties": dict.fromkeys(fields, either), "$defs": {"leaf": leaf}}
    return wire.translate([tool(schema, name=name, strict=True) for name in sorted({*names, "f"})])


def fuzz(answer: dict[str, Any], rng: random.Random, rounds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    codecs = [codec(wire) for wire in WIRES]
    names = {call.name for wire in codecs for call in wire.calls(answer)}
    translations = {wire.name: translation_for(wire, names) for wire in codecs}
    for _ in range(rounds):
        broken = fresh(answer)
        for _ in range(rng.randint(1, 4)):
            mutate(broken, rng)
        for wire in codecs:
            for translation in (None, translations[wire.name]):
                counts["calls"] += len(read(wire, broken, translation))
                counts["answers"] += 1
    return counts


@pytest.mark.needs_data
def test_no_mutation_of_a_recorded_answer_raises() -> None:
    """Contract 61."""
    counts: Counter[str] = Counter()
    for number, (_, recorded) in enumerate(ours()):
        counts += fuzz(recorded["response"], random.Random(number), ROUNDS)
    print(f"mutated recordings: {dict(counts)}")
    assert counts["answers"] >= 69 * ROUNDS * 10
    assert counts["calls"] > 0


@pytest.mark.parametrize(
    "answer",
    [
        chat(function("f", '{"a": null, "p": {"p": null}}'), function("f", {"a": None, "p": [None]}, None)),
        message(tool_use("f", {"a": None}), tool_use("f", {"p": {"a": None}}, "t2"), stop="max_tokens"),
        response(function_call("f", '{"a": null}'), {"type": "reasoning", "summary": [{"text": "x"}]}),
        gemini({"text": "x", "thought": True}, gemini_call("f", {"a": None}), gemini_call("f", {"p": {"a": 1}})),
        {"message": {"tool_calls": [function("f", {"a": None})]}, "done_reason": "stop"},
    ],
    ids=["openai_chat", "anthropic", "openai_responses", "gemini", "ollama"],
)
def test_no_mutation_of_a_made_answer_raises(answer: dict[str, Any]) -> None:
    """Contract 61."""
    assert fuzz(answer, random.Random(99), 600)["answers"] == 6000


@pytest.mark.parametrize("wire", WIRES)
def test_no_odd_value_in_the_place_of_any_part_raises(wire: str) -> None:
    """Contract 61: one by one, not by chance: every node of a small answer replaced by every odd value."""
    made = {
        "openai_chat": chat(function("f", "{}"), {"type": "custom", "custom": {"name": "f", "input": "x"}}),
        "openai_responses": response(function_call("f", "{}"), status="incomplete"),
        "anthropic": message(tool_use("f", {"a": None}), stop="max_tokens"),
        "gemini": gemini({"text": "x"}, gemini_call("f", {"a": None}), finish="MAX_TOKENS"),
        "ollama": {"message": {"tool_calls": [function("f", {"a": None})]}, "done_reason": "length"},
    }[wire]
    translation = translation_for(codec(wire), {"f"})
    for index in range(len(places(made))):
        for value in ODD:
            answer = fresh(made)
            container, key = places(answer)[index]
            container[key] = value
            read(codec(wire), answer, translation)
    for value in ODD:
        read(codec(wire), value, translation)
