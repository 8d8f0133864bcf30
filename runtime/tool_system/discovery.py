"""A catalogue of any size behind three definitions: a model searches, reads, calls (contract 70)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.errors import DefinitionError, UnknownTool
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.providers.detectors import MASK
from callgate.providers.principal import User
from callgate.runtime.gate import Gate
from callgate.runtime.models import codec
from callgate.tools.calls import ANONYMOUS
from callgate.tools.context import ToolContext
from callgate.tools.declaring.declare import tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord

__all__ = ["Discovery"]

NAMES = ("search_tools", "describe_tool", "call_tool")
MAX_RESULTS = 25


class Discovery:
    """Registers ``search_tools``, ``describe_tool`` and ``call_tool`` in a gate; tell a model these, and nothing else.

    A call through ``call_tool`` is a call inside a call: the same gate, user, deadline and request; it is validated,
    authorised and recorded as that tool. What a user may not be told of is neither found, described nor called, and
    the error is that of a tool which does not exist. The three do not find or call each other.

    Args:
        gate: whose tools are offered; those that come later are, too.
        scorer: as for ``pick_tools``; default: BM25F.
        min_score: what a tool must score to be found.
        allow_unsafe: also tools with ``safe=False``; otherwise they do not exist here, either (contract 66).

    Raises:
        DefinitionError: the gate has a tool of one of the three names.
    """

    def __init__(self, gate: Gate, *, scorer: Any = None, min_score: float = 0.05, allow_unsafe: bool = False) -> None:
        self._gate = gate
        self._allow_unsafe = allow_unsafe
        self._scorer = scorer
        self._min_score = min_score
        if taken := [name for name in NAMES if name in gate.registry]:  # before any is added
            raise DefinitionError(f"Duplicate tool names: {', '.join(taken)}")
        for made in (self._search(), self._describe(), self._call()):
            gate.add(made)

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """The three definitions, or the request part of a wire such as ``"openai_chat"``: what a model is told."""
        visible = [one for one in self._gate.tools_for(user) if one.name in NAMES]
        return visible if wire is None else codec(wire).translate(visible).request

    def _visible(self, name: Any, user: User) -> ToolRecord:
        """The tool of that name, for one who may be told of it.

        Raises:
            UnknownTool: there is none, or they may not; nobody can tell which.
        """
        if isinstance(name, str) and name not in NAMES and name in self._gate.registry:
            record = self._gate.registry.get(name)
            safe = self._allow_unsafe or record.definition.safe is not False
            if safe and self._gate._plans.may_see(record, user):
                return record
        raise UnknownTool("no such tool")

    def _search(self) -> Any:
        @tool(name="search_tools", effect="read")
        async def search_tools(query: str, ctx: ToolContext, limit: int = 5) -> list[dict[str, Any]]:  # noqa: D417  (a model reads this)
            """Find tools that fit a task. Describe the task in plain words; then read the tool, then call it.

            Args:
                query: What is to be done.
                limit: How many tools to give at most, up to 25.
            """
            found = await self._gate.pick(
                query,
                user=ctx.user,
                max_candidates=min(MAX_RESULTS, max(1, limit)),
                min_score=self._min_score,
                scorer=self._scorer,
                allow_unsafe=self._allow_unsafe,
                visible=_not_one_of_these,
            )
            return [
                {
                    "name": one.tool.id,
                    "description": one.tool.definition.description or "",
                    "score": round(one.score, 3),
                }
                for one in found
            ]

        return search_tools

    def _describe(self) -> Any:
        @tool(name="describe_tool", effect="read")
        async def describe_tool(name: str, ctx: ToolContext) -> dict[str, Any]:  # noqa: D417  (a model reads this)
            """Read the description and the parameters of a tool that search_tools found.

            Args:
                name: The tool's name.
            """
            shown = self._visible(name, ctx.user).definition.to_dict()
            return {key: shown[key] for key in ("name", "title", "description", "parameters") if key in shown}

        return describe_tool

    def _call(self) -> Any:
        # Its effect is that of whatever it calls, so it declares none: never cached, never retried. Whether calls of it
        # may run beside each other depends on that tool, too, so they do not.
        @tool(name="call_tool", output_schema=False, parallel=False, hooks=[_Callee(self)])
        async def call_tool(name: str, arguments: dict[str, Any], ctx: ToolContext) -> Any:  # noqa: D417  (a model reads this)
            """Call a tool that search_tools found, with arguments as describe_tool shows its parameters.

            Args:
                name: The tool's name.
                arguments: Its arguments.
            """
            return await ctx.call(self._visible(name, ctx.user).id, arguments)

        return call_tool


class _Callee(Hook):
    """Authorises ``call_tool`` where its user may be told of the tool; the call of that tool is authorised by its own hooks.

    Of the arguments, records of ``call_tool`` show the tool's name alone: the others are in the records of that tool's
    own call, masked as its own hooks mask them, and no hook here can know how.
    """

    guards = True

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def did_create_invoke_context(self, ctx: InvokeContext) -> None:
        """Mask the arguments of the inner call, from the beginning: this call may be denied."""
        ctx._maskers = (*ctx._maskers, _name_alone)

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        """Refuse what is unknown, or hidden, before anything runs."""
        self._discovery._visible(ctx.input["name"], ctx.user)


def _name_alone(value: Any) -> Any:
    name = value.get("name") if isinstance(value, Mapping) else None
    return {"name": name, "arguments": MASK} if isinstance(name, str) else MASK


def _not_one_of_these(definition: ToolDefinition) -> bool:
    return definition.name not in NAMES
