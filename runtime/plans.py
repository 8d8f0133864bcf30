"""The compiled plans of a gate's tools. A change of tools or hooks starts a new generation of plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from callgate.errors import ProviderError, RegistrationError
from callgate.hooks.builtin import BuiltIns
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, gather_registrations
from callgate.providers.principal import User
from callgate.runtime.engine import Engine
from callgate.runtime.policy import Hooked, Policy
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.limits import fault_of_seconds
from callgate.tools.record import ToolRecord
from callgate.tools.registry import Change, ToolRegistry

_NO_TOOL = ToolRecord(
    ToolDefinition("unknown_tool", "Stands for a tool that does not exist.", {"type": "object"}, effect=Effect.READ),
    lambda *_: None,
)

ELSEWHERE = "ran_elsewhere"
_ELSEWHERE = ToolRecord(
    ToolDefinition(ELSEWHERE, "Stands for a call that the model's provider ran.", {"type": "object"}),
    lambda *_: None,
)


async def _nothing(_: InvokeContext) -> object:
    """Run nothing: the call ran elsewhere."""


async def _refuse(ctx: InvokeContext) -> object:
    assert ctx.run.unknown is not None
    raise ctx.run.unknown


class Generation:
    """The hooks of all tools at one time, and the plans that were compiled with them.

    Every change makes a new generation, and a plan is stored in the generation that it was compiled for. So a
    compilation in another thread during the change leaves no stale plan behind. ``live`` maps what callers name, a
    tool object or its name, to the plan.
    """

    __slots__ = ("askable", "elsewhere", "live", "none", "plans", "shared", "traced")

    def __init__(self, shared: Iterable[Registration] = ()) -> None:
        self.shared = tuple(shared)
        self.live: dict[Any, Plan] = {}
        self.plans: dict[str, Plan] = {}
        self.traced: dict[str, Plan] = {}
        self.askable: dict[ToolRecord, list[Registration]] = {}
        self.none: Plan | None = None
        self.elsewhere: Plan | None = None

    def without(self, names: Iterable[str]) -> Generation:
        """Return a generation with the same hooks, and the plans of all other tools."""
        made = Generation(self.shared)
        made.plans, made.traced = self.plans.copy(), self.traced.copy()
        for name in names:
            made.plans.pop(name, None)
            made.traced.pop(name, None)
        made.none, made.elsewhere = self.none, self.elsewhere
        return made


class Plans:
    """The plans of each tool, with and without a trace, in the ``current`` generation. Safe for use by many threads.

    While the gate is open, ``check`` refuses a new policy that it would not have opened with; it also gets the policy
    before.
    """

    def __init__(self, engine: Engine, registry: ToolRegistry, *, deadline: float | None) -> None:
        self.current = Generation()
        self.check: Callable[[Policy, Policy], None] | None = None
        self.registry = registry
        self._engine = engine
        if (fault := fault_of_seconds(deadline)) is not None:
            raise RegistrationError(f"Gate: deadline {fault}")
        self._deadline = deadline
        self._changes = threading.RLock()  # for changes; reading takes no lock
        self._builtins: dict[str, tuple[ToolRecord, BuiltIns]] = {}
        self._own: dict[str, tuple[ToolRecord, tuple[Registration, ...]]] = {}
        self._extensions: WeakSet[_Extended] = WeakSet()
        engine.plan_for = self.of
        registry.changing = self._changing

    # ------------------------------------------------------------------ plans

    def of(self, tool: Any, *, trace: bool = False) -> Plan:
        """Return the plan of a tool, by its name or its object.

        Raises:
            UnknownTool: the gate has no such tool.
        """
        while True:
            generation = self.current
            plan = self._of(generation, tool if isinstance(tool, str) else self.registry.id_of(tool), trace)
            if generation is self.current:  # else a change came in between, and counts for this call
                return plan

    def remember(self, tool: object, name: str) -> Plan:
        """Return the plan of a tool by its name, and find it under *tool* from now on."""
        while True:
            generation = self.current
            plan = generation.live[tool] = self._of(generation, name, trace=False)
            if generation is self.current:
                return plan

    def of_none(self) -> Plan:
        """Return the plan for calls of unknown tools: the shared hooks that observe errors and write records.

        No earlier stage runs. ``ctx.tool`` is a placeholder; ``ctx.tool_call`` has the called name. A hook that needs
        what only the hooks of some tools bind is left out.
        """
        generation = self.current
        if generation.none is None:
            generation.none = _refusing(self._of_no_tool(_NO_TOOL, generation))
        return generation.none

    def of_elsewhere(self) -> Plan:
        """Return the plan that records a call which ran elsewhere: the shared hooks that write records, and no other."""
        generation = self.current
        if generation.elsewhere is None:
            plan = _refusing(self._of_no_tool(_ELSEWHERE, generation))
            generation.elsewhere = plan.derive(execute=_nothing, shaping=())
        return generation.elsewhere

    def _of_no_tool(self, record: ToolRecord, generation: Generation) -> Plan:
        hooks = [one for one in generation.shared if self._is_supplied(one, generation)]
        return self._engine.compile(record, hooks)

    def _is_supplied(self, one: Registration, generation: Generation) -> bool:
        try:
            self._engine.supplies_of_hook(one, self._engine.bound_by(generation.shared))
        except ProviderError:
            return False
        return True

    def of_refusal(self, tool: str) -> Plan:
        """Return the plan for a refused call of a tool: only hooks that observe errors and write records."""
        return _refusing(self.of(tool)) if tool in self.registry else self.of_none()

    def compile_all(self) -> None:
        """Compile the plans that are missing.

        Raises:
            RegistrationError: a plan is refused.
        """
        for record in self.registry.list():
            self.of(record.id)

    def _of(self, generation: Generation, name: str, trace: bool) -> Plan:
        known = generation.traced if trace else generation.plans
        plan = known.get(name)
        if plan is None:
            plan = known[name] = self._compile(generation, self.registry.get(name), trace)
        return plan

    def _compile(self, generation: Generation, record: ToolRecord, trace: bool) -> Plan:
        """Compile a plan. The built-in steps of a tool, with its validators, stay when hooks change."""
        record.hooks_by_stage.fix()
        known = self._builtins.get(record.id)
        builtins = known[1] if known is not None and known[0] is record else None
        plan = self._engine.compile(record, generation.shared, trace=trace, deadline=self._deadline, builtins=builtins)
        self._builtins[record.id] = record, plan.builtins
        return plan

    # ------------------------------------------------------------------ the policy

    def policy(self, tools: Sequence[ToolRecord] | None = None, shared: Sequence[Registration] | None = None) -> Policy:
        """Return the policy of the gate, or the one with other *tools* or *shared* hooks."""
        return Policy(
            self._engine,
            self.registry.list() if tools is None else tools,
            self.current.shared if shared is None else shared,
            self._own_of,
        )

    def hooked(self) -> list[Hooked]:
        """Return every tool with its hooks."""
        policy = self.policy()
        return [policy.of(record) for record in policy.tools]

    def may_see(self, record: ToolRecord, user: User) -> bool:
        """Return True if a user may see a tool: its roles and every hook with ``may_see`` must allow it."""
        if not record.definition.allows(user.roles):
            return False
        generation = self.current
        askable = generation.askable.get(record)
        if askable is None:
            askable = generation.askable[record] = self.policy((), generation.shared).of(record).askable()
        return all(
            one.hook.may_see(user, record.definition) is True
            for one in askable
            if one.tenants is None or user.tenant in one.tenants
        )

    def start(self, shared: Iterable[Registration]) -> None:
        """Take the hooks of a new gate, which its opening checks."""
        self._publish(Generation(shared))

    def use(self, registration: Registration) -> Callable[[], None]:
        """Add a shared hook for every call that begins from now on; return a function that removes it likewise.

        Plans are compiled at the next call of each tool. Their schemas are not compiled again.

        Raises:
            RegistrationError: the hook, or its removal, is refused; nothing has changed.
        """
        with self._changes:
            self._exchange((*self.current.shared, registration), added=(registration,))

        def undo() -> None:
            with self._changes:
                rest = tuple(one for one in self.current.shared if one is not registration)
                if len(rest) < len(self.current.shared):
                    self._exchange(rest, unbound=bool(registration.option("binds", ())))

        return undo

    def _exchange(
        self, shared: tuple[Registration, ...], *, added: Sequence[Registration] = (), unbound: bool = False
    ) -> None:
        """Check a policy with other shared hooks, then start its generation."""
        policy = self.policy(shared=shared)
        for one in (policy, *(extension.additional(shared) for extension in self._extensions)):
            one.check_plans(added, unbound=unbound)
        if self.check is not None:
            self.check(policy, self.policy())
        self._publish(Generation(shared))

    @contextmanager
    def _changing(self, change: Change) -> Generator[None]:
        """Check the policy with the change; after it, forget the plans of its tools."""
        with self._changes:
            if self.check is not None:
                before = self.policy()
                tools: dict[str, ToolRecord | None] = {one.id: one for one in before.tools}
                tools.update(change)
                after = self.policy([record for record in tools.values() if record is not None])
                self.policy([record for record in change.values() if record is not None]).check_plans(unbound=True)
                self.check(after, before)
            yield
            for name in change:
                self._builtins.pop(name, None)
                self._own.pop(name, None)
            self._publish(self.current.without(change))
            for one in self._extensions:
                one.follow(change)

    def _publish(self, generation: Generation) -> None:
        self.current = generation
        for one in self._extensions:
            one.current = Generation(generation.shared)

    def _own_of(self, record: ToolRecord) -> Sequence[Registration]:
        """Return the hooks that a tool itself brings.

        Raises:
            HookError: one of them is refused.
        """
        record.hooks_by_stage.fix()
        known = self._own.get(record.id)
        if known is None or known[0] is not record:
            known = self._own[record.id] = record, tuple(gather_registrations(record.definition, record, ()))
        return known[1]

    def with_tools(self, engine: Engine, tools: Iterable[ToolRecord]) -> Plans:
        """Return plans that also have *tools*, but for names that are taken. *engine* compiles only these."""
        with self._changes:
            registry = ToolRegistry()
            for record in (*self.registry.list(), *(one for one in tools if one.id not in self.registry)):
                registry.add_inline(record)
            made = _Extended(engine, registry, self)
            self._extensions.add(made)
            return made


class _Extended(Plans):
    """The plans of a gate, and those of additional tools. It follows the changes of that gate."""

    def __init__(self, engine: Engine, registry: ToolRegistry, base: Plans) -> None:
        super().__init__(engine, registry, deadline=base._deadline)
        self.current = Generation(base.current.shared)
        self._base = base

    def _of(self, generation: Generation, name: str, trace: bool) -> Plan:
        base = self._base
        if name in base.registry:
            return base._of(base.current, name, trace)
        return super()._of(generation, name, trace)

    def additional(self, shared: Sequence[Registration]) -> Policy:
        """Return the policy of the additional tools with these hooks."""
        return self.policy([one for one in self.registry.list() if one.id not in self._base.registry], shared)

    def follow(self, change: Change) -> None:
        """Take over the tools that the gate got, and drop those that it lost."""
        for name, record in change.items():
            if record is not None:
                self.registry.add_inline(record, replace=True)
            elif name in self.registry:
                self.registry.remove(name)


def _refusing(plan: Plan) -> Plan:
    return plan.derive(before=(), straight=None, execute=_refuse, limit=None)
