"""The views for Anthropic's strict tools: closed objects with optional properties, bounds in the description. Pure.

Strict mode needs two settings: the definition's ``strict``, and a codec made with ``strict=True``, which uses
``strict_views``. A request has a budget for strict tools, so the views of a request are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.schema_views import NO_SCHEMA, View, has_no_schema, plain_view, with_object_root
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
    """Make the view function for one request: strict views while definitions ask for them and the budget lasts.

    A request may have 20 strict tools with 24 optional properties and 16 unions in all. A tool beyond the budget, or one
    that strict mode cannot express, is sent without strict mode, and the reason is recorded. The provider also limits
    the size of the grammar that it compiles; that limit is not documented, and exceeding it gives status 400.
    """
    spent = _Cost()

    def view(definition: ToolDefinition) -> View:
        nonlocal spent
        if definition.strict is not True:
            return plain_view(definition)
        made = _strict(definition)
        if made.strict:
            total = spent.plus(_cost(made.schema))
            if (reason := total.exceeded()) is not None:
                return View(with_object_root(definition), fallback=reason)
            spent = total
        return made

    return view


def _strict(definition: ToolDefinition) -> View:
    root = with_object_root(definition)
    if has_no_schema(definition):
        return View(root, fallback=NO_SCHEMA)
    builder = _Strict(root)
    try:
        return View(builder.top(), True, tuple(builder.dropped))
    except InexpressibleError as why:
        return View(root, fallback=str(why))


class _Strict(Builder):
    recursive = False
    type_lists = False

    def keeps(self, word: str, value: object, types: Sequence[str]) -> bool:
        match word:
            case "format":
                return isinstance(value, str) and value in _FORMATS
            case "pattern":
                return not _UNREAD.search(str(value))
            case "minItems":
                return value in (0, 1)
            case _:
                return word in _PLAIN

    def beside(self, made: dict[str, object]) -> dict[str, object]:
        """A lone ``allOf``; unlike ``anyOf``, it does not count as a union."""
        return {"allOf": [made]} if "$ref" in made else made

    def typed(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        """Leave out the type beside a list of scalars, as the provider's own client does."""
        if not {"enum", "const"} & set(here) or {"object", "array"} & set(types):
            return super().typed(here, types, at)
        listed = walk.choices(here, types)
        if not listed:
            self.refuse("an empty choice", at)
        made: dict[str, object] = {"const": listed[0]} if "const" in here else {"enum": listed}
        return self.described(made, here, at, self.lost(here, types))

    def plain(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        made: dict[str, object] = {"type": types[0]}
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
    """The part of a request's budget that strict tools use."""

    tools: int = 0
    optional: int = 0
    unions: int = 0

    def plus(self, other: _Cost) -> _Cost:
        return _Cost(self.tools + other.tools, self.optional + other.optional, self.unions + other.unions)

    def exceeded(self) -> str | None:
        """The first limit of a request that is exceeded, or None."""
        found = (
            (self.tools, TOOLS, "strict tools"),
            (self.optional, OPTIONAL, "optional properties in strict tools"),
            (self.unions, UNIONS, "unions in strict tools"),
        )
        return next((f"more than {limit} {what} in a request" for count, limit, what in found if count > limit), None)


def _cost(view: Mapping[str, object]) -> _Cost:
    nodes = list(_nodes(view))
    optional = sum(len(set(walk.properties(node)) - set(walk.required(node))) for node in nodes)
    return _Cost(1, optional, sum("anyOf" in node for node in nodes))


def _nodes(view: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    todo: list[object] = [view, *mapping(view.get("$defs")).values()]
    while todo:
        node = todo.pop()
        if is_mapping(node):
            yield node
            todo += [*walk.properties(node).values(), node.get("items"), *items(node.get("anyOf"))]
