"""The methods of a gate that change its tools and hooks, also while it is open and from any thread."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

from callgate.errors import HookError
from callgate.hooks.selection import register
from callgate.providers import logs
from callgate.providers.registry import ProviderRegistry
from callgate.runtime.engine import Engine
from callgate.runtime.faces.options import Mode, Options
from callgate.runtime.lifespan.readiness import refuse_unready
from callgate.runtime.plans import Plans
from callgate.runtime.policy import Policy
from callgate.runtime.suspensions.record_keeping import CallRecords
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Source(Protocol[M_co]):
    """A remote source of tools, for ``Gate.mount``."""

    async def mount_on(self, gate: object, /) -> M_co:
        """Add the tools to *gate*, and keep them up to date until it closes."""
        ...


class Changes:
    """Methods of ``Gate`` that change its tools and hooks.

    A change counts for every call that begins after the method has returned. An open gate refuses a change that it
    would not have opened with; then nothing has changed.
    """

    mode: Mode
    allow_unguarded: bool
    registry: ToolRegistry
    lazy: bool
    _options: Options
    providers: ProviderRegistry
    _engine: Engine
    _plans: Plans
    _records: CallRecords

    def add(self, tool: object, *, replace: bool = False) -> ToolRecord:
        """Register one more tool.

        Raises:
            DefinitionError: the name is a duplicate, or the schema is refused.
            RegistrationError: the open gate refuses the tool, for example because no hook authorises its calls.
        """
        record = self.registry.add_validated(tool, replace=replace)
        logs.log_warnings(record.id, record.definition.lints)
        return record

    def remove(self, tool: object) -> ToolRecord:
        """Remove a tool, by its name or its object, and return its record. Calls under way finish.

        Raises:
            UnknownTool: the gate has no such tool.
            RegistrationError: the open gate refuses the removal, because a rule names the tool.
        """
        return self.registry.remove(tool if isinstance(tool, str) else self.registry.id_of(tool))

    def on_tools_changed(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call *listener* after each tool that is added, replaced or removed; return the function that ends this.

        It is called in the thread that makes the change, so it must not wait. What it raises is logged.
        """
        return self.registry.on_change(listener)

    async def mount(self, source: Source[M]) -> M:
        """Add the tools of a remote server, such as ``callgate.mcp.McpServer``, and follow its changes.

        The gate closes the connection when it closes. Return what is mounted: names, refusals, changed definitions.

        Raises:
            RegistrationError: the server cannot be reached, or its list of tools breaks a limit.
        """
        return await source.mount_on(self)

    def exchange(
        self, add: Iterable[object] = (), remove: Iterable[object] = (), *, replace: bool = False
    ) -> tuple[ToolRecord, ...]:
        """Add and remove tools at once, and return the records of the new ones.

        Every call, list and choice of tools sees those before the change, or those after it. Nothing changes if one
        tool is refused.

        Args:
            add: tools, as for ``add``.
            remove: names or objects of tools, as for ``remove``.
            replace: new tools may take the names of others, which are not removed here.

        Raises:
            UnknownTool, DefinitionError, RegistrationError: as for ``add`` and ``remove``.
        """
        names = [one if isinstance(one, str) else self.registry.id_of(one) for one in remove]
        records = self.registry.exchange(add, names, replace=replace)
        for record in records:
            logs.log_warnings(record.id, record.definition.lints)
        return records

    def use(
        self, hook: object, *, tools: object = None, tags: object = None, tenants: object = None
    ) -> Callable[[], None]:
        """Register a hook for all tools or some, and return a function that removes it again.

        Plans are compiled at the next call of each tool; no schema is compiled again.

        Raises:
            HookError: the hook is refused; on an open gate also a rule that names an unknown tool.
            RegistrationError: the open gate refuses the change. The returned function raises this, too, for example
                where no other hook authorises the calls.
        """
        return self._plans.use(register(hook, "gate.use", tools=tools, tags=tags, tenants=tenants))

    def with_tools(self, tools: Iterable[ToolRecord]) -> Self:
        """Return a gate that also has *tools*; this one does not change.

        Both share hooks, stores and sessions, and later changes of this gate count for both. A tool whose name is
        taken is left out. Nested calls do not see the new tools.
        """
        made, made._engine = copy.copy(self), copy.copy(self._engine)
        made._plans = self._plans.with_tools(made._engine, tools)
        made.registry = made._plans.registry
        made._records = self._records.with_plans(made._engine, made._plans)
        return made

    def override(self, providers: Mapping[Any, object]) -> AbstractContextManager[None]:
        """Replace providers in tests: ``with gate.override({Db: fake}):``. Scopes stay those of the replaced providers.

        Raises:
            ProviderError: no provider has the token.
        """
        return self.providers.override(providers)

    def _check(self, after: Policy, before: Policy | None = None) -> None:
        """Refuse a policy that the gate does not open with, and a change to it while the gate is open."""
        if self.mode == "production":
            refuse_unready(after, self._records, allow_unguarded=self.allow_unguarded, before=before)
        try:
            after.check_hooks(before)
        except HookError as error:
            if not self._options.dynamic_tools:
                raise
            if before is None:
                logs.log_warnings("*", [f"{error}; it may come later, because of Options(dynamic_tools=True)"])
