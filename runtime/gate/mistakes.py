"""Mistakes in the use of a gate: guessed attributes and keywords, arguments of a wrong type, and the line to write."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import ParamSpec

from callgate.providers.kinds import annotations_of, fault_of_kind
from callgate.runtime.options.gate import Effects, Options, Sessions, Suspensions
from callgate.runtime.options.jobs import Jobs
from callgate.tools.naming import did_you_mean

P = ParamSpec("P")


def _by_name(lines: Mapping[str, str]) -> dict[str, str]:
    return {name: line for names, line in lines.items() for name in names.split()}


GATE = _by_name(
    {
        "__enter__": "async with gate: ...; or, in code without a loop, with gate.sync() as g: ...",
        "abatch batch": "await gate.call_many(calls, user=user)",
        "aclose shutdown stop": "await gate.close()",
        "add_hook add_middleware middleware": "gate.use(hook)",
        "add_tool register register_tool": "gate.add(function)",
        "acall call_tool": "await gate.call(tool, arguments, user=user)",
        "ainvoke arun execute execute_tool invoke_tool run": "await gate.invoke(tool, arguments, user=user)",
        "app asgi": "callgate.asgi(gate, authenticate=function)",
        "approve": "await gate.resume(handle, Approve(), approver=user)",
        "astream": "async for event in gate.stream(call, user=user)",
        "bound": "callgate.bound(gate, authenticate=function)",
        "call_sync": "with gate.sync() as g: g.call(call, user=user)",
        "definition tool_definitions": 'gate.definitions("openai_chat", user=user)',
        "deny reject": "await gate.resume(handle, Deny(reason), approver=user)",
        "dependency_overrides": "with gate.override({token: fake})",
        "enqueue": "await gate.submit(call, user=user)",
        "get_tools list_tools tools": "gate.tools_for(user)",
        "health healthcheck ready": "gate.is_open",
        "hooks middlewares": "gate.explain(tool), which shows the hooks of a tool; gate.use(hook) adds one",
        "inject resolve": "Annotated[Db, Provide[Db]], the type of a parameter of the tool or the hook",
        "invoke_sync run_sync": "with gate.sync() as g: g.invoke(tool, arguments, user=user)",
        "mount_mcp": "await gate.mount(McpServer(name=name, url=url))",
        "openai_tools": 'gate.definitions("openai_chat", user=user)',
        "pending": "await gate.waits.pending(user)",
        "provide register_provider": "Gate(tools, provide={token: factory})",
        "remove_tool": "gate.remove(name)",
        "start startup": "await gate.open()",
        "test_client": "with gate.override({token: fake}), and callgate.testing.ScriptedModel in place of a model",
        "tool": "gate.add(function), below a function with @tool",
    }
)
"""Guessed attributes of a gate, and the lines to write instead."""

_SETTINGS = {"jobs": Jobs, "sessions": Sessions, "effects": Effects, "suspensions": Suspensions, "options": Options}
_KEYWORDS = {
    **{
        one.name: f"{name}={kind.__name__}({one.name}={'True' if one.default is False else '...'})"
        for name, kind in _SETTINGS.items()
        for one in fields(kind)
    },
    **_by_name(
        {
            "auth authenticate": "...) without it, and callgate.asgi(gate, authenticate=...",
            "database": "store=...",
            "debug dev": 'mode="development"',
            "dependencies providers": "provide={token: factory}",
            "hooks_by_stage": "hooks=[{stage: [hook, ...]}]",
            "job_options": "jobs=Jobs(...)",
            "max_sessions": "sessions=Sessions(maximum=...)",
            "middleware middlewares": "hooks=[...]",
            "open unsafe": "allow_unguarded=True",
            "retries": "hooks=[Retry(3)]",
            "session_ttl": "sessions=Sessions(ttl=...)",
            "timeout": "deadline=...",
        }
    ),
}
"""The arguments to write in place of keywords of ``Gate`` that callers guess, such as the fields of its settings."""


_LINES = {
    "store": "store=SqlStore(address), or its address",
    "jobs": 'jobs="procrastinate", or jobs=Jobs(...)',
    "signing_keys": "signing_keys=[key]",
    "allow_unguarded": "allow_unguarded=True",
}


def explain_arguments_of_gate(init: Callable[P, None]) -> Callable[P, None]:
    """Refuse unknown keywords and arguments of a wrong type with the line to write; the signature stays as it is."""
    known = inspect.signature(init).parameters
    check: Callable[..., None] = _check_kinds

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name not in known:
                hint = f"; write Gate({_KEYWORDS[name]})" if name in _KEYWORDS else did_you_mean(name, known)
                raise TypeError(f"Gate() has no parameter {name!r}{hint}")
        check(*args, **kwargs)
        for name, value in kwargs.items():
            if name not in _LINES:
                continue
            later = (str, type, list, tuple) if name == "signing_keys" else (str, type)  # answered where they are read
            if name != "allow_unguarded" and isinstance(value, later):  # the text "false" is no permission
                continue
            kind = annotations_of(init)[name]  # None for a key would be a secret that is not set, and sign nothing
            if (fault := fault_of_kind(value, kind if name == "signing_keys" else kind | None)) is not None:
                raise TypeError(f"Gate: {name} {fault}; write {_LINES[name]}")
        init(*args, **kwargs)

    return checked


def _check_kinds(_gate: object, tools: object = (), hooks: object = (), **settings: object) -> None:
    """Refuse a single tool or hook in place of a list, a name, and a setting of another type."""
    for name, kind in _SETTINGS.items():
        if name != "jobs" and settings.get(name) is not None and not isinstance(settings[name], kind):
            raise TypeError(f"Gate: {name} is {_kind(settings[name])}; write {name}={kind.__name__}(...)")
    provide = settings.get("provide")
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable) or isinstance(tools, type):
        raise TypeError(f"Gate takes a list of tools, not {_kind(tools)}; write Gate([tool, ...])")
    if isinstance(hooks, Mapping):
        raise TypeError("Gate takes a list of hooks; write Gate(tools, hooks=[{stage: [hook, ...]}])")
    if isinstance(hooks, str | bytes) or not isinstance(hooks, Iterable) or isinstance(hooks, type):
        raise TypeError(f"Gate takes a list of hooks, not {_kind(hooks)}; write Gate(tools, hooks=[hook, ...])")
    if provide is not None and not isinstance(provide, Mapping):
        raise TypeError(
            f"Gate: provide is a mapping, not {_kind(provide)}; write Gate(tools, provide={{token: factory}})"
        )


def _kind(value: object) -> str:
    """Return the type of a value, and the name of a class or function."""
    name = getattr(value, "__name__", None)
    return f"{type(value).__name__} {name}" if isinstance(name, str) else type(value).__name__
