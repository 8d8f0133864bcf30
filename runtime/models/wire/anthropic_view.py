"""The views for Anthropic's strict tools: closed objects that may leave properties out, bounds told in words. Pure.

Strict mode is not sent unless it is asked for twice: by the definition's ``strict`` and by a codec that uses
``strict_views`` in place of ``plain_view`` (contract 12). A request has a budget for it, so these views are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.schema_views import NO_SCHEMA, View, plain_view, rooted, says_nothing
from callgate.runtime.models.wire.shapes import is_mapping, items, mapping
from callgate.runtime.models.wire.view_builder import LOOKAROUND, Builder, InexpressibleError
from callgate.tools.definition import ToolDefinition

TOOLS = 20
OPTIONAL = 24
UNIONS = 16

_PLAIN = frozenset({"type", "properties", "required", "additionalProperties", "items", "enum", "const", "title"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_UNREAD = re.compile(rf"{LOOKAROUND.pattern}|\\[1-9bB]|\\k<|\(\?P=")


def strict_views() -> Callable[[ToolDefinition], View]:
    """What makes the views of one request: strict as far as definitions ask for it, can be told so, and it has budget.

    A request takes 20 strict tools with 24 optional properties and 16 choices in all; a tool that would go beyond
    is sent without strict mode, as is one that strict mode cannot say, with the reason on record. The size of the
    grammar that the provider makes of it is limited too, but not known: it answers 400 then. Use one for each request.
    """
    spent = _Cost()

    def view(definition: ToolDefinition) -> View:
        nonlocal spent
        if definition.strict is not True:
            return plain_view(definition)
        made = _strict(definition)
        if made.strict:
            total = spent.plus(_cost(made.schema))
            if (reason := total.beyond()) is not None:
                return View(rooted(definition), fallback=reason)
            spent = total
        return made

    return view


def _strict(definition: ToolDefinition) -> View:
    root = rooted(definition)
    if says_nothing(definition):
        return View(root, fallback=NO_SCHEMA)
    builder = _Strict(root)
    try:
        return View(builder.top(), True, tuple(builder.dropped))
    except InexpressibleError as why:
        return View(root, fallback=str(why))


class _Strict(Builder):
    recursive = False
    type_lists = False

    def keeps(self, word: str, value: Any, types: Sequence[str]) -> bool:
        match word:
            case "format":
                return isinstance(value, str) and value in _FORMATS
            case "pattern":
                return not _UNREAD.search(str(value))
            case "minItems":
                return value in (0, 1)
            case _:
                return word in _PLAIN

    def beside(self, made: dict[str, Any]) -> dict[str, Any]:
        """A lone ``allOf``: unlike ``anyOf``, it does not count as a choice."""
        return {"allOf": [made]} if "$ref" in made else made

    def typed(self, here: Mapping[str, Any], types: list[str], at: str) -> dict[str, Any]:
        """A list of scalars says their types itself; the provider's own client leaves them out there too."""
        if not {"enum", "const"} & set(here) or {"object", "array"} & set(types):
            return super().typed(here, types, at)
        listed = walk.choices(here, types)
        if not listed:
            self.refuse("an empty choice", at)
        made = {"const": listed[0]} if "const" in here else {"enum": listed}
        return self.described(made, here, at, self.lost(here, types))

    def plain(self, here: Mapping[str, Any], types: list[str], at: str) -> dict[str, Any]:
        made: dict[str, Any] = {"type": types[0]}
        for word in ("title", "format", "pattern", "minItems"):
            if word in here and walk.applies(word, types) and self.keeps(word, here[word], types):
                made[word] = here[word]
        if types == ["object"]:
            self.check_closed(here, at)
            made["properties"] = {
                name: self.node(node, walk.below(at, "properties", name))
                for name, node in walk.properties(here).items()
            }
            made |= {"required": walk.required(here), "additionalProperties": False}
        if types == ["array"]:
            made["items"] = self.item(here, at)
        return made


@dataclass(frozen=True, slots=True)
class _Cost:
    """What strict tools take of a request's budget."""

    tools: int = 0
    optional: int = 0
    unions: int = 0

    def plus(self, other: _Cost) -> _Cost:
        return _Cost(self.tools + other.tools, self.optional + other.optional, self.unions + other.unions)

    def beyond(self) -> str | None:
        """Which limit of a request is gone beyond."""
        found = (
            (self.tools, TOOLS, "strict tools"),
            (self.optional, OPTIONAL, "optional properties in strict tools"),
            (self.unions, UNIONS, "choices in strict tools"),
        )
        return next((f"more than {limit} {what} in a request" for count, limit, what in found if count > limit), None)


def _cost(view: Mapping[str, Any]) -> _Cost:
    nodes = list(_nodes(view))
    optional = sum(len(set(walk.properties(node)) - set(walk.required(node))) for node in nodes)
    return _Cost(1, optional, sum("anyOf" in node for node in nodes))


def _nodes(view: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    todo: list[Any] = [view, *mapping(view.get("$defs")).values()]
    while todo:
        node = todo.pop()
        if is_mapping(node):
            yield node
            todo += [*walk.properties(node).values(), node.get("items"), *items(node.get("anyOf"))]
