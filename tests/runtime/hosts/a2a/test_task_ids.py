"""The ids of an A2A task on the context of its calls, for hooks and tools."""

from __future__ import annotations

from typing import Any

import pytest
from a2a import helpers as h

from callgate import Gate, Hook, InvokeContext, ToolCall, ToolContext, invoke_tool, tool
from callgate.runtime.pipeline.options import CallOptions
from callgate.tools.client.client import ClientToolProvider
from callgate.tools.execution import TaskIds
from tests.harness.gate_options import gate_options
from tests.runtime.conversation.conversing import asks, says
from tests.runtime.hosts.a2a.making import ANN, KEY, SEARCH, Plain, approve, running

CONTEXT = "ctx-123"


def wants(id: str, name: str) -> ToolCall:
    return ToolCall(id=id, name=name, arguments={})


class Sees(Hook):
    """Notes the ids that each call of a tool has, in an early stage and on the error path."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None, str | None]] = []
        self.refused: list[tuple[str | None, str | None]] = []

    async def will_authorize(self, ctx: InvokeContext) -> None:
        self.seen.append((ctx.tool_id, ctx.task_id, ctx.context_id))

    async def on_error(self, ctx: InvokeContext) -> None:
        self.refused.append((ctx.task_id, ctx.context_id))


class Desk:
    """Tools that note the ids they were called with."""

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, str | None]] = []
        self.hook = Sees()

    def tools(self) -> list[Any]:
        @tool(effect="read")
        async def look(ctx: ToolContext) -> int:
            """Look."""
            self.seen.append((ctx.task_id, ctx.context_id))
            return 1

        @tool(effect="read")
        async def outer(ctx: ToolContext) -> Any:
            """Call another tool."""
            return await ctx.call("look", {})

        @tool(effect="irreversible", requires_approval=True)
        async def pay(ctx: ToolContext) -> str:
            """Pay."""
            self.seen.append((ctx.task_id, ctx.context_id))
            return "paid"

        @tool(effect="read", run_on="worker")
        async def fetch(ctx: ToolContext) -> int:
            """Run in a worker."""
            self.seen.append((ctx.task_id, ctx.context_id))
            return 2

        @tool(effect="read", resumable=True)
        async def ask(ctx: ToolContext) -> str:
            """Ask its owner."""
            self.seen.append((ctx.task_id, ctx.context_id))
            return str(ctx.suspend("input", "Which?"))

        return [look, outer, pay, fetch, ask]

    def gate(self) -> Gate:
        return Gate(self.tools(), [self.hook], **gate_options(open=True, signing_keys=[KEY], durable=False))


async def test_a_call_of_a_task_knows_the_ids_of_the_task_and_its_context() -> None:
    """Contract 42."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        ann = await agent.as_user("ann")
        part = h.new_data_part({"type": "tool_call", "name": "outer", "arguments": {}})
        task = (await ann.send(part, context=CONTEXT)).task
    assert desk.seen == [(task, CONTEXT)], "a nested call belongs to the task, too"
    assert desk.hook.seen == [("outer", task, CONTEXT), ("look", task, CONTEXT)]


async def test_a_call_in_a_conversation_knows_them_in_this_process_and_in_a_worker() -> None:
    """Contract 42."""
    desk = Desk()
    script = asks(wants("c1", "look"), wants("c2", "fetch")), says("Done.")
    async with running(desk.gate(), *script) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.send(h.new_text_part("Look."), context=CONTEXT)
    assert seen.state == "completed"
    assert desk.seen == [(seen.task, CONTEXT)] * 2


async def test_a_call_that_waited_knows_them_when_it_is_resumed() -> None:
    """Contract 42: by an approver elsewhere, and by the answer of its owner."""
    desk = Desk()
    gate = desk.gate()
    script = asks(wants("c1", "pay")), asks(wants("c2", "ask")), says("Done.")
    async with running(gate, *script) as agent:
        ann = await agent.as_user("ann", Plain)
        first = await ann.send(h.new_text_part("Pay."), context=CONTEXT)
        assert first.state == "input-required"
        assert (await approve(gate)).ok
        second = await ann.look(first.task)
        assert second.state == "input-required"
        await ann.data({"type": "answer", "id": "c2", "value": "this"}, task=first.task)
    assert desk.seen == [(first.task, CONTEXT)] * 3
    assert {ids[1:] for ids in desk.hook.seen} == {(first.task, CONTEXT)}


async def test_a_call_of_a_tool_that_does_not_exist_is_recorded_with_them() -> None:
    """Contract 42, I8."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        ann = await agent.as_user("ann")
        part = h.new_data_part({"type": "tool_call", "name": "unheard_of", "arguments": {}})
        task = (await ann.send(part, context=CONTEXT)).task
    assert desk.hook.refused == [(task, CONTEXT)]


async def test_the_callback_of_a_client_tool_gets_them_with_its_context() -> None:
    """Contract 39, 42."""
    seen: list[Any] = []

    async def callback(wanted: Any, context: Any) -> dict[str, Any]:
        seen.append((context.task_id, context.context_id))
        return {"toolCallId": wanted.id, "toolName": wanted.name, "success": True, "result": "found"}

    provider = ClientToolProvider([SEARCH], callback)
    async with Gate(provider.tools(), allow_unguarded=True, mode="development") as gate:
        options: CallOptions = {"task": TaskIds("t1", CONTEXT)}
        assert await gate.invoke("search", {"query": "x"}, user=ANN, **options) == "found"
    assert seen == [("t1", CONTEXT)]


async def test_a_call_outside_of_a2a_has_neither() -> None:
    """Contract 42."""
    desk = Desk()
    look = desk.tools()[0]
    async with desk.gate() as gate:
        await gate.invoke("look", {}, user=ANN)
    await invoke_tool(look, {})
    assert desk.seen == [(None, None)] * 2
    assert desk.hook.seen == [("look", None, None)]


@pytest.mark.parametrize("name", ["task_id", "context_id"])
async def test_no_hook_changes_them(name: str) -> None:
    """Contract 42: they are read-only."""
    caught: list[type[BaseException]] = []

    class Forges(Hook):
        async def will_authorize(self, ctx: InvokeContext) -> None:
            try:
                setattr(ctx, name, "t2")
            except AttributeError as error:
                caught.append(type(error))

    desk = Desk()
    async with Gate(desk.tools(), [Forges()], allow_unguarded=True, mode="development") as gate:
        await gate.invoke("look", {}, task=TaskIds("t1", CONTEXT))
    assert (caught, desk.seen) == ([AttributeError], [("t1", CONTEXT)])
