"""Pins for tools from outside: a tool whose definition changes is disabled until a person approves the change.

A server, a client or an agent sends its tool definitions again and again. A definition that is harmless on the first day
can carry an instruction to the model on the next: that is an attack. So the digest of a definition is pinned when it is
first seen, and a changed definition is left out until it is approved::

    pins = ToolPins(store)
    seen = await pins.admit(tenant, "crm", provider.get_tools())
    offered = ClientToolProvider(list(seen.tools), ask)
    for change in seen.changed:
        show(change)  # to a person, who reviews the change; then:
        await pins.approve(tenant, "crm", change.tool, by="ann", digest=change.digest)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from callgate.errors import DefinitionError
from callgate.providers.clock import Clock, SystemClock
from callgate.providers.stores.effects import Pin, PinStore
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import clip, dump, pointer

MAX_PINS = 1_024
"""Pinned tools of one provider; the limit protects the store from a provider that invents names."""
MAX_CHANGES = 20
_MAX_SEEN = 1_024
_ABSENT: object = object()


@dataclass(frozen=True, slots=True)
class ChangedTool:
    """A tool that differs from its approved definition; it is disabled until the new definition is approved.

    ``changes`` are lines for a person, each with the JSON Pointer of the change: values before and after, escaped and
    cut. They are empty where this process has not seen the approved definition: a store keeps its digest only.
    """

    tool: str
    definition: ToolDefinition
    pin: Pin
    changes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The digest of the new definition. ``approve`` takes it, so that exactly the reviewed definition is approved."""
        return self.definition.digest

    def __str__(self) -> str:
        shown = self.changes or ("the approved definition is unknown to this process; review the whole definition",)
        return "\n".join([f"{self.tool} of {clip(self.pin.provider)} has changed:", *(f"  {line}" for line in shown)])


@dataclass(frozen=True, slots=True)
class Shadowing:
    """A tool that was left out because another provider has its name; ``owner`` None is the application."""

    tool: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class Pinned:
    """The verdict of ``admit`` on a provider's tools. Each tool is in one of these, in the order of the provider.

    ``tools`` are approved, or seen for the first time; only these may be offered to a model. ``refused`` are names
    beyond the limit for one provider.
    """

    tools: tuple[ToolDefinition, ...]
    changed: tuple[ChangedTool, ...] = ()
    shadowing: tuple[Shadowing, ...] = ()
    refused: tuple[str, ...] = ()


class ToolPins:
    """The approved definitions of tools from outside, by tenant and provider, in a ``PinStore``.

    The pinned value is ``ToolDefinition.digest``: it covers name, description, schemas, hints and all other members.
    """

    def __init__(self, store: PinStore, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._seen: OrderedDict[str, ToolDefinition] = OrderedDict()  # by digest, to show what changed

    async def admit(
        self,
        tenant: str,
        provider: str,
        tools: Iterable[ToolDefinition],
        *,
        others: Iterable[str] = (),
        taken: Container[str] = (),
    ) -> Pinned:
        """Compare a provider's tools with their pins; new tools are pinned.

        ``others`` are the providers whose tools are offered beside these. ``taken`` are the names of the application's own
        tools, such as ``gate.registry``. A tool with a name of theirs is left out in any order (tool shadowing).

        Raises:
            DefinitionError: two of the tools have one name.
            StoreError: the store failed; then none of the tools may be offered.
        """
        found = list(tools)
        names = [definition.name for definition in found]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise DefinitionError(f"Duplicate tool names: {', '.join(twice)}")
        owners = await self._owners(tenant, [other for other in others if other != provider])
        pins = {pin.tool: pin for pin in await self._store.list(tenant, provider)}
        agreed: list[ToolDefinition] = []
        changed: list[ChangedTool] = []
        shadowing: list[Shadowing] = []
        refused: list[str] = []
        for definition in found:
            name = definition.name
            if name in taken or name in owners:
                shadowing.append(Shadowing(name, None if name in taken else owners[name]))
            elif name not in pins and len(pins) >= MAX_PINS:
                refused.append(name)
            else:
                pin = pins.get(name) or await self._store.add(tenant, self._pin(provider, name, definition.digest))
                pins[name] = pin
                if pin.digest == definition.digest:
                    agreed.append(definition)
                else:
                    changed.append(ChangedTool(name, definition, pin, self._changes(pin, definition)))
                self._remember(definition)
        return Pinned(tuple(agreed), tuple(changed), tuple(shadowing), tuple(refused))

    async def approve(self, tenant: str, provider: str, tool: str, *, by: str, digest: str) -> Pin:
        """Approve the definition with this digest in place of the earlier one.

        Take ``digest`` from the ``ChangedTool`` that *by* has reviewed. If the tool has changed again since, it stays
        disabled.

        Raises:
            DefinitionError: no such tool of that provider is pinned, or *by* is missing.
        """
        if not by:
            raise DefinitionError("approve needs by=, the person who has reviewed the change")
        if await self._store.find(tenant, provider, tool) is None:
            raise DefinitionError(f"there is no pin of {clip(tool)!r} of {clip(provider)!r}")
        pin = self._pin(provider, tool, digest, by)
        await self._store.put(tenant, pin)
        return pin

    async def _owners(self, tenant: str, providers: Iterable[str]) -> dict[str, str]:
        return {pin.tool: provider for provider in providers for pin in await self._store.list(tenant, provider)}

    def _pin(self, provider: str, tool: str, digest: str, by: str | None = None) -> Pin:
        return Pin(provider, tool, digest, self._clock.time(), by)

    def _remember(self, definition: ToolDefinition) -> None:
        self._seen[definition.digest] = definition
        self._seen.move_to_end(definition.digest)
        while len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    def _changes(self, pin: Pin, definition: ToolDefinition) -> tuple[str, ...]:
        before = self._seen.get(pin.digest)
        if before is None:
            return ()
        lines = list(_differences(before.to_dict(), definition.to_dict()))
        if len(lines) > MAX_CHANGES:
            lines = [*lines[:MAX_CHANGES], f"and {len(lines) - MAX_CHANGES} more"]
        return tuple(lines)


def _differences(before: object, after: object, path: tuple[str | int, ...] = ()) -> Iterator[str]:
    """List lines that describe the changes; definitions nest no deeper than their limits."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _differences(before.get(key, _ABSENT), after.get(key, _ABSENT), (*path, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _differences(*pair, (*path, index))
    elif before is _ABSENT:
        yield f"{_shown_path(path)} was added: {_shown(after)}"
    elif after is _ABSENT:
        yield f"{_shown_path(path)} was removed: {_shown(before)}"
    elif type(before) is not type(after) or before != after:
        yield f"{_shown_path(path)} was {_shown(before)}, is {_shown(after)}"


def _shown_path(path: tuple[str | int, ...]) -> str:
    return clip(pointer(path), 200)


def _shown(value: object) -> str:
    return clip(dump(value).decode(), 200)
