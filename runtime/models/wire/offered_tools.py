"""The tools that a request offers, from whatever a caller has; and the checking of the calls that come back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from callgate.runtime.faces.bound import Bound
from callgate.runtime.models.wire.codec import Codec, Translation
from callgate.tools.arguments.hydration import HydrationResult, Repairer, hydrate
from callgate.tools.calls import ToolCall, User
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry
from callgate.tools.schemas.validation import Validator, compile_schema


@runtime_checkable
class Offering(Protocol):
    """A ``Gate``, named by what is asked of it: adapters know nothing of gates, which know of adapters."""

    def tools_for(self, user: User = ...) -> list[ToolDefinition]:
        """What the user may be told of."""
        ...

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """Parse and validate one call."""
        ...


Tools: TypeAlias = Offering | Bound | ToolRegistry | Translation | Iterable[Any]
"""What a request offers: a gate (what the user may see of it), a gate bound to a user, a registry, a translation made
before, or single tools: definitions and whatever ``as_tool`` takes."""

Hydrate: TypeAlias = Callable[[ToolCall, Repairer | None], HydrationResult]
_KEPT = 32


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of one request; ``translation`` is None where there are none. ``hydrate`` checks one call."""

    translation: Translation | None
    hydrate: Hydrate


class Offers:
    """Reads tools for one wire, and keeps the translations made last: tools rarely change between requests."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._kept: OrderedDict[tuple[int, ...], tuple[Sequence[ToolDefinition], Translation]] = OrderedDict()

    def of(self, tools: Tools, user: User, *, checked: bool) -> Offered:
        """What to send of these tools; *checked* says that calls will be hydrated.

        Raises:
            DefinitionError: two have one name, or with *checked* a schema is refused.
            TypeError: one is no tool; or with *checked* there is only a translation, which has no tools to check by.
        """
        if isinstance(tools, Translation):
            if checked:
                raise TypeError("calls are checked by tools: give them, or their gate, in place of the translation")
            return Offered(tools, partial(_refuse, self._codec.name))
        if isinstance(tools, Bound):
            return self._of_gate(tools.gate, tools.user)
        if isinstance(tools, Offering):
            return self._of_gate(tools, user)
        records = [_record(item) for item in tools]
        translation = self._translation([record.definition for record in records])
        return Offered(translation, _by_records(records, self._codec.name, compiled=checked))

    def _of_gate(self, gate: Offering, user: User) -> Offered:
        definitions = gate.tools_for(user)
        return Offered(self._translation(definitions), _by_gate(gate, definitions, self._codec.name))

    def _translation(self, definitions: Sequence[ToolDefinition]) -> Translation | None:
        if not definitions:
            return None
        key = tuple(map(id, definitions))  # they are frozen, and kept with it: one id, one definition
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            self._kept[key] = definitions, self._codec.translate(definitions)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[key][1]


def _by_gate(gate: Offering, definitions: Iterable[ToolDefinition], wire: str) -> Hydrate:
    """By the gate that will run the call, which then need not check it again; what was not offered does not exist."""
    offered = {definition.name for definition in definitions}

    def check(call: ToolCall, repair: Repairer | None) -> HydrationResult:
        return gate.hydrate(call, wire=wire, repair=repair) if call.tool in offered else _refuse(wire, call)

    return check


def _by_records(records: Iterable[ToolRecord], wire: str, *, compiled: bool) -> Hydrate:
    """By the tools themselves; a schema that is refused is refused now, not when the answer is there."""
    known = {record.id: record for record in records}
    validators = {name: _validator(record) for name, record in known.items()} if compiled else {}

    def check(call: ToolCall, repair: Repairer | None) -> HydrationResult:
        return hydrate(call, known.get, validators.get, wire=wire, repair=repair)

    return check


def _refuse(wire: str, call: ToolCall, _repair: Repairer | None = None) -> HydrationResult:
    def nothing(_name: str) -> None:
        return None

    return hydrate(call, nothing, nothing, wire=wire)


def _record(item: Any) -> ToolRecord:
    """The record of a tool. Of a bare definition it is not known who wrote it: its schema is admitted like a foreign one."""
    return ToolRecord(item, _elsewhere, trusted=False) if isinstance(item, ToolDefinition) else as_tool(item)


async def _elsewhere(*_: Any) -> Any:
    raise NotImplementedError("this tool is a definition only")


def _validator(record: ToolRecord) -> Validator | None:
    definition = record.definition
    return compile_schema(definition.parameters, trusted=record.trusted) if definition.parameters is not None else None
