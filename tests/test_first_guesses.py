"""Ordinary usages as an engineer guesses them from other frameworks: each works, or is refused with the line to write.

The guesses come from the habits of FastAPI, Starlette, FastMCP, Pydantic AI and LangChain. A guess without a line works.
"""

# ruff: noqa: ERA001, ISC004

from __future__ import annotations

import gc
import re
import textwrap
from typing import Any
from unittest.mock import create_autospec

import pytest

from callgate import Gate
from callgate.runtime.gate.mistakes import GATE

PRELUDE = """
import asyncio, json
from typing import Annotated, Any
from callgate import (
    Denied, Gate, Hook, InvokeContext, Outcome, Provide, RegistrationError, Sessions, Effects, Stage, ToolCall,
    ToolContext, ToolError, ToolRecord, ToolResult, User, as_tool, invoke_tool, on, tool, Approval, Approve, Scoped,
    converse,
)
from callgate.hooks import Audit, Authorize, Cache, CircuitBreaker, Concurrency, Quota, Redact, Retry, Timeout, Tracing

ANN = User("ann", roles={"manager"})

class Db: ...

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
    ("gate.call_tool", "Gate([add]).call_tool('add')", "await gate.call(tool, arguments, user=user)"),
    ("gate.acall", "Gate([add]).acall('add')", "await gate.call(tool, arguments, user=user)"),
    ("gate.tool_definitions", "Gate([add]).tool_definitions()", 'gate.definitions("openai_chat", user=user)'),
    ("gate.hooks", "Gate([add]).hooks", "gate.explain(tool)"),
    ("gate.deny", "Gate([add]).deny('handle')", "await gate.resume(handle, Deny(reason), approver=user)"),
    ("gate.provide", "Gate([add]).provide({Db: Db})", "Gate(tools, provide={token: factory})"),
    ("gate.resolve", "Gate([add]).resolve(Db)", "Annotated[Db, Provide[Db]]"),
    ("gate.asgi", "Gate([add]).asgi()", "callgate.asgi(gate, authenticate=function)"),
    ("gate.mount_mcp", "await Gate([add]).mount_mcp('https://x')", "await gate.mount(McpServer(name=name, url=url))"),
    ("gate.health", "Gate([add]).health()", "gate.is_open"),
    ("gate.invoke_tool", "await Gate([add]).invoke_tool('add')", "await gate.invoke(tool, arguments, user=user)"),
    ("gate.test_client", "Gate([add]).test_client()", "callgate.testing.ScriptedModel"),
    ("gate.callMany", "Gate([add]).callMany([])", "call_many"),
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
    ("an unknown attribute", "Gate().nothing_like_it", "no attribute 'nothing_like_it'"),
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
    # ------------------------------------------------------------------ mistakes of the first days
    ("a tool class without run", "@tool\nclass X:\n    'X.'\n    def __init__(self, a: int): self.a=a", "async def run(self"),
    ('@tool("name")', '@tool("add_it")\ndef f(a: int) -> int:\n    \'F.\'\n    return a\nGate([f])', "@tool(name='add_it')"),
    ("@tool(desc)", '@tool(desc="x")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "@tool(description=...)"),
    ("@tool(args_schema)", "@tool(args_schema={})\ndef f(a: int) -> int:\n    'F.'\n    return a", "@tool(parameters=Model.model_json_schema())"),
    ("@tool(schema)", "@tool(schema={})\ndef f(a: int) -> int:\n    'F.'\n    return a", "@tool(parameters={...})"),
    ("@tool(effect=write)", '@tool(effect="write")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "'read', 'idempotent', 'keyed', 'irreversible'"),
    ("a keyed effect without a key", '@tool(effect="keyed")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "needs key=(...)"),
    ("@tool(key=str)", '@tool(effect="keyed", key="a")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "write key=('a',)"),
    ("a key that is no parameter", '@tool(effect="keyed", key=("b",))\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "known: a"),
    ("@tool(roles)", '@tool(roles={"x"})\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "@tool(allowed_roles={...})"),
    ("@tool(allowed_roles=str)", '@tool(allowed_roles="x")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "write allowed_roles=('x',)"),
    ("@tool(approval)", "@tool(approval=True)\ndef f(a: int) -> int:\n    'F.'\n    return a", "'requires_approval'"),
    ("@tool(requires_approval='manager')", '@tool(requires_approval="manager")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', 'requires_approval=Approval(roles={"manager"})'),
    ("@tool(retries)", "@tool(retries=3)\ndef f(a: int) -> int:\n    'F.'\n    return a", "@tool(hooks=[Retry(3)])"),
    ("@tool(cache)", "@tool(cache=60)\ndef f(a: int) -> int:\n    'F.'\n    return a", "@tool(hooks=[Cache(60)])"),
    ("@tool(deadline='5')", '@tool(deadline="5")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "give seconds"),
    ("tool name with spaces", '@tool(name="my tool")\ndef f(a: int) -> int:\n    \'F.\'\n    return a', "title='my tool'"),
    ("a lambda as a tool", "Gate([lambda a: a])", 'name="..."'),
    ("a tool with **kwargs", "@tool\ndef f(**kw) -> int:\n    'F.'\n    return 1", "name the parameters"),
    ("a tool with *args", "@tool\ndef f(*a: int) -> int:\n    'F.'\n    return 1", "given by name"),
    ("a parameter that forgot Provide", 'class Session: ...\n@tool(effect="read")\ndef f(a: int, db: Session) -> int:\n    \'F.\'\n    return 1', "write db: Annotated[Session, Provide[Session]]"),
    ("InvokeContext in a tool", '@tool(effect="read")\ndef f(a: int, ctx: InvokeContext) -> int:\n    \'F.\'\n    return 1', "write ctx: ToolContext"),
    ("ctx without type", '@tool(effect="read")\nasync def f(a: int, ctx) -> int:\n    \'F.\'\n    return 1\ng = Gate([f])\nprint(as_tool(f).definition.parameters)', "annotate it with ToolContext"),
    ("a marked parameter without a provider", '@tool(effect="read")\ndef f(a: int, db: Annotated[Db, Provide[Db]]) -> int:\n    \'F.\'\n    return 1\nGate([f])', "provide={...}"),
    ("Annotated[Db, Provide]", '@tool(effect="read")\nasync def f(a: int, db: Annotated[Db, Provide]) -> int:\n    \'F.\'\n    return isinstance(db, Db)\nasync with Gate([f], provide={Db: Db}) as g:\n    return await g.invoke(f, {"a": 1})', "Annotated[Db, Provide[Db]]"),
    ("Provide[Db] as annotation", '@tool(effect="read")\nasync def f(a: int, db: Provide[Db]) -> int:\n    \'F.\'\n    return 1', "Annotated[Db, Provide[Db]]"),
    ("Scoped('transient')", 'Scoped("transient", Db)', "execution, request, session, global"),
    ("Scoped swapped", 'Scoped(Db, "request")', "write Scoped('request', Db)"),
    ("Scoped without a scope", "Scoped(Db)", "write Scoped('request', Db)"),
    ("a call before the gate is open", 'await Gate([add]).invoke(add, {"a":1,"b":2})', "async with gate"),
    ("open twice", "g = Gate([add]); await g.open()\ntry: await g.open()\nfinally: await g.close()", "call open() once"),
    ("with instead of async with", "with Gate([add]) as g: pass", "async with gate"),
    ("gate.sync() inside a loop", 'with Gate([add]).sync() as g: g.invoke(add, {"a":1,"b":2})', "use the gate itself"),
    ("invoke kwargs", "async with Gate([add]) as g: await g.invoke(add, a=1, b=2)", "gate.call(tool, {'a': ...}, user=user)"),
    ("invoke(timeout=)", 'async with Gate([add]) as g: await g.invoke(add, {"a":1,"b":2}, timeout=5)', "deadline=seconds"),
    ("invoke unknown name", 'async with Gate([add]) as g: await g.invoke("ad", {})', "did you mean 'add'?"),
    ("invoke unregistered function", '@tool(effect="read")\ndef other() -> int:\n    "O."\n    return 1\nasync with Gate([add]) as g: await g.invoke(other, {})', "no tool 'other'; known: add"),
    ("arguments that do not fit", 'async with Gate([add]) as g: await g.invoke(add, {"a": "x", "c": 3})', "Missing required parameter: b"),
    ("call_many dicts", 'async with Gate([add]) as g: return await g.call_many([{"name":"add","arguments":{}}])', "write ToolCall(name=..., arguments={...})"),
    ("call_many single", 'async with Gate([add]) as g: return await g.call_many(ToolCall(name="add"))', "gate.call_many([call, ...])"),
    ("submit with keywords", "async with Gate([add]) as g: return await g.submit(add, a=1)", "gate.submit(tool, {'a': ...}, user=user)"),
    ("ToolCall(args=)", 'ToolCall(name="add", args={})', "write ToolCall(name=..., arguments={...}"),
    ("ToolCall without a name", "ToolCall(arguments={})", "write ToolCall(name=..., arguments={...}"),
    ("a production gate without hooks and store", "@tool\ndef f() -> int:\n    'F.'\n    return 1\nawait Gate([f]).open()", "Authorize(...)"),
    ("a tool twice", "Gate([add, add])", "Duplicate tool names: add"),
    ("an unknown store", 'Gate([add], store="mongodb://x")', "known: memory://"),
    ("a path as a store", 'Gate([add], store="file.db")', "sqlite:///file.db"),
    ("a store class", "from callgate.stores import SqlStore\nGate([add], store=SqlStore)", "write store=SqlStore(...)"),
    ("a signing key that is too short", 'Gate([add], signing_keys="secret")', "secrets.token_hex(32)"),
    ("a misspelt job engine", 'Gate([add], jobs="celry")', "did you mean 'celery'?"),
    ("Gate(options dict)", 'Gate([add], options={"lazy": True})', "write options=Options(...)"),
    ("Gate(effects bool)", "Gate([add], effects=False)", "write effects=Effects(...)"),
    ("Gate(sessions int)", "Gate([add], sessions=60)", "write sessions=Sessions(...)"),
    ("names in place of tools", 'Gate(["add"])', "a class made with @tool"),
    ("Gate dict of tools", 'Gate({"add": add})', "write Gate([tool, ...])"),
    ("a hook with run()", "class H(Hook):\n    def run(self, ctx): ...\nGate([add],[H()])", "such as will_authorize"),
    ("hook camelCase", "class H(Hook):\n    def willAuthorize(self, ctx): ...\nGate([add],[H()])", "did you mean 'will_authorize'?"),
    ("function as hook", "def check(ctx): ...\nGate([add],[check])", "write @on('will_authorize')"),
    ("lambda as hook", "Gate([add],[lambda ctx: True])", "write @on('will_authorize')"),
    ("on bad stage", '@on("before_execute")\ndef h(ctx): ...', "did you mean 'around_execute'?"),
    ("@on without a stage", "@on\ndef h(ctx): ...\nGate([add],[h])", "write @on('will_authorize') above h"),
    ("@on(tool=)", '@on("will_execute", tool="add")\ndef h(ctx): ...', "did you mean 'tools'?"),
    ("a hook with tools='add'", 'class H(Hook):\n    tools="add"\n    def will_execute(self, ctx): ...\nGate([add],[H()])', "write tools={'add'}"),
    ("hook returns False", 'class H(Hook):\n    def will_authorize(self, ctx): return False\nasync with Gate([add],[H()]) as g: await g.invoke(add, {"a":1,"b":2})', "call ctx.abort()"),
    ("hook sets ctx.input late", 'class H(Hook):\n    def will_execute(self, ctx): ctx.input = {"a": 5, "b": 5}\nasync with Gate([add],[H()]) as g: return await g.invoke(add, {"a":1,"b":2})', "Change it in will_normalize_input"),
    ("hook mutates ctx.input", 'class H(Hook):\n    def will_validate_input(self, ctx): ctx.input["a"] = 5\nasync with Gate([add],[H()]) as g: return await g.invoke(add, {"a":1,"b":2})', "ctx.input = {**ctx.input, ...}"),
    ("a hook that sets ctx.user", 'class H(Hook):\n    def will_authorize(self, ctx): ctx.user = User("x")\nasync with Gate([add],[H()]) as g: return await g.invoke(add, {"a":1,"b":2})', "gate.call(..., user=user)"),
    ("around forgot await", 'class H(Hook):\n    async def around_execute(self, ctx, next):\n        return next()\nasync with Gate([add],[H()]) as g: return await g.invoke(add, {"a":1,"b":2})', "`await` is missing before next(...)"),
    ("around as generator", "class H(Hook):\n    async def around_execute(self, ctx, next):\n        yield\nGate([add],[H()])", "a stage method returns"),
    ("Quota(100, per=60)", "Quota(100, per=60)", "write Quota('100/60s')"),
    ("Quota(100, window=60)", "Quota(100, window=60)", "write Quota('100/60s')"),
    ("Quota(100)", "Quota(100)", "write Quota('100/minute')"),
    ("Quota(limit=100, period=60)", "Quota(limit=100, period=60)", "write Quota('100/60s')"),
    ("Quota(per_minute=100)", "Quota(per_minute=100)", "write Quota('100/minute')"),
    ("Concurrency(max=)", "Concurrency(max=5)", "write Concurrency(5)"),
    ("Retry(times)", "Retry(times=3)", "write Retry(3)"),
    ("Retry backoff", "Retry(3, backoff=1)", "write wait=lambda _: 1"),
    ("Cache(timeout)", "Cache(timeout=5)", "write Cache(5)"),
    ('Timeout("5s")', 'Timeout("5s")', "give seconds"),
    ("Timeout timedelta", "import datetime\nTimeout(datetime.timedelta(seconds=5))", "write seconds=5"),
    ("CircuitBreaker(threshold=)", "CircuitBreaker(threshold=5, timeout=10)", "write CircuitBreaker(5)"),
    ("Authorize roles positional", 'return Authorize("manager")', "write Authorize(roles={'manager'})"),
    ("Authorize(role=)", 'Authorize(role="manager")', "did you mean 'roles'?"),
    ("Authorize()", "Authorize()", 'Authorize(roles={"manager"})'),
    ("Redact list", 'return Redact(["password"])', "write Redact('password')"),
    ("Redact fields", 'Redact(fields=["password"])', "write Redact('password')"),
    ("Audit('audit.log')", 'return Audit("audit.log")', "a function of the row"),
    ("Tracing('service')", 'Tracing("svc")', "give a provider of OpenTelemetry"),
    ("resume without an approver", 'async with Gate([add]) as g: await g.resume("x", Approve())', "await gate.resume(result.pending.handle, Approve(), approver=user)"),
    ("resume bool", 'async with Gate([add]) as g: await g.resume("x", True, approver=ANN)', "Approve()"),
    ("OpenAIChat positional model", 'from callgate.models import OpenAIChat\nOpenAIChat("gpt-4o")', 'model="..."'),
    ("OpenAIChat key=", 'from callgate.models import OpenAIChat\nOpenAIChat(model="x", key="y")', "api_key=..."),
    ("converse without client", 'async with Gate([add]) as g: await converse(g, "hi")', 'converse(OpenAIChat(model="..."), gate, messages)'),
    ("mount string", 'async with Gate([]) as g: await g.mount("http://localhost:9")', "gate.mount(McpServer("),
    ("an override of what has no provider", "with Gate([add]).override({Db: Db()}): pass", "register it on the gate first"),
    ("import RateLimitHook", "from callgate.hooks import RateLimitHook", "from callgate.hooks import Quota"),
    ("import PostgresStore", "from callgate.stores import RedisStore, PostgresStore", "from callgate.stores import SqlStore"),
    ("import MockModel", "from callgate.testing import MockModel", "from callgate.testing import ScriptedModel"),
    ("an output without a JSON form", 'class Foo: ...\n@tool(effect="read")\ndef f():\n    \'F.\'\n    return Foo()\nasync with Gate([f]) as g: return await g.invoke(f, {})', "return a dict, a model or a dataclass"),
    ("a plain generator as a tool", '@tool(effect="read")\ndef f() -> int:\n    \'F.\'\n    yield 1\nasync with Gate([f]) as g: return await g.invoke(f, {})', "write `async def`"),
    ("@tool on a method", 'class S:\n    @tool(effect="read")\n    def f(self, a: int) -> int:\n        "F."\n        return a\nGate([S().f])', "decorate a function or a class, not a method"),
    ("asgi without a gate", "import callgate\ncallgate.asgi([add])", "write callgate.asgi(Gate([tool, ...]), ...)"),
    ("a dataclass field as a default", 'from dataclasses import field\n@tool(effect="read")\ndef f(a: int = field(default=1)) -> int:\n    \'F.\'\n    return a\nGate([f])', "write a: <type> = <default>"),
    ("pydantic Field default", 'from pydantic import Field\n@tool(effect="read")\ndef f(a: int = Field(1, ge=0)) -> int:\n    \'F.\'\n    return a\nasync with Gate([f]) as g: return await g.invoke(f, {})', "Annotated[<type>, Field(...)]"),
    ("a container class", "from dependency_injector import containers\nclass C(containers.DeclarativeContainer): ...\nGate([add], container=C)", "write Gate(container=C())"),
    ("Gate(tool)", "Gate(add)", "write Gate([tool, ...])"),
    ("Gate(hooks=hook)", "Gate([add], hooks=Cache(60))", "write Gate(tools, hooks=[hook, ...])"),
    ("Gate(hooks={stage: hooks})", "Gate([add], hooks={'will_execute': []})", "hooks=[{stage: [hook, ...]}]"),
    ("Gate(provide=[])", "Gate([add], provide=[Db])", "provide={token: factory}"),
    ("a hook class with settings", "class H(Hook):\n    def __init__(self, limit): ...\n    def will_execute(self, ctx): ...\nGate([add], [H])", "register an object, H(...)"),
    ("around_execute without next", "class H(Hook):\n    async def around_execute(self, ctx): ...\nGate([add], [H()])", "async def around_execute(self, ctx, next)"),
    ("a stage method without ctx", "class H(Hook):\n    def will_execute(self): ...\nGate([add], [H()])", "def will_execute(self, ctx)"),
    ("deadline='5'", "async with Gate([add]) as gate:\n    await gate.invoke(add, {'a': 1, 'b': 2}, deadline='5')", "give seconds"),
    ("resume(result)", "async with Gate([add]) as gate:\n    await gate.resume(await gate.call(add, {}), Approve(), approver=ANN)", "result.pending.handle"),
    ("converse(max_round=)", "from callgate.testing import ScriptedModel\nfrom callgate.models import OpenAIChat\nasync with Gate([add]) as gate:\n    await converse(OpenAIChat('http://127.0.0.1:9', model='m'), gate, 'hi', max_round=3)", "did you mean 'max_rounds'?"),
    ("messages as pairs", "from callgate.models import OpenAIChat\nasync with Gate([add]) as gate:\n    await converse(OpenAIChat('http://127.0.0.1:9', model='m'), gate, [('user', 'hi')])", '{"role": "user", "content": text}'),
    ("a coroutine as output", "@tool(effect='read')\nasync def f() -> Any:\n    'F.'\n    async def load(): ...\n    return load()\nasync with Gate([f]) as gate:\n    await gate.invoke(f, {})", "`await` is missing before load(...)"),
]  # fmt: skip


BARE = re.compile(r"is not (iterable|callable|subscriptable)|'NoneType' object")
"""Errors of Python that name no cause."""


def lacks(code: str, line: str, messages: list[str]) -> str | None:
    """Return the part of an answer that is missing: what is refused, why, or what to do.

    What: a name or a text of the guess, outside of the line to write. Why: a clause about it, and no bare error of Python.
    """
    told = next((text for text in messages if line in text), None)
    if told is None:
        return "what to do"
    about = re.sub(r"\bwrite:? .*", "", told, flags=re.DOTALL)
    kinds = {"bool": "True" in code, "tuple": "[(" in code}  # a value is named by its type
    words = {*re.findall(r"\w+", code), *(kind for kind, has in kinds.items() if has)}
    short = [word for word in words if len(word) == 1 and word.islower()]  # in prose, ``a`` is an article
    named = [rf"['/.]{word}(?!\w)" for word in short] + [rf"(?<!\w){word}(?!\w)" for word in words.difference(short)]
    if not any(re.search(name, about, re.IGNORECASE) for name in named):
        return "what"
    return "why" if BARE.search(told) or len(re.findall(r"[A-Za-z]{2,}", about)) < 3 else None


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ("'int' object is not iterable: Limit; write Quota('1/s')", "why"),
        ("write Quota('1/s')", "what"),
        ("Quota has no setting 'rate'", "what to do"),
        ("Quota has no setting 'rate'; write Quota('1/s')", None),
    ],
)
def test_an_answer_without_one_of_its_three_parts_is_seen(message: str, missing: str | None) -> None:
    """Control."""
    assert lacks("Limit(rate=1, Quota)", "write Quota('1/s')", [message]) == missing


async def attempt(code: str) -> None:
    names: dict[str, Any] = {"__name__": "guess"}
    exec(f"{PRELUDE}\nasync def main():\n{textwrap.indent(code, '    ')}", names)
    await names["main"]()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
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
    messages: list[str] = []
    while error is not None:  # an error of a hook is the cause of the error of the call
        messages.append(str(error))
        error = error.__cause__
    assert line in " ".join(messages)
    assert (missing := lacks(code, line, messages)) is None, f"{missing} is missing in {messages}"
    assert max(text.count("\n") for text in messages) < 6, "no page of another package's advice"
    if "await" in line:  # a forgotten coroutine warns when it is collected
        del caught
        gc.collect()


def test_there_are_guesses_enough() -> None:
    assert len(GUESSES) == len({name for name, *_ in GUESSES})
    assert len([line for *_, line in GUESSES if line is not None]) >= 150


@pytest.mark.parametrize("gate", [Gate, Gate([])], ids=["class", "object"])
def test_dir_offers_only_what_exists(gate: Any) -> None:
    """Completion, ``inspect.getmembers`` and mocks read it."""
    assert [name for name in dir(gate) if not hasattr(gate, name)] == []
    assert {"invoke", "call", "open"} <= set(dir(gate))


@pytest.mark.parametrize("instance", [False, True])
def test_a_mock_of_the_gate_refuses_names_that_the_gate_does_not_have(instance: bool) -> None:
    mocked = create_autospec(Gate, instance=instance)
    for name in GATE:
        with pytest.raises(AttributeError):
            getattr(mocked, name)
    assert mocked.invoke is not None


HINTED = sorted({found for line in GATE.values() for found in re.findall(r"\bgate\.(\w+)", line)})


@pytest.mark.parametrize("name", HINTED)
def test_a_hint_of_the_gate_names_what_the_gate_has(name: str) -> None:
    """Control of the table: a hint that leads to a further hint helps nobody."""
    assert hasattr(Gate([]), name)
