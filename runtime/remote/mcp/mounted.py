"""The tools of a remote server in a registry: admitted, pinned, and kept in step with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from mcp.client.session import ClientSession

from callgate.errors import CallgateError, RegistrationError
from callgate.providers.logs import LogEvent, emit, log_warnings
from callgate.runtime.remote.mcp.call import RemoteTool
from callgate.runtime.remote.mcp.definitions import Admitted, Found, admit_tools, read_tools
from callgate.runtime.remote.mcp.face import McpServer
from callgate.runtime.remote.mcp.owner import Owner
from callgate.tools.client.pinning import ChangedTool, ToolPins
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import Style, ToolRecord
from callgate.tools.registry import ToolRegistry
from callgate.tools.schemas.engines.base import Validator
from callgate.tools.schemas.engines.dialect import Role

SETTLES = 0.2
"""Seconds after a notification in which further ones are part of it: a burst of changes is one list."""
TENANT = ""
"""The tenant of pins: the tools of a gate are those of every tenant."""


class MountedServer:
    """See ``Mounted`` in ``face``."""

    def __init__(self, server: McpServer, registry: ToolRegistry, pins: ToolPins) -> None:
        self._server, self._registry, self._pins = server, registry, pins
        self._owner = Owner(server, self._step, self._on_change)
        self._known: dict[str, Admitted] = {}
        self._records: dict[str, ToolRecord] = {}  # that this mount has added
        self._refused: dict[str, str] = {}
        self._changed: tuple[ChangedTool, ...] = ()
        self._again = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self.on_closed: Callable[[], object] = lambda: None

    @property
    def is_up(self) -> bool:
        """True while the server is connected."""
        return self._owner.session is not None

    @property
    def tools(self) -> Mapping[str, str]:
        """The names here, each with the name at the server."""
        return {name: self._known[name][0] for name in self._own() if name in self._known}

    @property
    def records(self) -> Sequence[ToolRecord]:
        """The tools as they are now."""
        return [record for name, record in self._own().items() if name in self._known]

    @property
    def refused(self) -> Mapping[str, str]:
        """The tools of the server that are left out, and why."""
        return dict(self._refused)

    @property
    def changed(self) -> Sequence[ChangedTool]:
        """The tools that wait for the approval of their new definition."""
        return self._changed

    async def open(self) -> None:
        """Connect, and mount the tools.

        Raises:
            RegistrationError: the server cannot be reached, or its list breaks a limit.
        """
        await self._owner.open()
        if not self.is_up:
            failure = self._owner.failure
            await self.close()
            raise RegistrationError(f"the MCP server {self._server.name!r} cannot be mounted: {_reason(failure)}")
        # asyncio: it follows the server until the gate closes
        self._following = asyncio.ensure_future(self._follow())

    async def close(self) -> None:
        """Disconnect, and remove the tools."""
        self.on_closed()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._owner.close()
        self._known = {}
        for name in self._own():
            self._remove(name)

    async def refresh(self) -> None:
        """Read the definitions again.

        Raises:
            RegistrationError: the server is not connected, or its list breaks a limit.
        """
        session = self._owner.session
        if session is None:
            raise RegistrationError(f"the MCP server {self._server.name!r} is not connected")
        await self._step(session)

    async def approve(self, change: ChangedTool, *, by: str) -> None:
        """Approve a changed definition, and offer the tool again."""
        await self._pins.approve(TENANT, self._server.name, change.tool, by=by, digest=change.digest)
        await self.refresh()

    # ------------------------------------------------------------------ following

    def _on_change(self) -> None:
        self._again.set()

    async def _follow(self) -> None:
        while True:
            await self._again.wait()
            await asyncio.sleep(SETTLES)
            self._again.clear()
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001  (the tools stay as they are; the next connection reads them again)
                emit(LogEvent.PROVIDER_FAILED, provider=f"mcp:{self._server.name}", phase="list", error=error)

    async def _step(self, session: ClientSession) -> None:
        """Bring the registry in step with the server."""
        async with self._one_at_a_time:
            found = await admit_tools(await read_tools(session, self._server), self._server)
            await self._pin(found)
            own = self._own()
            gone = [name for name in own if name not in found.tools]
            fresh = {name: self._record(name, *one) for name, one in found.tools.items() if self._is_new(name, one[1])}
            try:
                self._registry.exchange(fresh.values(), [*gone, *(name for name in fresh if name in own)])
                self._records |= fresh
                for name, record in fresh.items():
                    log_warnings(name, record.definition.lints)
            except CallgateError:  # one of them is refused: the others are exchanged without it
                self._exchange_each(fresh, gone, found)
            self._known = found.tools
            self._refused = found.refused

    async def _pin(self, found: Found) -> None:
        """Leave out what has changed, and names that the application or another server has, or that look like theirs."""
        own = self._own()
        others = [name for name in self._registry.names if name not in own]
        found.leave_out_lookalikes(others)
        taken = set(others)
        definitions = [definition for _, definition, _ in found.tools.values()]
        seen = await self._pins.admit(TENANT, self._server.name, definitions, taken=taken)
        self._changed = seen.changed
        found.refused |= {one.tool: str(one) for one in seen.changed}
        found.refused |= {one.tool: "the name is that of another tool" for one in seen.shadowing}
        found.refused |= dict.fromkeys(seen.refused, "too many pinned tools")
        agreed = {one.name for one in seen.tools}
        found.tools = {name: one for name, one in found.tools.items() if name in agreed}

    def _own(self) -> dict[str, ToolRecord]:
        """Return the tools of this mount. The application may have replaced or removed one: its own stays as it is."""
        there = self._registry.records
        return {name: record for name, record in self._records.items() if there.get(name) is record}

    def _is_new(self, name: str, definition: ToolDefinition) -> bool:
        known = self._known.get(name)
        return known is None or known[1].digest != definition.digest

    def _record(
        self, name: str, remote: str, definition: ToolDefinition, validators: dict[Role, Validator]
    ) -> ToolRecord:
        def is_current() -> bool:
            return not self._is_new(name, definition)

        tool = RemoteTool(self._server, self._owner, remote, is_current)
        record = ToolRecord(definition, tool.call, Style.RECORD, trusted=False, resumable=True)
        record.validators.update(validators)
        return record

    def _exchange_each(self, fresh: Mapping[str, ToolRecord], gone: Iterable[str], found: Found) -> None:
        for name in gone:
            self._remove(name)
        for name, record in fresh.items():
            try:
                self._registry.add_validated(record, replace=name in self._own())
                self._records[name] = record
                log_warnings(name, record.definition.lints)
            except CallgateError as error:
                found.refused[name] = str(error)[:300]
                found.tools.pop(name)
                if name in self._own():  # its definition is another one now
                    self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self._registry.remove(name)
            del self._records[name]
        except CallgateError as error:  # a rule names the tool: it stays, and its calls end as ``remote_changed``
            self._refused[name] = str(error)[:300]


def _reason(failure: BaseException | None) -> str:
    """Return the innermost reason: the SDK wraps it in groups."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return (
        "no answer in time"
        if failure is None or isinstance(failure, TimeoutError)
        else f"{type(failure).__name__}: {failure}"[:300]
    )
