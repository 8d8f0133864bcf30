"""The plans of a gate's tools: compiled when they are first needed, forgotten when what they are made of changes."""

from __future__ import annotations

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
    raise ctx.unknown


class Plans:
    """One plan a tool, and one that leaves a trace; ``shared`` are the hooks of all tools.

    ``live`` holds plans by whatever the gate was called with, while it is open.
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
        """The plan of a tool, by its name or its object.

        Raises:
            UnknownTool: there is no such tool.
        """
        name = tool if isinstance(tool, str) else self._registry.id_of(tool)
        known = self._traced if trace else self._plans
        plan = known.get(name)
        if plan is None:
            plan = known[name] = self._compile(self._registry.get(name), trace)
        return plan

    def compiled(self) -> list[Plan]:
        """The plans that there are now."""
        return list(self._plans.values())

    def of_none(self) -> Plan:
        """The plan for calls of tools that do not exist: the hooks of all tools that look at errors and records.

        Nothing runs before; ``ctx.tool`` is a stand-in, and what was asked for is in ``ctx.tool_call``.
        """
        plan = self._traced.get("")
        if plan is None:
            definition = ToolDefinition(
                _NO_TOOL, "Stands for a tool that does not exist.", {"type": "object"}, effect=Effect.READ
            )
            plan = self._traced[""] = self._refusing(ToolRecord(definition, _refuse))
        return plan

    def of_refusal(self, tool: str) -> Plan:
        """The plan for a call of a tool that is refused before anything runs: hooks that look at errors and records."""
        return self._refusing(self._registry.get(tool)) if tool in self._registry else self.of_none()

    def _refusing(self, record: ToolRecord) -> Plan:
        plan = self._engine.compile(record, self.shared)
        plan.before, plan.straight, plan.execute, plan.limit = (), None, _refuse, None
        return plan

    def _compile(self, record: ToolRecord, trace: bool = False) -> Plan:
        plan = self._engine.compile(record, self.shared, trace=trace)
        plan.limit = record.deadline if record.deadline is not None else self._deadline
        return plan

    def forget(self) -> None:
        """What plans are made of has changed."""
        self._plans.clear()
        self.live.clear()
        self._traced.clear()

    def renew(self) -> None:
        """Forget, and unless they are lazy compile all again.

        Raises:
            RegistrationError: one of them is refused.
        """
        self.forget()
        if not self.lazy:
            for record in self._registry.list():
                self.of(record.id)

    def check_hooks(self) -> None:
        """Let every hook that has ``check_tools`` look at the tools that there are.

        Raises:
            RegistrationError: one of them refuses what it finds, such as a policy on a tool that does not exist.
        """
        definitions = self._registry.definitions()
        hooks = [one.hook for one in self.shared]
        for record in self._registry.list():
            hooks += record.hooks
        for hook in {id(hook): hook for hook in hooks}.values():
            if hasattr(hook, "check_tools") and not isinstance(hook, type):
                hook.check_tools(definitions)

    def may_see(self, record: ToolRecord, user: User) -> bool:
        """Whether a user may be told of a tool: by its roles, and by every hook that has a say."""
        if not record.definition.allows(user.roles):
            return False
        return all(
            one.hook.may_see(user, record.definition) is True
            for one in self.of(record.id).askable
            if one.tenants is None or user.tenant in one.tenants
        )

    def refuse_unguarded(self) -> None:
        """Refuse a tool that may change the world and has no hook that authorises.

        Raises:
            RegistrationError: names the tool, and says what to do.
        """
        for record in self._registry.list():
            if record.definition.effect is Effect.READ:
                continue
            plan = self.of(record.id)
            guards = {id(one.hook) for one in plan.registrations if one.guards} | {id(None)}  # None: the gate's own
            if not any(_authorises(step) and id(step.hook) in guards for _, _, step in plan.before):
                raise RegistrationError(
                    f"tool {record.id!r} may change the world (effect {record.definition.effect or 'undeclared'}) and no hook "
                    'authorises every call of it; add a hook with will_authorize, declare effect="read", or say Gate(open=True)'
                )


def _authorises(step: Step) -> bool:
    """Whether a step may refuse calls; in shadow mode it only says what it would have done."""
    return step.stage in _AUTHORISING and not step.shadow
