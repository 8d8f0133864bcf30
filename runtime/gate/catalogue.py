"""The catalogue of a gate: its tools, its hooks, and the plans that are compiled from both. It runs no tool."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from callgate.errors import UnknownTool
from callgate.hooks.linter import Finding, lint
from callgate.hooks.selection import register
from callgate.providers import logs
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.base import Store
from callgate.runtime.gate.explain import DryRun, Explanation, dry_run, explain
from callgate.runtime.gate.hydration import HydrationAttempts
from callgate.runtime.lifespan.overrides import GateOverride
from callgate.runtime.options.gate import Options
from callgate.runtime.pipeline.calls import Call, Callee, refuse_user
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.services import Services
from callgate.runtime.replay.report import ReplayReport, RowSource
from callgate.tools.arguments.hydration import HydrationResult, Repairer, unknown
from callgate.tools.arguments.repairing import is_repairable
from callgate.tools.calls import ANONYMOUS, ToolCall, User
from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.results import PickResult
from callgate.tools.record import ToolRecord


class Catalogue:
    """The tools and hooks of a service, which can change at any time and from any thread, also in an open gate.

    A change counts for every call that begins after the method has returned. An open gate refuses a change that it
    would not have opened with; then nothing has changed.
    """

    def __init__(self, services: Services, plans: Plans, providers: ProviderRegistry, options: Options) -> None:
        self.registry, self.providers = plans.registry, providers
        self.limits, self.lazy = options.limits, options.lazy
        self._services, self._plans, self._options = services, plans, options
        self._attempts = HydrationAttempts(services, plans, options)

    @property
    def services(self) -> Services:
        """The clock, the store and the calls under way of this gate, for the parts of Callgate that serve it."""
        return self._services

    @property
    def store(self) -> Store:
        """The store of hooks that have no store of their own."""
        return self._services.store

    # ------------------------------------------------------------------ changes

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

    def on_tools_changed(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call *listener* after each tool that is added, replaced or removed; return the function that ends this.

        It is called in the thread that makes the change, so it must not wait. What it raises is logged.
        """
        return self.registry.on_change(listener)

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

    def override(self, providers: Mapping[Any, object]) -> GateOverride:
        """Replace providers in tests: ``async with gate.override({Db: fake}):``, or ``with``. Scopes stay as they are.

        What was built from them, also in a container, is built anew for the block, and closed at its end: ``async with``
        waits for both. In ``with``, the next call makes the instances, and asynchronous closings run in the background;
        from another thread than that of the gate, ``with`` waits, too. Blocks may end in any order.

        Raises:
            ProviderError: at the start of the block: no provider has the token, or the override would not reach what
                was built from it, such as a ``Resource`` of the container or a hook object that the container made.
        """
        held: list[object] = [one.hook for hooked in self._plans.hooked() for one in hooked.registrations]
        held += [
            one
            for record in self.registry.list()
            for one in (record.component, getattr(record.execute, "__self__", None))
        ]
        return GateOverride(self.providers.overriding, providers, self._services, held)

    # ------------------------------------------------------------------ what a user may see

    def tools_for(self, user: User = ANONYMOUS) -> list[ToolDefinition]:
        """Return the tools that a user may see, by their roles and by the ``may_see`` of every hook."""
        refuse_user(user)
        return [record.definition for record in self.registry.list() if self._plans.may_see(record, user)]

    def may_see(self, tool: str, user: User = ANONYMOUS) -> bool:
        """Return True if a user may see a tool; False also for a name that no tool has."""
        refuse_user(user)
        return tool in self.registry and self._plans.may_see(self.registry.get(tool), user)

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """Return the definitions that a user may see, or the request part of a wire such as ``"openai_chat"``."""
        visible = self.tools_for(user)
        if wire is None:
            return visible
        from callgate.runtime.models import codec

        return codec(wire).translate(visible).request

    async def pick(self, query: object, *, user: User = ANONYMOUS, **options: Any) -> list[PickResult]:
        """Return the tools that fit a query best, among those that the user may see; options as for ``pick_tools``.

        The option ``visible`` narrows the tools further; it never widens them. ``tool`` of a result is the ``ToolRecord``.
        """
        from callgate.tools.picking.pick import pick_tools

        refuse_user(user)
        also = options.pop("visible", None)

        def visible(definition: ToolDefinition) -> bool:
            return self.may_see(definition.name, user) and (also is None or also(definition))

        return await pick_tools(query, self.registry.index, visible=visible, **options)

    # ------------------------------------------------------------------ what would happen

    async def would(
        self, tool: Callee, arguments: object = None, *, user: User = ANONYMOUS, deadline: float | None = None
    ) -> DryRun:
        """Return whether a call would pass now, and why not. The tool does not run.

        Roles, policies, consent, feature flags, the schema and rules of approval are asked. No quota and no permit is
        taken, nothing is suspended, and nothing is recorded but the log event ``call.asked``. Hidden and
        unknown tools get the same answer. The call itself may still be refused: by a rate limit, a concurrency
        limit, or what has changed meanwhile.

        Args:
            tool: as for ``call``.
            arguments: as for ``call``.
            user: the principal of the call.
            deadline: seconds for the hooks; default: those of the tool, else 30.

        Raises:
            GateClosed: as for ``call``.
            TypeError, UnknownTool: as for ``call_many``.
        """
        refuse_user(user)
        return await dry_run(self._plans, tool, arguments, user, deadline)

    def explain(self, tool: object, *, user: User | None = None) -> Explanation:
        """Return the plan of a tool, with the reason for each hook that it has or leaves out; ``print`` it."""
        return explain(self._plans.of(tool), user)

    def replay(self, rows: RowSource, hooks: Iterable[object]) -> Coroutine[object, None, ReplayReport]:
        """Replay recorded calls against other hooks and report the verdicts that change. No tool runs."""
        from callgate.runtime.replay.replay import replay

        return replay(self, rows, hooks)

    def lint(self) -> list[Finding]:
        """Return the findings of the linter about all tools: their plans, their hooks, and the effects of ``read`` tools.

        A gate logs them when it opens, and prints them in development mode. A call of an effect is known once it was
        made in this process, or where the source of the tool names the tool.
        """
        from callgate.runtime.gate.nested_effects import reads_with_effects  # parses the source of every tool

        plans = [self._plans.of(record.id) for record in self.registry.list()]
        found = [finding for plan in plans for finding in lint(plan)]
        effects = reads_with_effects(self.registry, self._services.nested_effects)
        return [*found, *self._plans.policy().lint_hooks(), *effects]

    def deadline_of(self, tool: str) -> float | None:
        """Return the seconds that a call of a tool may take; None without a deadline."""
        return self._plans.of(tool).limit

    def runs_in_parallel(self, call: Call) -> bool:
        """Return True if ``call_many`` may run this call concurrently with others."""
        name: object = call.call.name if isinstance(call, HydrationResult) else call.name
        return not isinstance(name, str) or name not in self.registry or self.registry.get(name).parallel

    # ------------------------------------------------------------------ hydration

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """Parse and validate one call; no tool is made or runs. ``call`` takes the result and does not validate again.

        *repair* is called at most once, for other arguments. They are recorded, and ``call`` treats them as ``on_repair``
        of the gate's ``Options`` says: by default they wait for approval.

        Raises:
            TypeError: *repair* is async: write ``await gate.repair(gate.hydrate(call), repair)``.
        """
        try:
            plan = self._plans.of(call.name if isinstance(call.name, str) else "")
        except UnknownTool:
            return self._attempts.keep(unknown(call, wire))
        hydrator = plan.builtins.hydrator(plan.record, self.lazy)
        if not self._attempts.are_kept():
            return hydrator.hydrate(call, wire, repair)
        found = self._attempts.keep(hydrator.hydrate(call, wire))
        return (
            found
            if repair is None or not is_repairable(found)
            else self.keep_hydration(hydrator.repair_now(found, repair))
        )

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """Run ``hydrate`` for every call of a response; the results have their order."""
        return [self.hydrate(call, wire=wire, repair=repair) for call in calls]

    async def repair(self, hydrated: HydrationResult, repair: Repairer) -> HydrationResult:
        """Repair a result whose parse or validation failed, with a plain or async function; at most once for a call.

        Any other result is returned unchanged.
        """
        name: object = hydrated.call.name
        if not (is_repairable(hydrated) and isinstance(name, str) and name in self.registry):
            return hydrated
        plan = self._plans.of(name)
        return self._attempts.keep(await plan.builtins.hydrator(plan.record, self.lazy).repair(hydrated, repair))

    def keep_hydration(self, hydrated: HydrationResult) -> HydrationResult:
        """Log an attempt, and give its record to ``Options(on_hydration=)`` and to hooks such as ``Audit``.

        Return the result unchanged. A failure of the function or of a hook is logged, and changes nothing.
        """
        return self._attempts.keep(hydrated)
