"""Real answers of real providers are read exactly as recorded (contract 46, 50, 56, 61)."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

from callgate.runtime.models import codec
from callgate.tools.definition import ToolDefinition
from tests.runtime.models.wires import CODEC_OF, WIRES, ours, recordings, wire_of

pytestmark = pytest.mark.needs_data
RECORDED = ours() or [("none", {})]


@pytest.mark.parametrize(("name", "recorded"), RECORDED, ids=[name for name, _ in RECORDED])
def test_every_recorded_answer_gives_exactly_the_expected_calls(name: str, recorded: dict[str, Any]) -> None:
    """Contract 46, 50, 56, 61."""
    kept = copy.deepcopy(recorded["response"])
    calls = codec(CODEC_OF[wire_of(name)]).calls(recorded["response"])
    expected = recorded["expect_calls"]
    assert [(call.name, call.arguments) for call in calls] == [(e["name"], e["arguments"]) for e in expected]
    for call, wanted in zip(calls, expected, strict=True):
        assert call.id == wanted["id"] if wanted["id"] else call.synthetic_id
        assert call.synthetic_id is (wanted["id"] is None)
        assert call.truncated is (recorded["response"].get("done") is False)
    assert len({call.id for call in calls}) == len(calls)
    assert recorded["response"] == kept


def test_enough_was_recorded_to_mean_something() -> None:
    wires = Counter(wire_of(name) for name, _ in RECORDED)
    calls = sum(len(recorded["expect_calls"]) for _, recorded in RECORDED)
    print(f"recordings read: {dict(wires)}, calls: {calls}")
    assert wires["openai_chat"] >= 11
    assert wires["openai_compat"] >= 11
    assert wires["anthropic"] >= 15
    assert wires["ollama"] >= 8
    assert wires["gemini"] >= 9
    assert wires["openai_responses"] >= 13
    assert wires["openai_responses_compat"] >= 1
    assert calls >= 90


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_of_another_provider_is_read_without_an_error(wire: str) -> None:
    """Pointed at the wrong endpoint, a codec finds no calls; it does not fail, and it invents none."""
    answers = list(recordings())
    assert len(answers) >= 60
    for name, recorded in answers:
        calls = codec(wire).calls(recorded["response"])
        home = codec(CODEC_OF[wire_of(name)]).name
        if wire not in {home, "openai_chat" if "plain-prism" in name else home}:
            assert calls == [], name


def test_a_chat_completion_recorded_from_ollama_is_for_the_chat_codec() -> None:
    """``plain-prism`` is Ollama's ``/v1``: the extractor's parser saw no call in it, and the ollama codec sees none;
    its two calls are there for the codec of that endpoint."""
    (recorded,) = (recorded for name, recorded in RECORDED if "plain-prism" in name)
    assert codec("ollama").calls(recorded["response"]) == []
    read = codec("openai_chat").calls(recorded["response"])
    assert [(call.name, call.id) for call in read] == [("search", "call_r0zkanyx"), ("weather", "call_8yafsp91")]


@pytest.mark.parametrize(("name", "recorded"), RECORDED, ids=[name for name, _ in RECORDED])
def test_the_chunk_is_the_providers_own_fragment(name: str, recorded: dict[str, Any]) -> None:
    """Contract 46."""
    for call in codec(CODEC_OF[wire_of(name)]).calls(recorded["response"]):
        function = call.chunk.get("function") or call.chunk.get("functionCall") or call.chunk
        assert function["name"] == call.name
        assert function.get("arguments", function.get("input", function.get("args"))) == call.arguments


def test_tools_are_spelled_as_the_recorded_requests_spell_them() -> None:
    """Contract 57-59: what SDKs really sent, read back into a definition and translated again, is the same JSON."""
    spelled: Counter[str] = Counter()
    for name, recorded in RECORDED:
        wire = wire_of(name)
        for sent in (recorded.get("request") or {}).get("tools", []):
            if sent.get("type", "function") not in {"function", "custom"} or wire == "gemini":
                continue  # a tool that the provider runs itself; Gemini's views have tests of their own
            definition = ToolDefinition.from_dict(plain(sent))
            if definition.metadata or (wire == "anthropic" and definition.strict):
                continue  # fields of the provider's own; Anthropic's strict mode, which is not sent yet
            (made,) = codec(CODEC_OF[wire]).translate([definition]).request["tools"]
            said = {"strict": False} if wire.startswith("openai_responses") else {}  # which takes silence for a yes
            assert undecorated(made) == undecorated({**said, **sent}), name
            spelled[wire] += 1
    print(f"tools as recorded: {dict(spelled)}")
    assert spelled["openai_chat"] >= 8
    assert spelled["anthropic"] >= 8
    assert spelled["ollama"] >= 2


def plain(spelled: dict[str, Any]) -> dict[str, Any]:
    """Without what is optional: Anthropic's type, contract 59's ``function.type``, an empty description."""
    spelled = copy.deepcopy(spelled)
    inner = spelled.get("function", spelled)
    if inner is not spelled or spelled.get("type") == "custom":
        inner.pop("type", None)
    if not inner.get("description"):
        inner.pop("description", None)
    return spelled


def undecorated(spelled: dict[str, Any]) -> dict[str, Any]:
    """Plain, and without a strict schema: those have tests of their own."""
    spelled = plain(spelled)
    inner = spelled.get("function", spelled)
    if inner.get("strict"):
        inner["parameters"] = "strict"
    return spelled
