"""The compiled plans of a gate's tools: made at first use, discarded when tools or hooks change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callgate.errors import RegistrationError
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration
from callgate.hooks.stages import Stage
from callgate.hooks.step import Step
from callgate.providers.principal import User
from callgate.runtime.engine import Engine
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

_NO_TOOL = "unknown_tool"
_AUTHORISING = {Stage.WILL_AUTHORIZE, Stage.WILL_AUTHORIZE_INPUT}


async def _refuse(ctx: Any) -> Any:
    raise ctx.run.unknown


class Plans:
    """The plans of each tool, with and without a trace. ``shared`` has the hooks of all tools.

    ``live`` maps names and tool objects to plans while the gate is open.
    """

    def __init__(self, engine: Engine, registry: ToolRegistry, *, deadline: float | None, lazy: bool) -> None:
        self.shared: list[Registration] = []
        self.live: dict[Any, Plan] = {}
        self.lazy = lazy
        self._engine = engine
        self._registry = registry
        self._deadline = deadline
        self._plans: dict[str, Plan] = {}
        self._traced: dict[str, Plan] = {}
        engine.plan_for = self.of

    def __len__(self) -> int:
        return len(self._plans)

    def of(self, tool: Any, *, trace: bool = False) -> Plan:
        """Return the plan of a tool, by its name or its object.

        Raises:
            UnknownTool: the gate has no such tool.
        """
        name = tool if isinstance(tool, str) else self._registry.id_of(tool)
        known = self._traced if trace else self._plans
        plan = known.get(name)
        if plan is None:
            plan = known[name] = self._compile(self._registry.get(name), trace)
        return plan

    def compiled(self) -> list[Plan]:
        """Return the plans that are compiled now."""
        return list(self._plans.values())

    def of_none(self) -> Plan:
        """Return the plan for calls of unknown tools: the shared hooks that observe errors and write records.

        No earlier stage runs. ``ctx.tool`` is a placeholder; ``ctx.tool_call`` has the called name.
        """
        plan = self._traced.get("")
        if plan is None:
            definition = ToolDefinition(
                _NO_TOOL, "Stands for a tool that does not exist.", {"type": "object"}, effect=Effect.READ
            )
            plan = self._traced[""] = self._refusing(ToolRecord(definition, _refuse))
        return plan

    def of_refusal(self, tool: str) -> Plan:
        """Return the plan for a refused call of a tool: only hooks that observe errors and write records."""
        return self._refusing(self._registry.get(tool)) if tool in self._registry else self.of_none()

    def _refusing(self, record: ToolRecord) -> Plan:
        plan = self._engine.compile(record, self.shared)
        return plan.derive(before=(), straight=None, execute=_refuse, limit=None)

    def _compile(self, record: ToolRecord, trace: bool = False) -> Plan:
        return self._engine.compile(record, self.shared, trace=trace, deadline=self._deadline)

    def forget(self) -> None:
        """Discard all plans, because tools or hooks have changed."""
        self._plans.clear()
        self.live.clear()
        self._traced.clear()

    def renew(self) -> None:
        """Discard all plans, and compile them again unless they are lazy.

        Raises:
            RegistrationError: a plan is refused.
        """
        self.forget()
        if not self.lazy:
            for record in self._registry.list():
                self.of(record.id)

    def use(self, registration: Registration) -> Callable[[], None]:
        """Add a shared hook and compile the plans again; return a function that removes the hook.

        Raises:
            RegistrationError: a plan is refused; the hook is not added.
        """
        self.shared.append(registration)
        try:
            self.renew()
        except RegistrationError:
            self.shared.remove(registration)
            self.forget()
            raise

        def remove() -> None:
            if registration in self.shared:
                self.shared.remove(registration)
                self.renew()

        return remove

    def check_hooks(self) -> None:
        """Call ``check_tools`` of every hook that has it, with the definitions of the tools.

        Raises:
            RegistrationError: a hook refuses them, such as a policy on a tool that does not exist.
        """
        definitions = self._registry.definitions()
        hooks = [one.hook for one in self.shared]
        for record in self._registry.list():
            hooks += record.hooks
        for hook in {id(hook): hook for hook in hooks}.values():
            if hasattr(hook, "check_tools") and not isinstance(hook, type):
                hook.check_tools(definitions)

    def may_see(self, record: ToolRecord, user: User) -> bool:
        """Return True if a user may see a tool: its roles and every hook with ``may_see`` must allow it."""
        if not record.definition.allows(user.roles):
            return False
        return all(
            one.hook.may_see(user, record.definition) is True
            for one in self.of(record.id).askable
            if one.tenants is None or user.tenant in one.tenants
        )

    def with_tools(self, engine: Engine, registry: ToolRegistry) -> Plans:
        """Return plans for a larger *registry*. Tools of this gate keep their plans; *engine* compiles the others."""
        return _Extended(engine, registry, self)

    def unguarded(self) -> list[ToolRecord]:
        """Return the tools with possible effects that no hook authorises."""
        return [record for record in self._registry.list() if not self._is_guarded(record)]

    def _is_guarded(self, record: ToolRecord) -> bool:
        if record.definition.effect is Effect.READ:
            return True
        plan = self.of(record.id)
        guards = {id(one.hook) for one in plan.registrations if one.guards} | {id(None)}  # None: the gate's own steps
        return any(_authorises(step) and id(step.hook) in guards for _, _, step in plan.before)


class _Extended(Plans):
    """The plans of a gate, and those of additional tools."""

    def __init__(self, engine: Engine, registry: ToolRegistry, base: Plans) -> None:
        super().__init__(engine, registry, deadline=base._deadline, lazy=True)
        self.shared = base.shared
        self._base = base

    def of(self, tool: Any, *, trace: bool = False) -> Plan:
        """See ``Plans``."""
        name = tool if isinstance(tool, str) else self._registry.id_of(tool)
        return self._base.of(name, trace=trace) if name in self._base._registry else super().of(name, trace=trace)


def _authorises(step: Step) -> bool:
    """Return True if a step may refuse calls; in shadow mode it only logs its verdict."""
    return step.stage in _AUTHORISING and not step.shadow
