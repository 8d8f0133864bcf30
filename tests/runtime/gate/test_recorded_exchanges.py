"""Every recorded exchange of a real provider, from its answer to hydrated calls; its tools are schemas from outside."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from callgate import DefinitionError, Effects, Gate, Outcome, ToolDefinition, ToolRecord, codec
from tests.runtime.gate.making import USER

CODECS = ("anthropic", "ollama", "openai_chat", "openai_compat")


def exchanges(data: Path) -> list[tuple[str, dict[str, Any]]]:
    """Wire and exchange of every recording whose wire has a codec and whose answer is one JSON body."""
    found = [(wire, path) for wire in CODECS for path in sorted((data / "recordings" / wire).glob("*.json"))]
    read = [(wire, json.loads(path.read_text("utf-8"))) for wire, path in found]
    return [(wire, recorded) for wire, recorded in read if recorded.get("response") is not None]


def offered(recorded: dict[str, Any], counts: Counter[str]) -> list[ToolRecord]:
    """The tools of a request, as somebody else's."""

    async def execute(arguments: Any, ctx: Any) -> Any:
        return {"seen": sorted(arguments)}

    tools = []
    for sent in (recorded.get("request") or {}).get("tools") or []:
        if sent.get("type", "function") not in {"function", "custom"}:
            counts["the provider's own"] += 1
            continue
        told = dict(sent.get("function", sent))
        if told.get("description") == "":  # ours are left out or say something (contract 25)
            del told["description"]
        try:
            record = ToolRecord(ToolDefinition.from_dict(told), execute, trusted=False)
            Gate([record], allow_unguarded=True, effects=Effects(durable=False))
        except DefinitionError as error:
            counts[f"refused: {getattr(error, 'reason', 'definition')}"] += 1
            continue
        counts["registered"] += 1
        tools.append(record)
    return tools


async def test_every_recorded_call_is_hydrated_without_an_exception_and_then_passes_the_gate(shared_data: Path) -> None:
    """Contract 46, 47, 50, 53, 56, 57, C10a, C10b, I2."""
    tools, ends, outcomes = Counter[str](), Counter[str](), Counter[str]()
    read = exchanges(shared_data)
    for wire, recorded in read:
        async with Gate(offered(recorded, tools), allow_unguarded=True, effects=Effects(durable=False)) as gate:
            whole = {**recorded["response"], "done": True}  # one is the first line of a stream of Ollama
            calls = codec(wire).calls(whole if wire == "ollama" else recorded["response"])
            results = [gate.hydrate(call, wire=wire) for call in calls]
            assert len(results) == len(recorded["expect_calls"])
            for call, found, expected in zip(calls, results, recorded["expect_calls"], strict=True):
                seen = found.provenance
                assert (seen.provider_tool_id, seen.provider_call_id) == (expected["name"], call.id)
                assert (seen.original_raw_args, seen.wire) == (expected["arguments"], wire)
                assert seen.chunk is not None
                orjson.dumps(seen.to_dict())
                assert found.to_wire()["success"] is found.success
                registered = expected["name"] in gate.registry
                if not registered:
                    assert [error.detail for error in found.errors] == [{"code": "unknown_tool"}]
                ends[
                    found.errors[0].stage if registered and found.errors else "hydrated" if registered else "unknown"
                ] += 1
            for found, result in zip(results, await gate.call_many(results, user=USER), strict=True):
                assert result.outcome is (Outcome.SUCCESS if found.success else Outcome.INVALID)
                if found.success:
                    assert found.arguments is not None
                    assert result.output == {"seen": sorted(found.arguments)}
                outcomes[result.outcome.value] += 1
    print(f"exchanges {len(read)}, tools {dict(tools)}, calls {dict(ends)}, outcomes {dict(outcomes)}")
    assert len(read) >= 46
    assert tools["registered"] >= 57
    assert set(tools) <= {"registered", "the provider's own"}, "no recorded schema is refused"
    assert ends["hydrated"] >= 60
    assert ends["unknown"] <= 3, "their requests were recorded without the tools"
    assert set(ends) == {"hydrated", "unknown"}
