"""Pins for tools from outside: a tool whose definition changes is disabled until a person approves the change.

A server, a client or an agent sends its tool definitions again and again. A definition that is harmless on the first day
can carry an instruction to the model on the next: that is an attack. So the digest of a definition is pinned when it is
first seen, and a changed definition is left out until it is approved::

    pins = ToolPins(store.pins, definitions=store.cache)
    seen = await pins.admit(tenant, "crm", provider.get_tools())
    offered = ClientToolProvider(list(seen.tools), ask)
    for change in seen.changed:
        show(change)  # to a person, who reviews the change; then:
        await pins.approve(tenant, "crm", change.tool, by="ann", digest=change.digest)
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from callgate.errors import DefinitionError, StoreError
from callgate.providers.clock import Clock, SystemClock
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import CacheEntry, CacheStore
from callgate.providers.stores.effects import Pin, PinStore
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import clip, dump, pointer
from callgate.tools.values import digest as digest_of
from callgate.tools.visible import folded

MAX_PINS = 1_024
"""Pinned tools of one provider; the limit protects the store from a provider that invents names."""
MAX_CHANGES = 20
KEPT = 10 * 365 * 86_400.0
"""Seconds that an approved definition is kept in a store."""
_KEY = "pinned definition:"
_MAX_SEEN = 1_024
_ABSENT: object = object()


@dataclass(frozen=True, slots=True)
class ChangedTool:
    """A tool that differs from its approved definition; it is disabled until the new definition is approved.

    ``changes`` are lines for a person, each with the JSON Pointer of the change: values before and after, escaped and
    cut. They are empty where neither this process nor the store has the approved definition.
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

    Args:
        store: the pins.
        definitions: where approved definitions are kept, to show after a restart what has changed, such as ``store.cache``.
            Default: only this process has them. A value that does not fit its digest counts as absent.
        clock: the time of a pin.
    """

    def __init__(self, store: PinStore, *, definitions: CacheStore | None = None, clock: Clock | None = None) -> None:
        self._store, self._definitions = store, definitions
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
            owner = owners.get(folded(name))
            if name in taken or owner is not None:
                shadowing.append(Shadowing(name, None if name in taken else owner))
            elif name not in pins and len(pins) >= MAX_PINS:
                refused.append(name)
            else:
                pin = pins.get(name) or await self._store.add(tenant, self._pin(provider, name, definition.digest))
                pins[name] = pin
                if pin.digest == definition.digest:
                    agreed.append(definition)
                    if definition.digest not in self._seen:
                        await self._keep(tenant, definition)
                else:
                    changed.append(ChangedTool(name, definition, pin, await self._changes(tenant, pin, definition)))
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
        try:
            pinned = await self._store.find(tenant, provider, tool) is not None
        except StoreError:  # the pin does not verify: the approval replaces it
            pinned = True
        if not pinned:
            raise DefinitionError(f"there is no pin of {clip(tool)!r} of {clip(provider)!r}")
        pin = self._pin(provider, tool, digest, by)
        await self._store.put(tenant, pin)
        if digest in self._seen:  # else the next process that admits it does
            await self._keep(tenant, self._seen[digest])
        return pin

    async def _owners(self, tenant: str, providers: Iterable[str]) -> dict[str, str]:
        """Return the owners of names, as a reader takes them: an approver is a reader."""
        return {
            folded(pin.tool): provider for provider in providers for pin in await self._store.list(tenant, provider)
        }

    def _pin(self, provider: str, tool: str, digest: str, by: str | None = None) -> Pin:
        return Pin(provider, tool, digest, self._clock.time(), by)

    def _remember(self, definition: ToolDefinition) -> None:
        self._seen[definition.digest] = definition
        self._seen.move_to_end(definition.digest)
        while len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    async def _keep(self, tenant: str, definition: ToolDefinition) -> None:
        """Keep an approved definition, unless it is there. A store that fails leaves it out: the pin holds without it."""
        if self._definitions is None:
            return
        key, now = _KEY + definition.digest, self._clock.time()
        try:
            if await self._definitions.get(tenant, key) is None:
                until = now + KEPT
                await self._definitions.put(tenant, key, CacheEntry(dump(_document(definition)), now, until, until))
        except StoreError as error:
            emit(LogEvent.PROVIDER_FAILED, provider="pins", phase="keep", error=error)

    async def _kept(self, tenant: str, digest: str) -> dict[str, object] | None:
        """Return the definition of a digest; None if it was not kept, or is another one."""
        if digest in self._seen:
            return _document(self._seen[digest])
        if self._definitions is None:
            return None
        try:
            entry = await self._definitions.get(tenant, _KEY + digest)
        except StoreError as error:
            emit(LogEvent.PROVIDER_FAILED, provider="pins", phase="find", error=error)
            return None
        try:
            found = None if entry is None else json.loads(entry.value)  # not orjson: it makes floats of large integers
            return found if isinstance(found, dict) and digest_of(found) == digest else None
        except (ValueError, RecursionError):  # bytes of another writer
            return None

    async def _changes(self, tenant: str, pin: Pin, definition: ToolDefinition) -> tuple[str, ...]:
        before = await self._kept(tenant, pin.digest)
        if before is None:
            return ()
        lines = list(_differences(before, _document(definition)))
        if len(lines) > MAX_CHANGES:
            lines = [*lines[:MAX_CHANGES], f"and {len(lines) - MAX_CHANGES} more"]
        return tuple(lines)


def _document(definition: ToolDefinition) -> dict[str, object]:
    """Return the JSON that the digest of a definition is made of."""
    return {**definition.to_dict(), "version": definition.version}


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
