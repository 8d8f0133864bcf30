"""The samples of the document on tool selection and provider mapping, written literally, each with its sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from callgate import Stage, codec, pick_tools, tool
from callgate.picking import keyword_overlap
from callgate.tools import ToolDefinitionSchema, safe_validate_tool_definitions, validate_tool_definitions

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "required": ["city"],
    "properties": {"city": {"type": "string", "description": "The name of the city"}},
}


@tool(
    {
        "type": "function",
        "name": "get_weather",
        "description": "Get weather",
        "parameters": PARAMETERS,
        "tags": ["weather"],
    }
)
class GetWeatherTool:
    async def run(self) -> str:
        raise AssertionError("pick_tools ran a tool")


@tool({"name": "get_temperature", "description": "Get the current temperature for a city", "parameters": PARAMETERS})
class GetTemperatureTool:
    async def run(self) -> str:
        raise AssertionError("pick_tools ran a tool")


@tool(
    {"name": "delete_database", "description": "Delete the weather database", "parameters": PARAMETERS, "safe": False}
)
class DeleteDatabaseTool:
    async def run(self) -> str:
        raise AssertionError("pick_tools ran a tool")


ALL: list[Any] = [GetWeatherTool, GetTemperatureTool, DeleteDatabaseTool]


async def test_unsafe_tools_are_skipped_unless_the_caller_allows_them() -> None:
    """ "If tool has ``safe: false`` and ``allowUnsafe: false``, skip it entirely"."""
    picks = await pick_tools("delete the weather database", ALL)
    assert DeleteDatabaseTool not in [one.tool for one in picks]
    with_unsafe = await pick_tools("delete the weather database", ALL, {"allowUnsafe": True})
    assert with_unsafe[0].tool is DeleteDatabaseTool


async def test_the_embedding_scorer_of_the_document_ranks_the_classes() -> None:
    """ "``pickTools`` accepts a ``scorer`` function to replace the default heuristic"."""

    async def embed_text(text: str) -> set[str]:
        return set(text.lower().split())

    async def embedding_scorer(input: Any, tool: Any) -> dict[str, Any]:
        input_embed = await embed_text(input)
        tool_embed = await embed_text(tool.definition.description)
        return {"score": len(input_embed & tool_embed) / len(tool_embed), "reason": "semantic similarity"}

    picks = await pick_tools("current temperature city", ALL, {"scorer": embedding_scorer, "maxCandidates": 3})
    assert (picks[0].tool, picks[0].reason) == (GetTemperatureTool, "semantic similarity")
    assert 0.0 <= picks[0].score <= 1.0


async def test_the_model_scorer_and_the_hybrid_of_the_document_keep_their_details() -> None:
    """ "LLM-based scorer (classify relevance)" and "Hybrid scorer (keyword + embeddings)"."""
    prompts: list[str] = []

    async def llm_scorer(input: Any, tool: Any) -> dict[str, Any]:
        prompt = (
            f'Given input: "{input}"\nTool: {tool.definition.name} - {tool.definition.description}\nRelevance (0-1):'
        )
        prompts.append(prompt)
        score = 0.9 if "weather" in tool.definition.name else 0.1
        return {"score": score, "reason": "LLM classifier", "details": {"prompt": prompt, "model": "gpt-4"}}

    async def hybrid_scorer(input: Any, tool: Any) -> dict[str, Any]:
        keyword = keyword_overlap(input, tool).score
        semantic = (await llm_scorer(input, tool))["score"]
        return {"score": 0.4 * keyword + 0.6 * semantic, "reason": "hybrid"}

    picks = await pick_tools("weather in Oslo", ALL, {"scorer": llm_scorer, "debug": True})
    assert picks[0].tool is GetWeatherTool
    assert picks[0].provenance is not None
    details: Any = picks[0].provenance.details
    assert details["model"] == "gpt-4"
    assert len(prompts) == 2, "the unsafe tool is not scored"
    assert [one.reason for one in await pick_tools("weather", ALL, {"scorer": hybrid_scorer})] == ["hybrid", "hybrid"]


async def test_the_defaults_and_the_empty_result_of_the_document_hold() -> None:
    """ "If no tools score above ``minScore``, return empty array"."""
    assert await pick_tools("zzz", ALL) == []
    assert await pick_tools({"city": "weather"}, ALL) != [], "an object is made a text"
    overlap = keyword_overlap("weather", GetWeatherTool)
    assert (overlap.score, overlap.reason) == (1.0, "matched keywords in get_weather")
    assert keyword_overlap("zzz", GetWeatherTool).reason is None


# ------------------------------------------------------------------ "Provider Schema Mapping"


def mapped(wire: str) -> Any:
    return codec(wire).translate([GetWeatherTool]).request["tools"]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("wire", "schema"),
    [
        ("openai_responses", lambda one: one["parameters"]),
        ("openai_chat", lambda one: one["function"]["parameters"]),
        ("ollama", lambda one: one["function"]["parameters"]),
        ("anthropic", lambda one: one["input_schema"]),
    ],
)
def test_each_provider_gets_its_own_shape_of_the_canonical_schema(wire: str, schema: Any) -> None:
    """ "Each concrete client translates the decorator metadata"; contract C3: the flat shape is right for one of them."""
    before = copy.deepcopy(dict(GetWeatherTool.get_definition().parameters))  # type: ignore[attr-defined]
    (one,) = mapped(wire)
    named = one.get("function", one)
    assert (named["name"], named["description"]) == ("get_weather", "Get weather")
    found = schema(one)
    assert (found["type"], found["required"], set(found["properties"])) == ("object", ["city"], {"city"})
    assert dict(GetWeatherTool.get_definition().parameters) == before, "translation works on a copy"  # type: ignore[attr-defined]


# ------------------------------------------------------------------ "ToolDefinitionSchema.parse" and the order diagram


def test_the_schema_of_definitions_is_data_and_its_methods_are_answered_with_functions() -> None:
    """ "Exported schemas": in TypeScript ``ToolDefinitionSchema.parse(definition)``."""
    definition = {"name": "search", "description": "Search", "parameters": PARAMETERS}
    schema: Any = ToolDefinitionSchema
    with pytest.raises(AttributeError, match="write validate_tool_definitions") as answer:
        schema.parse(definition)
    line = str(answer.value).partition("write ")[2]
    scene = {"validate_tool_definitions": validate_tool_definitions, "definition": definition}
    assert eval(line, scene).name == "search", "the line of the answer runs"
    assert safe_validate_tool_definitions([definition])["success"]


DIAGRAM = """
    will_create_invoke_context did_create_invoke_context will_bind_providers will_authorize will_check_consent
    will_check_feature_flags will_acquire_quota will_acquire_semaphore will_parse_input will_validate_input
    will_normalize_input will_redact_input will_inject_secrets will_read_cache did_cache_miss around_execute will_execute
    did_execute will_write_cache will_redact_output will_validate_output will_transform_output will_audit did_audit
    on_metrics did_release_semaphore did_release_quota will_finalize_invoke
""".split()


async def test_the_stages_of_a_call_run_in_the_order_of_the_diagram() -> None:
    """ "Mermaid: Invocation Flow", success path without a hit of the cache."""
    from callgate import Hook, invoke_tool

    seen: list[str] = []

    def note(name: str) -> Any:
        if name == "around_execute":

            async def around(self: Any, ctx: Any, next: Any) -> Any:
                seen.append(name)
                return await next()

            return around
        return lambda self, ctx: seen.append(name)

    everything = type("Everything", (Hook,), {stage.value: note(stage.value) for stage in Stage})
    looked = type("Looked", (Hook,), {"concern": "cache", "will_read_cache": lambda self, ctx: None})

    @tool(effect="read", hooks=[everything(), looked()])
    async def sum_two(a: int) -> int:
        """Sum."""
        return a

    await invoke_tool(sum_two, {"a": 1})
    assert [name for name in seen if name in DIAGRAM] == [name for name in DIAGRAM if name in seen]
    assert set(DIAGRAM) - set(seen) <= {"did_cache_miss"}
