"""The gate of a tool system that was made of a registry."""

from __future__ import annotations

import asyncio

from callgate.runtime.gate import Gate
from callgate.runtime.options.gate import Effects
from callgate.tools.definition import Effect
from callgate.tools.registry import ToolRegistry


class RegistryGate:
    """A gate with the tools of a registry. It opens before the first plan, and follows the changes of the registry.

    Where *guarded* is True, a ``StateManager`` decides which tools run, so the gate needs no hook that authorises. Tools
    without a declared effect promise nothing about repeats, so their ledger may be in memory. For a tool that declares an
    effect the gate opens as any other gate does.
    """

    def __init__(self, registry: ToolRegistry, *, guarded: bool) -> None:
        declared = any(one.definition.effect not in (None, Effect.READ) for one in registry)
        self._registry, self._version = registry, registry.version
        self._opening = asyncio.Lock()
        self.gate = Gate(registry, allow_unguarded=guarded, effects=Effects(durable=None if declared else False))

    async def open(self) -> None:
        """Open the gate, unless it is open.

        Raises:
            RegistrationError: the gate may not open with these tools; the message has the line to write.
        """
        async with self._opening:
            self.follow()
            if not self.gate.is_open:
                await self.gate.open()

    def follow(self) -> None:
        """Take over the changes of the registry.

        Raises:
            RegistrationError: the open gate refuses a tool.
        """
        version, own = self._registry.version, self.gate.registry
        if version != self._version:
            known = {one.id: one for one in own}
            changed = [one for one in self._registry if known.pop(one.id, None) is not one]
            self.gate.exchange(add=changed, remove=known, replace=True)
            self._version = version
