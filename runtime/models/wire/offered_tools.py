"""The tools that a request offers, and the hydration of the calls that the model makes of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from callgate.runtime.models.wire.codec import Codec, Translation
from callgate.tools.arguments.hydration import HydrationResult, Hydrator, Repairer, unknown, with_instance
from callgate.tools.calls import ToolCall, User
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry
from callgate.tools.schemas.validation import Validator, compile_schema


@runtime_checkable
class ToolSource(Protocol):
    """The part of a ``Gate`` that a request needs: models may not import the gate, which imports them."""

    def tools_for(self, user: User = ...) -> list[ToolDefinition]:
        """The tools that the user may see."""
        ...

    def hydrate(self, call: ToolCall, *, wire: str | None = None) -> HydrationResult:
        """Parse and validate one call."""
        ...

    async def repair(self, hydrated: HydrationResult, repair: Repairer) -> HydrationResult:
        """Repair a call whose parse or validation failed, once."""
        ...

    def keep_hydration(self, hydrated: HydrationResult) -> HydrationResult:
        """Record the attempt; return the result unchanged."""
        ...


@runtime_checkable
class BoundToolSource(Protocol):
    """A gate that is bound to a user: the part of ``Bound`` that a request needs."""

    @property
    def gate(self) -> Any:
        """The gate, an ``ToolSource``."""
        ...

    @property
    def user(self) -> User:
        """The user whose tools are offered."""
        ...


Tools: TypeAlias = ToolSource | BoundToolSource | ToolRegistry | Translation | Iterable[Any]
"""The tools of a request: a gate (the tools that the user may see), a gate bound to a user, a registry, a ``Translation``,
or single tools: definitions and everything that ``as_tool`` accepts."""

HydrateCall: TypeAlias = Callable[[ToolCall, Repairer | None], Awaitable[HydrationResult]]
_CACHE_SIZE = 32


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one request; ``translation`` is None if there are none. ``hydrate`` checks one call."""

    translation: Translation | None
    hydrate: HydrateCall


class ToolTranslator:
    """Translates tools for one wire, with a cache: tools rarely change between requests."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._cache: OrderedDict[tuple[int, ...], tuple[Sequence[ToolDefinition], Translation]] = OrderedDict()

    def of(self, tools: Tools, user: User, *, checked: bool) -> OfferedTools:
        """Translate *tools*; with *checked*, also compile the schemas that their calls are hydrated with.

        Raises:
            DefinitionError: two tools have the same name, or with *checked* a schema is refused.
            TypeError: an item is not a tool; or with *checked* only a ``Translation`` is given, which has no schemas.
        """
        if isinstance(tools, Translation):
            if checked:
                raise TypeError("a Translation cannot check calls: pass the tools, or their gate, instead")
            return OfferedTools(tools, partial(_refuse, self._codec.name))
        if isinstance(tools, BoundToolSource):
            return self._of_gate(tools.gate, tools.user)
        if isinstance(tools, ToolSource):
            return self._of_gate(tools, user)
        records = [_record(item) for item in tools]
        translation = self._translation([record.definition for record in records])
        return OfferedTools(translation, _by_records(records, self._codec.name, compiled=checked))

    def _of_gate(self, gate: ToolSource, user: User) -> OfferedTools:
        definitions = gate.tools_for(user)
        return OfferedTools(self._translation(definitions), _by_gate(gate, definitions, self._codec.name))

    def _translation(self, definitions: Sequence[ToolDefinition]) -> Translation | None:
        if not definitions:
            return None
        key = tuple(map(id, definitions))  # definitions are frozen, and the cache keeps them alive
        if key in self._cache:
            self._cache.move_to_end(key)
        else:
            self._cache[key] = definitions, self._codec.translate(definitions)
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return self._cache[key][1]


def _by_gate(gate: ToolSource, definitions: Iterable[ToolDefinition], wire: str) -> HydrateCall:
    """Hydrate with the gate that runs the call, so that it is checked once; tools not offered are unknown."""
    offered = {definition.name for definition in definitions}

    async def check(call: ToolCall, repair: Repairer | None) -> HydrationResult:
        if call.name not in offered:
            return gate.keep_hydration(unknown(call, wire))
        found = gate.hydrate(call, wire=wire)
        return with_instance(None, found if repair is None else await gate.repair(found, repair))

    return check


def _by_records(records: Iterable[ToolRecord], wire: str, *, compiled: bool) -> HydrateCall:
    """Hydrate with the tools themselves; a refused schema raises before the request is sent."""
    known = {record.id: Hydrator(record, _validator(record)) for record in records} if compiled else {}

    async def check(call: ToolCall, repair: Repairer | None) -> HydrationResult:
        hydrator = known.get(call.name)
        if hydrator is None:
            return unknown(call, wire)
        found = hydrator.hydrate(call, wire)
        return with_instance(hydrator, found if repair is None else await hydrator.repair(found, repair))

    return check


async def _refuse(wire: str, call: ToolCall, _repair: Repairer | None = None) -> HydrationResult:
    return unknown(call, wire)


def _record(item: object) -> ToolRecord:
    """The record of a tool; the schema of a bare definition is admitted as untrusted."""
    return ToolRecord(item, _not_here, trusted=False) if isinstance(item, ToolDefinition) else as_tool(item)


async def _not_here(*_: object) -> object:
    raise NotImplementedError("this tool is a definition only")


def _validator(record: ToolRecord) -> Validator | None:
    schema = record.schema_of("parameters")
    ready = record.validators.get("parameters")
    if ready is not None:
        return ready
    return None if schema is None else compile_schema(schema, trusted=record.trusted, formats=record.formats_for(None))
