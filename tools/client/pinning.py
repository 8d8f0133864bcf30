"""Tools from outside are held to what they said at first: one that changes waits until somebody agrees (invariants B2).

A server, a client or an agent tells again and again what its tools are. A description that is harmless on the day it is
looked at, and an instruction to the model the day after, is an attack. So the digest of a definition is pinned when it
is first seen, and one that changes is left out until it is approved::

    pins = ToolPins(store)
    seen = await pins.admit(tenant, "crm", provider.get_tools())
    offered = ClientToolProvider(list(seen.tools), ask)
    for change in seen.changed:
        show(change)  # to a person, who looks at what changed; then:
        await pins.approve(tenant, "crm", change.tool, by="ann", digest=change.digest)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from callgate.errors import DefinitionError
from callgate.providers.clock import Clock, SystemClock
from callgate.providers.stores.effects import Pin, PinStore
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import clip, dump, pointer

__all__ = ["ChangedTool", "Pinned", "Shadowing", "ToolPins"]

MOST_PINS = 1_024
"""Tools of one provider that are pinned: one that makes up names may not fill the store."""
MOST_CHANGES = 20
_KEPT = 1_024
_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class ChangedTool:
    """A tool that is no longer what was agreed to; it is disabled until its new definition is approved.

    ``changes`` are lines for a person, each with the JSON Pointer of what changed: values before and after, escaped and
    cut. They are empty where this process has not seen the definition that was agreed to: a store keeps its digest only.
    """

    tool: str
    definition: ToolDefinition
    pin: Pin
    changes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of the new definition: what ``approve`` takes, so that what was looked at is what is agreed to."""
        return self.definition.digest

    def __str__(self) -> str:
        said = self.changes or ("what was agreed to is not known here; look at the whole definition",)
        return "\n".join([f"{self.tool} of {clip(self.pin.provider)} has changed:", *(f"  {line}" for line in said)])


@dataclass(frozen=True, slots=True)
class Shadowing:
    """A tool that was left out because its name is another's; ``owner`` is that provider, None for the application."""

    tool: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class Pinned:
    """What ``admit`` made of a provider's tools; each is in one of these, in the order they came in.

    ``tools`` are as agreed, or seen for the first time; nothing else may be offered to a model. ``refused`` are names
    beyond what is pinned for one provider.
    """

    tools: tuple[ToolDefinition, ...]
    changed: tuple[ChangedTool, ...] = ()
    shadowing: tuple[Shadowing, ...] = ()
    refused: tuple[str, ...] = ()


class ToolPins:
    """The agreed definitions of tools from outside, by tenant and provider, in a ``PinStore``.

    What is pinned is ``ToolDefinition.digest``: name, description, schemas, hints and all else that a definition says.
    """

    def __init__(self, store: PinStore, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._seen: OrderedDict[str, ToolDefinition] = OrderedDict()  # by digest, so a pin tells whether it is the one

    async def admit(
        self,
        tenant: str,
        provider: str,
        tools: Iterable[ToolDefinition],
        *,
        others: Iterable[str] = (),
        taken: Container[str] = (),
    ) -> Pinned:
        """Hold a provider's tools to what was agreed to; what is new is pinned.

        ``others`` are the providers whose tools are offered beside these, ``taken`` the names of the application's own,
        such as ``gate.registry``: a tool that has a name of theirs is left out, whoever comes first (B2, shadowing).

        Raises:
            DefinitionError: two of the tools have one name.
            StoreError: the store failed; then none of them may be offered.
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
            elif name not in pins and len(pins) >= MOST_PINS:
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
        """Agree to the definition that has this digest, in the place of what was agreed to before.

        Take ``digest`` from the ``ChangedTool`` that *by* has looked at: if the tool has changed once more since, it
        stays disabled.

        Raises:
            DefinitionError: no such tool was ever seen of that provider, or it is not said who approves.
        """
        if not by:
            raise DefinitionError("approve needs by=, the one who has looked at the change")
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
        while len(self._seen) > _KEPT:
            self._seen.popitem(last=False)

    def _changes(self, pin: Pin, definition: ToolDefinition) -> tuple[str, ...]:
        before = self._seen.get(pin.digest)
        if before is None:
            return ()
        lines = list(_differences(before.to_dict(), definition.to_dict()))
        if len(lines) > MOST_CHANGES:
            lines = [*lines[:MOST_CHANGES], f"and {len(lines) - MOST_CHANGES} more"]
        return tuple(lines)


def _differences(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> Iterator[str]:
    """Lines that tell what changed; definitions nest no deeper than their limits."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _differences(before.get(key, _ABSENT), after.get(key, _ABSENT), (*path, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _differences(*pair, (*path, index))
    elif before is _ABSENT:
        yield f"{_place(path)} was added: {_shown(after)}"
    elif after is _ABSENT:
        yield f"{_place(path)} was removed: {_shown(before)}"
    elif type(before) is not type(after) or before != after:
        yield f"{_place(path)} was {_shown(before)}, is {_shown(after)}"


def _place(path: tuple[str | int, ...]) -> str:
    return clip(pointer(path), 200)


def _shown(value: Any) -> str:
    return clip(dump(value).decode(), 200)
