"""A catalogue of any size behind three definitions: a model searches, reads, calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.errors import DefinitionError, UnknownTool
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.providers.detectors import MASK
from callgate.providers.kinds import checks_kinds
from callgate.providers.principal import User
from callgate.runtime.gate import Gate
from callgate.runtime.models import codec
from callgate.tools.calls import ANONYMOUS
from callgate.tools.context import ToolContext
from callgate.tools.declaring.declare import tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord

NAMES = ("search_tools", "describe_tool", "call_tool")
MAX_RESULTS = 25


class Discovery:
    """Registers ``search_tools``, ``describe_tool`` and ``call_tool`` in a gate; offer a model only these three.

    A call through ``call_tool`` is a nested call with the same gate, user, deadline and request. The gate validates,
    authorises and records it as that tool. A tool that the user may not see is not found, described or called;
    the error is that of an unknown tool. The three tools do not find or call each other.

    Args:
        gate: the gate with the tools; tools that are added later are offered, too.
        scorer: as for ``pick_tools``; default: BM25F.
        min_score: minimum score of a tool in the search results.
        allow_unsafe: include tools with ``safe=False``; by default they are unknown here.

    Raises:
        DefinitionError: the gate has a tool of one of the three names.
        TypeError: a setting is of another type.
        ValueError: *min_score* is not a number from 0 to 1.
    """

    @checks_kinds(TypeError)
    def __init__(
        self, gate: Gate, *, scorer: object = None, min_score: float = 0.05, allow_unsafe: bool = False
    ) -> None:
        if not 0 <= min_score <= 1:
            raise ValueError(f"Discovery: min_score is {min_score}; give a number from 0 to 1")
        self._gate = gate
        self._allow_unsafe = allow_unsafe
        self._scorer = scorer
        self._min_score = min_score
        if taken := [name for name in NAMES if name in gate.registry]:  # before any is added
            raise DefinitionError(f"Duplicate tool names: {', '.join(taken)}")
        for made in (self._search(), self._describe(), self._call()):
            gate.add(made)

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """Return the three definitions for a model, or the request part of a wire such as ``"openai_chat"``."""
        visible = [one for one in self._gate.tools_for(user) if one.name in NAMES]
        return visible if wire is None else codec(wire).translate(visible).request

    def _visible(self, name: object, user: User) -> ToolRecord:
        """Return the tool of that name, if the user may see it.

        Raises:
            UnknownTool: the tool is unknown or hidden; the error hides which.
        """
        if isinstance(name, str) and name not in NAMES and name in self._gate.registry:
            record = self._gate.registry.get(name)
            safe = self._allow_unsafe or record.definition.safe is not False
            if safe and self._gate.may_see(name, user):
                return record
        raise UnknownTool("no such tool")

    def _search(self) -> object:
        @tool(name="search_tools", effect="read")
        async def search_tools(query: str, ctx: ToolContext, limit: int = 5) -> list[dict[str, object]]:  # noqa: D417  (a model reads this)
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

    def _describe(self) -> object:
        @tool(name="describe_tool", effect="read")
        async def describe_tool(name: str, ctx: ToolContext) -> dict[str, object]:  # noqa: D417  (a model reads this)
            """Read the description and the parameters of a tool that search_tools found.

            Args:
                name: The tool's name.
            """
            shown = self._visible(name, ctx.user).definition.to_dict()
            return {key: shown[key] for key in ("name", "title", "description", "parameters") if key in shown}

        return describe_tool

    def _call(self) -> object:
        # The called tool determines the effect, so this one declares none and is never cached, retried or parallel.
        @tool(name="call_tool", output_schema=False, parallel=False, hooks=[_Callee(self)])
        async def call_tool(name: str, arguments: dict[str, object], ctx: ToolContext) -> object:  # noqa: D417  (a model reads this)
            """Call a tool that search_tools found, with arguments as describe_tool shows its parameters.

            Args:
                name: The tool's name.
                arguments: Its arguments.
            """
            return await ctx.call(self._visible(name, ctx.user).id, arguments)

        return call_tool


class _Callee(Hook):
    """Authorises ``call_tool`` if its user may see the tool; the tool's own hooks authorise the inner call.

    Records of ``call_tool`` show only the tool's name. The records of the inner call have its arguments, masked by the
    hooks of that tool.
    """

    guards = True

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def did_create_invoke_context(self, ctx: InvokeContext) -> None:
        """Mask the arguments of the inner call from the start, because this call may be denied."""
        ctx.run.maskers = (*ctx.run.maskers, _name_alone)

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        """Refuse an unknown or hidden tool before anything runs."""
        self._discovery._visible(ctx.input["name"], ctx.user)


def _name_alone(value: object) -> object:
    name = value.get("name") if isinstance(value, Mapping) else None
    return {"name": name, "arguments": MASK} if isinstance(name, str) else MASK


def _not_one_of_these(definition: ToolDefinition) -> bool:
    return definition.name not in NAMES
