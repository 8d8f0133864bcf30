"""Ordinary usages as an engineer guesses them from other frameworks: each works, or is refused with the line to write.

The guesses come from the habits of FastAPI, Starlette, FastMCP, Pydantic AI and LangChain. A guess without a line works.
"""

# ruff: noqa: ERA001, ISC004

from __future__ import annotations

import textwrap
from typing import Any

import pytest

PRELUDE = """
import asyncio, json
from typing import Annotated, Any
from callgate import (
    Denied, Gate, Hook, InvokeContext, Outcome, Provide, RegistrationError, Sessions, Effects, Stage, ToolCall,
    ToolContext, ToolError, ToolRecord, ToolResult, User, as_tool, invoke_tool, on, tool,
)

ANN = User("ann", roles={"manager"})

@tool(effect="read")
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""

OPEN = "async with Gate([add]) as gate:\n    "

GUESSES: list[tuple[str, str, str | None]] = [
    # ------------------------------------------------------------------ declaring tools
    ("tool, bare", "@tool\nasync def f(a: int) -> int:\n    'Doc.'\n    return a\nassert as_tool(f).id == 'f'", None),
    ("tool(), called", "@tool()\ndef f(a: int) -> int:\n    'Doc.'\n    return a\nassert as_tool(f).id == 'f'", None),
    ("tool with a name", "@tool(name='g')\ndef f(a: int) -> int:\n    'Doc.'\n    return a\nassert as_tool(f).id == 'g'", None),
    ("tool(type='function')", "@tool(type='function', name='g')\ndef f() -> int:\n    'Doc.'\n    return 1", None),
    ("a plain function in the list", "def f(a: int) -> int:\n    'Doc.'\n    return a\nGate([f])", None),
    ("tool called as a function", "assert await add(1, 2) == 3", None),
    ("tool(timeout=)", "@tool(timeout=5)\ndef f() -> int:\n    return 1", "@tool(deadline=...)"),
    ("tool(input_schema=)", "@tool(input_schema={})\ndef f() -> int:\n    return 1", "@tool(parameters={...})"),
    ("tool(pre_hook=)", "@tool(pre_hook=print)\ndef f() -> int:\n    return 1", "@tool(hooks=[hook])"),
    ("tool.name", "add.name", "tool.definition.name"),
    ("tool.args_schema", "add.args_schema", "tool.definition.parameters"),
    ("tool.invoke", "add.invoke({'a': 1, 'b': 2})", "await gate.invoke(tool, arguments, user=user)"),
    (
        "ToolRecord by fields",
        "async def run(input, ctx):\n    return input['a']\n"
        "record = ToolRecord(id='sum', name='Sum', description='Adds.', input_schema={'type': 'object', "
        "'properties': {'a': {'type': 'integer'}}}, execute=run, tags=['math'])\n"
        "assert (record.id, record.name, record.tags) == ('sum', 'Sum', {'math'})\n"
        "assert await invoke_tool(record, {'a': 1}, user=ANN) == 1",
        None,
    ),
    ("ToolRecord(pre_hook=)", "ToolRecord(id='x', execute=print, pre_hook=print)", "ToolRecord(hooks=[hook])"),
    ("import Tool", "from callgate import Tool", "from callgate import ToolRecord"),
    ("import StructuredTool", "from callgate import StructuredTool", "from callgate import as_tool"),
    ("import BaseTool", "from callgate import BaseTool", "from callgate import tool"),
    # ------------------------------------------------------------------ imports
    ("import Quota from callgate", "from callgate import Quota", "from callgate.hooks import Quota"),
    ("import RateLimit", "from callgate.hooks import RateLimit", "from callgate.hooks import Quota"),
    ("import OpenAIChat from callgate", "from callgate import OpenAIChat", "from callgate.models import OpenAIChat"),
    ("import SqlStore from callgate", "from callgate import SqlStore", "from callgate.stores import SqlStore"),
    ("import StoreError from callgate", "from callgate import StoreError", "from callgate.errors import StoreError"),
    ("import Depends", "from callgate import Depends", "from callgate import Provide"),
    ("import TestClient", "from callgate import TestClient", "from callgate.testing import ScriptedModel"),
    ("import FastMCP", "from callgate import FastMCP", "from callgate.mcp import server"),
    ("import RunContext", "from callgate import RunContext", "from callgate import ToolContext"),
    ("import Context", "from callgate import Context", "from callgate import ToolContext"),
    ("import Middleware", "from callgate import Middleware", "from callgate import Hook"),
    ("import ModelRetry", "from callgate import ModelRetry", "from callgate import ToolError"),
    ("import HTTPException", "from callgate import HTTPException", "from callgate import ToolError"),
    ("import Agent", "from callgate import Agent", "from callgate import converse"),
    ("import a misspelt name", "from callgate import ToolCal", "from callgate import ToolCall"),
    ("import callgate; callgate.hooks", "import callgate\ncallgate.hooks.Quota\ncallgate.models.OpenAIChat", None),
    # ------------------------------------------------------------------ the gate
    ("async with Gate", OPEN + "assert await gate.invoke(add, {'a': 1, 'b': 2}, user=ANN) == 3", None),
    ("open and close", "gate = Gate([add])\nawait gate.open()\nassert gate.is_open\nawait gate.close()", None),
    ("invoke by name", OPEN + "assert await gate.invoke('add', {'a': 1, 'b': 2}, user=ANN) == 3", None),
    ("invoke with JSON text", OPEN + "assert await gate.invoke('add', '{\"a\": 1, \"b\": 2}', user=ANN) == 3", None),
    ("call by name", OPEN + "assert (await gate.call('add', {'a': 1, 'b': 2}, user=ANN)).ok", None),
    ("call with a ToolCall", OPEN + "assert (await gate.call(ToolCall(name='add', arguments={'a': 1, 'b': 2}))).ok", None),
    ("call with keywords", OPEN + "result = await gate.call('add', a=1, b=2)\n    assert result.ok, result.error",
     "gate.call("),
    ("user='ann'", OPEN + "await gate.invoke(add, {'a': 1, 'b': 2}, user='ann')", "User("),
    ("user as a dict", OPEN + "await gate.invoke(add, {'a': 1, 'b': 2}, user={'id': 'ann'})", "User("),
    ("gate.run", "Gate([add]).run('add')", "await gate.invoke(tool, arguments, user=user)"),
    ("gate.ainvoke", "Gate([add]).ainvoke('add')", "await gate.invoke(tool, arguments, user=user)"),
    ("gate.execute", "Gate([add]).execute('add')", "await gate.invoke(tool, arguments, user=user)"),
    ("gate.call_sync", "Gate([add]).call_sync('add')", "with gate.sync() as g"),
    ("gate.batch", "Gate([add]).batch([])", "await gate.call_many(calls, user=user)"),
    ("gate.astream", "Gate([add]).astream('add')", "gate.stream(call, user=user)"),
    ("@gate.tool", "gate = Gate()\n@gate.tool\ndef f() -> int:\n    return 1", "gate.add(function)"),
    ("gate.add_tool", "Gate().add_tool(add)", "gate.add(function)"),
    ("gate.add", "gate = Gate()\ngate.add(add)\nassert 'add' in gate.registry", None),
    ("gate.list_tools", "Gate([add]).list_tools()", "gate.tools_for(user)"),
    ("gate.tools", "Gate([add]).tools", "gate.tools_for(user)"),
    ("gate.openai_tools", "Gate([add]).openai_tools()", 'gate.definitions("openai_chat", user=user)'),
    ("gate.add_middleware", "Gate([add]).add_middleware(Hook)", "gate.use(hook)"),
    ("gate.dependency_overrides", "Gate([add]).dependency_overrides[int] = 1", "with gate.override({token: fake})"),
    ("gate.start", "await Gate([add]).start()", "await gate.open()"),
    ("gate.aclose", "await Gate([add]).aclose()", "await gate.close()"),
    ("Gate(middleware=)", "Gate([add], middleware=[])", "Gate(hooks=[...])"),
    ("Gate(dependencies=)", "Gate([add], dependencies=[])", "Gate(provide={token: factory})"),
    ("Gate(timeout=)", "Gate([add], timeout=5)", "Gate(deadline=...)"),
    ("Gate(debug=True)", "Gate([add], debug=True)", 'Gate(mode="development")'),
    ("Gate(tools=, hooks=)", "Gate(tools=[add], hooks=[])", None),
    ("Gate(mode='dev')", "Gate([add], mode='dev')", 'Gate(mode="development")'),
    ("async with gate.session()", OPEN + "async with gate.session(user=ANN) as session:\n        "
        "assert await session.invoke(add, {'a': 1, 'b': 2}) == 3", None),
    ("an unknown attribute", "Gate().nothing_like_it", "'Gate' object has no attribute"),
    # ------------------------------------------------------------------ calls and results
    ("ToolCall by position", "ToolCall('id', 'name', {})", "ToolCall("),
    ("ToolCall to JSON", "assert ToolCall.from_dict(json.loads(json.dumps(ToolCall(name='add').to_dict()))).name == 'add'", None),
    ("result.output", OPEN + "assert (await gate.call('add', {'a': 1, 'b': 2})).output == 3", None),
    ("result.content", "ToolResult('1', 'add', Outcome.SUCCESS, 3).content", "result.output"),
    ("result.is_error", "ToolResult('1', 'add', Outcome.SUCCESS, 3).is_error", "not result.ok"),
    ("raise ToolError", "@tool(effect='read')\nasync def f() -> int:\n    raise ToolError('No such order.')\n"
        "async with Gate([f]) as gate:\n    result = await gate.call('f', {})\n    assert result.error.public == 'No such order.'", None),
    # ------------------------------------------------------------------ hooks
    ("Quota('100/minute')", "from callgate.hooks import Quota\nQuota('100/minute')", None),
    ("Retry(3)", "from callgate.hooks import Retry\nRetry(3)", None),
    ("Retry(max_attempts=3)", "from callgate.hooks import Retry\nRetry(max_attempts=3)", None),
    ("Cache(60)", "from callgate.hooks import Cache\nCache(60)", None),
    ("Cache(ttl=60)", "from callgate.hooks import Cache\nCache(ttl=60)", None),
    ("Timeout(5)", "from callgate.hooks import Timeout\nTimeout(5)", None),
    ("Concurrency(5)", "from callgate.hooks import Concurrency\nConcurrency(5)", None),
    ("Redact('password')", "from callgate.hooks import Redact\nRedact('password')", None),
    ("Authorize(roles=)", "from callgate.hooks import Authorize\nAuthorize(roles={'manager'})", None),
    ("await next()", "class Timed(Hook):\n    async def around_execute(self, ctx, next):\n        return await next()\n"
        "async with Gate([add], [Timed()]) as gate:\n    assert await gate.invoke(add, {'a': 1, 'b': 2}) == 3", None),
    ("await next(ctx)", "class Timed(Hook):\n    async def around_execute(self, ctx, next):\n        return await next(ctx)\n"
        "async with Gate([add], [Timed()]) as gate:\n    assert await gate.invoke(add, {'a': 1, 'b': 2}) == 3", None),
    ("ctx.state", "class Notes(Hook):\n    def will_execute(self, ctx):\n        ctx.state['x'] = 1\n"
        "async with Gate([add], [Notes()]) as gate:\n    await gate.invoke(add, {'a': 1, 'b': 2})", "ctx.data"),
    ("a hook with before()", "class Early(Hook):\n    def before(self, ctx): ...\nGate([add], [Early()])", "will_authorize"),
    ("a misspelt stage", "class Early(Hook):\n    def will_autorize(self, ctx): ...\nGate([add], [Early()])", "will_authorize"),
    # ------------------------------------------------------------------ users
    ("User(claims=, token=)", "user = User('ann', claims={'email': 'a@b.c'}, token='t')\nassert user.claims['email'] == 'a@b.c'", None),
    ("User(roles='manager')", "User('ann', roles='manager')", "roles={'manager'}"),
    ("Provide", "class Db: ...\n@tool(effect='read')\nasync def f(db: Annotated[Any, Provide[int]]) -> int:\n    return db\n"
        "async with Gate([f], provide={int: 7}) as gate:\n    assert await gate.invoke(f, {}) == 7", None),
]  # fmt: skip


async def attempt(code: str) -> None:
    names: dict[str, Any] = {"__name__": "guess"}
    exec(f"{PRELUDE}\nasync def main():\n{textwrap.indent(code, '    ')}", names)
    await names["main"]()


@pytest.mark.parametrize(
    ("code", "line"), [(code, line) for _, code, line in GUESSES], ids=[name for name, *_ in GUESSES]
)
async def test_a_first_guess_works_or_is_answered_with_the_line_to_write(code: str, line: str | None) -> None:
    if line is None:
        await attempt(code)
        return
    with pytest.raises(Exception) as caught:
        await attempt(code)
    error: BaseException | None = caught.value
    messages = []
    while error is not None:  # an error of a hook is the cause of the error of the call
        messages.append(str(error))
        error = error.__cause__
    assert line in " ".join(messages)


def test_there_are_guesses_enough() -> None:
    assert len(GUESSES) == len({name for name, *_ in GUESSES}) >= 40
