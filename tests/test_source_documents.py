"""The samples of the source documents, written in Python, each under the sentence that it proves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from callgate import Effects, Gate, Hook, InvokeContext, Stage, ToolCall, ToolContext, ToolRecord, invoke_tool, tool
from callgate.errors import RetryLater


class Input(BaseModel):
    a: float
    b: float


class Output(BaseModel):
    sum: float


class Halves(TypedDict):
    a: float
    b: float


@dataclass
class Sum:
    sum: float


class RateLimit(Hook):
    """The hook of the document, which refuses every call."""

    priority = 100

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        ctx.retry_after(1000, "Rate limit")


async def execute(input: Any, ctx: ToolContext) -> object:
    return Output(sum=input.a + input.b)


def sum_tool(**options: Any) -> ToolRecord:
    given: dict[str, Any] = {
        "id": "sum",
        "name": "Sum Two Numbers",
        "description": "Adds a and b",
        "input_schema": Input,
        "output_schema": Output,
        "hooks_by_stage": {},
        "execute": execute,
    }
    return ToolRecord(**given | options)


def open_gate(*tools: object, **options: Any) -> Gate:
    return Gate(tools, allow_unguarded=True, effects=Effects(durable=False), **options)


# ------------------------------------------------------------------ "A tool has a strong contract shaped by zod schemas"


async def from_mapping(input: Any, ctx: ToolContext) -> object:
    return {"sum": input["a"] + input["b"]}


async def from_object(input: Any, ctx: ToolContext) -> object:
    return Sum(input["a"] + input["b"])


@pytest.mark.parametrize(
    ("schemas", "body"),
    [
        ((Input, Output), execute),
        ((Halves, Sum), from_object),
        ((Halves, None), from_mapping),
        ((Input.model_json_schema(), Output), from_mapping),
        ((Input, Output.model_json_schema()), execute),
    ],
)
async def test_schemas_of_a_record_are_types_or_json_schema(schemas: tuple[Any, Any], body: Any) -> None:
    record = sum_tool(input_schema=schemas[0], output_schema=schemas[1], execute=body)
    assert record.input_schema is not None
    assert set(record.input_schema["properties"]) == {"a", "b"}
    assert await invoke_tool(record, {"a": 1, "b": 2}) == {"sum": 3.0}
    async with open_gate(record) as gate:
        assert (await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}))).output == {"sum": 3.0}
        refused = await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": "two"}))
        assert refused.error is not None
        assert refused.error.code == "invalid_arguments"


async def test_an_output_that_is_no_model_is_checked_against_its_schema() -> None:
    async def wrong(input: Input, ctx: ToolContext) -> object:
        return {"total": 1}

    async with open_gate(sum_tool(execute=wrong)) as gate:
        result = await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}))
    assert not result.ok


# ------------------------------------------------------------------ "Key members" of ToolInvokeContext


async def test_execute_gets_the_members_that_the_document_names_and_shares_data_with_hooks() -> None:
    seen: dict[str, Any] = {}

    class Shares(Hook):
        def will_execute(self, ctx: InvokeContext) -> None:
            ctx.data["from"] = "hook"

        def did_execute(self, ctx: InvokeContext) -> None:
            seen["back"] = ctx.data["back"]

    async def look(input: Input, ctx: ToolContext) -> object:
        ctx.data["back"] = ctx.data["from"]
        seen.update(id=ctx.tool_id, name=ctx.tool_name, input=dict(ctx.input), error=ctx.error, at=ctx.started_at)
        assert ctx.user_id == ctx.user.id
        for name in ("get", "try_get", "respond", "abort", "retry_after"):
            assert callable(getattr(ctx, name))
        return Output(sum=0)

    await invoke_tool(sum_tool(execute=look, hooks=[Shares()]), {"a": 1, "b": 2})
    assert isinstance(seen.pop("at"), datetime)
    assert seen == {
        "id": "sum",
        "name": "Sum Two Numbers",
        "input": {"a": 1, "b": 2},
        "error": None,
        "back": "hook",
    }


# ------------------------------------------------------------------ hooks at tool level


@pytest.mark.parametrize("called", [True, False], ids=["called before", "not called before"])
@pytest.mark.parametrize("hook", [RateLimit, RateLimit()], ids=["class", "object"])
@pytest.mark.parametrize("how", ["set", "append"])
async def test_a_hook_that_is_added_to_a_stage_counts_from_the_next_call(called: bool, hook: Any, how: str) -> None:
    """A policy that is ignored in silence fails open."""
    record = sum_tool(hooks_by_stage={Stage.WILL_ACQUIRE_QUOTA: []})
    hooks: Any = record.hooks_by_stage
    if called:
        await invoke_tool(record, {"a": 1, "b": 2})
    if how == "set":
        hooks[Stage.WILL_ACQUIRE_QUOTA] = [hook]
    else:
        hooks[Stage.WILL_ACQUIRE_QUOTA].append(hook)
    with pytest.raises(RetryLater):
        await invoke_tool(record, {"a": 1, "b": 2})
    hooks.clear()
    assert await invoke_tool(record, {"a": 1, "b": 2}) == {"sum": 3.0}


async def test_a_gate_fixes_the_hooks_of_its_tools() -> None:
    record = sum_tool(hooks_by_stage={Stage.WILL_ACQUIRE_QUOTA: []})
    hooks: Any = record.hooks_by_stage  # taken before: a change through it is refused as well
    hooks[Stage.WILL_ACQUIRE_QUOTA] = [RateLimit]
    async with open_gate(record) as gate:
        for change in (
            lambda: hooks.update({Stage.WILL_ACQUIRE_QUOTA: []}),
            lambda: hooks.setdefault(Stage.WILL_EXECUTE, []),
            lambda: hooks.pop(Stage.WILL_ACQUIRE_QUOTA),
            hooks.popitem,
            hooks.clear,
        ):
            with pytest.raises(TypeError, match=r"gate\.exchange"):
                change()
        with pytest.raises(AttributeError):
            hooks[Stage.WILL_ACQUIRE_QUOTA].clear()
        assert not (await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}))).ok


# ------------------------------------------------------------------ definitions in one mapping, and results


async def test_a_definition_may_be_one_mapping() -> None:
    @tool({"type": "function", "name": "get_temperature", "description": "Get the current temperature for a city"})
    async def temperature(city: str) -> str:
        return city

    assert temperature.definition.name == "get_temperature"
    assert temperature.definition.description == "Get the current temperature for a city"
    assert await temperature("Oslo") == "Oslo"
    with pytest.raises(TypeError, match="name twice"):
        tool({"name": "a"}, name="b")
    with pytest.raises(TypeError, match="no option 'nme'; did you mean 'name'"):
        tool({"nme": "a"})


async def test_a_result_has_the_members_that_the_document_names() -> None:
    async with open_gate(sum_tool()) as gate:
        good = await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}, id="c1"))
        bad = await gate.call(ToolCall(name="sum", arguments={}, id="c2"))
    assert (good.call_id, good.tool_name, good.status, good.output) == ("c1", "sum", "success", {"sum": 3.0})
    assert (bad.call_id, bad.tool_name, bad.status) == ("c2", "sum", "error")
    for result in (good, bad):
        assert result.to_status()["metadata"] == result.metadata
        assert result.metadata["outcome"] == result.outcome.value
