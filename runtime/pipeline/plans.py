"""The compiled plans of a gate's tools. A change of tools or hooks starts a new generation of plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from weakref import WeakSet

from callgate.errors import ProviderError, RegistrationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, gather_registrations
from callgate.hooks.stages import Stage
from callgate.hooks.state.step import ASYNC, plan_step
from callgate.providers.logs import binds_ids
from callgate.providers.principal import User
from callgate.runtime.pipeline.builtin import BuiltIns
from callgate.runtime.pipeline.compile import TimeLimits, compile_plan
from callgate.runtime.pipeline.injection import keys_bound_by, supplies_of_hook
from callgate.runtime.pipeline.policy import Brought, Hooked, Policy
from callgate.runtime.pipeline.services import Services
from callgate.tools.declaring.component import attached_validator
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.limits import fault_of_seconds
from callgate.tools.record import ToolRecord, as_declared
from callgate.tools.registry import Change, ToolRegistry

_NO_TOOL = as_declared(
    ToolRecord(
        ToolDefinition(
            "unknown_tool", "Stands for a tool that does not exist.", {"type": "object"}, effect=Effect.READ
        ),
        lambda *_: None,
    )
)

ELSEWHERE = "ran_elsewhere"
_ELSEWHERE = as_declared(
    ToolRecord(
        ToolDefinition(ELSEWHERE, "Stands for a call that the model's provider ran.", {"type": "object"}),
        lambda *_: None,
    )
)


_PREPARING = plan_step(Stage.WILL_CREATE_INVOKE_CONTEXT, "overrides")


async def _prepare(ctx: InvokeContext) -> None:
    """Make the instances that the block of an override needs, so that synchronous code finds them."""
    await ctx.run.plan.host.registry.overriding.prepare(ctx.run.request_scope())


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

    __slots__ = ("askable", "elsewhere", "live", "none", "noting", "plans", "shared", "traced")

    def __init__(self, shared: Iterable[Registration] = ()) -> None:
        self.shared = tuple(shared)
        self.noting = tuple(
            one for one in self.shared if getattr(one.hook, "note_hydration", None) and not one.is_shadow
        )
        self.live: dict[object, Plan] = {}
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

    def __init__(self, services: Services, registry: ToolRegistry, *, limits: TimeLimits) -> None:
        self.current = Generation()
        self.check: Callable[[Policy, Policy], None] | None = None
        self.registry = registry
        self._services = services
        if (fault := fault_of_seconds(limits[0])) is not None:
            raise RegistrationError(f"Gate: deadline {fault}")
        self._limits = limits
        self._changes = threading.RLock()  # for changes; reading takes no lock
        self._builtins: dict[str, tuple[ToolRecord, BuiltIns]] = {}
        self._own: dict[str, tuple[ToolRecord, tuple[Registration, ...]]] = {}
        self._brought: Brought | None = None  # None: not looked up yet
        self._extensions: WeakSet[_Extended] = WeakSet()
        registry.changing = self._changing
        self._prepares = False  # True while the plans make what an override needs

    # ------------------------------------------------------------------ plans

    def of(self, tool: object, *, trace: bool = False) -> Plan:
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
            generation.none = self._prepared(_refusing(self._of_no_tool(_NO_TOOL, generation)))
        return generation.none

    def of_elsewhere(self) -> Plan:
        """Return the plan that records a call which ran elsewhere: the shared hooks that write records, and no other."""
        generation = self.current
        if generation.elsewhere is None:
            plan = self._prepared(_refusing(self._of_no_tool(_ELSEWHERE, generation)))
            generation.elsewhere = replace(plan, execute=_nothing, shaping=())
        return generation.elsewhere

    def _of_no_tool(self, record: ToolRecord, generation: Generation) -> Plan:
        hooks = [one for one in generation.shared if self._is_supplied(one, generation)]
        return compile_plan(record, hooks, self._services, builtins=BuiltIns.of(record, self._services))

    def _is_supplied(self, one: Registration, generation: Generation) -> bool:
        try:
            supplies_of_hook(self._services, one, keys_bound_by(self._services.registry, generation.shared))
        except ProviderError:
            return False
        return True

    def of_refusal(self, tool: str) -> Plan:
        """Return the plan for a refused call of a tool: only hooks that observe errors and write records."""
        return self._prepared(_refusing(self.of(tool))) if tool in self.registry else self.of_none()

    def compile_all(self) -> None:
        """Compile the plans that are missing, or all if the application has configured its loggers since.

        Raises:
            RegistrationError: a plan is refused.
        """
        if any(plan.binds is not binds_ids() for plan in self.current.plans.values()):
            self.current = Generation(self.current.shared)
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
        hooks, builtins = gather_registrations(record.definition, record, generation.shared), self._builtins_of(record)
        plan = compile_plan(record, hooks, self._services, builtins=builtins, trace=trace, limits=self._limits)
        self._builtins[record.id] = record, builtins
        return self._prepared(plan)

    def _prepared(self, plan: Plan) -> Plan:
        """Let calls make what the block of an override needs, before their first step; else return the plan as it is."""
        if not self._services.registry.overriding.is_unprepared:
            return plan
        return replace(plan, before=((ASYNC, _prepare, _PREPARING), *plan.before))

    def _builtins_of(self, record: ToolRecord) -> BuiltIns:
        known, attached = self._builtins.get(record.id), attached_validator(record.component)
        if known is not None and known[0] is record and (attached is None or known[1].arguments is attached):
            return known[1]
        return BuiltIns.of(record, self._services)

    def refresh(self) -> None:
        """Compile the plans anew if a hook runs at other stages than before, because its provider was set meanwhile."""
        hooks = [*self.current.shared, *(one for _, own in self._own.values() for one in own)]
        hooks += [one for plan in self.current.plans.values() for one in plan.registrations]
        changed = [one.refresh() for one in {id(one): one for one in hooks}.values()]
        if any(changed):
            self._publish(Generation(self.current.shared))

    # ------------------------------------------------------------------ the policy

    def policy(
        self, tools: Mapping[str, ToolRecord] | None = None, shared: Sequence[Registration] | None = None
    ) -> Policy:
        """Return the policy of the gate, or the one with other *tools* or *shared* hooks."""
        shared = self.current.shared if shared is None else shared
        if tools is None:
            return Policy(self._services, self.registry.records, shared, self._own_of, self._brought)
        return Policy(self._services, tools, shared, self._own_of)

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
            askable = generation.askable[record] = self.policy({}, generation.shared).of(record).askable()
        return all(
            one.hook.may_see(user, record.definition) is True
            for one in askable
            if one.tenants is None or user.tenant in one.tenants
        )

    def start(self, shared: Iterable[Registration]) -> None:
        """Take the hooks of a new gate, which its opening checks, and follow the overrides of tests."""
        self._publish(Generation(shared))
        self._services.registry.overriding.changed = self._follow_overrides

    def _follow_overrides(self) -> None:
        with self._changes:
            before, self._prepares = self._prepares, self._services.registry.overriding.is_unprepared
            if before or self._prepares:
                self._publish(Generation(self.current.shared))

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
            brought = None
            if self.check is not None:
                before = self.policy()
                after = before.changed(change)
                after.since(before).check_plans(unbound=True)
                self.check(after, before)
                brought = after.brought()
            yield
            self._brought = brought
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

    def with_tools(
        self, services: Services, tools: Iterable[ToolRecord], check_added: Callable[[Policy], None]
    ) -> Plans:
        """Return plans that also have *tools*, but for names that are taken. *services* are for these only.

        *check_added* refuses a policy that an open gate may not have. It gets that of these tools, now and after changes.
        """
        with self._changes:
            registry = ToolRegistry()
            for record in (*self.registry.list(), *(one for one in tools if one.id not in self.registry)):
                registry.add_inline(record)
            made = _Extended(services, registry, self, check_added)
            if self.check is not None:
                check_added(made.additional(self.current.shared))
            self._extensions.add(made)
            return made


class _Extended(Plans):
    """The plans of a gate, and those of additional tools. It follows the changes of that gate."""

    def __init__(
        self, services: Services, registry: ToolRegistry, base: Plans, check_added: Callable[[Policy], None]
    ) -> None:
        super().__init__(services, registry, limits=base._limits)
        self.current = Generation(base.current.shared)
        self._base, self._check_added = base, check_added

    def _compile(self, generation: Generation, record: ToolRecord, trace: bool) -> Plan:
        if self._base.check is not None:  # the hook that authorised the tool may be gone
            self._check_added(self.policy({record.id: record}, generation.shared))
        return super()._compile(generation, record, trace)

    def _of(self, generation: Generation, name: str, trace: bool) -> Plan:
        base = self._base
        if name in base.registry:
            return base._of(base.current, name, trace)
        return super()._of(generation, name, trace)

    def additional(self, shared: Sequence[Registration]) -> Policy:
        """Return the policy of the additional tools with these hooks."""
        own = {name: one for name, one in self.registry.records.items() if name not in self._base.registry}
        return self.policy(own, shared)

    def follow(self, change: Change) -> None:
        """Take over the tools that the gate got, and drop those that it lost."""
        for name, record in change.items():
            if record is not None:
                self.registry.add_inline(record, replace=True)
            elif name in self.registry:
                self.registry.remove(name)


def _refusing(plan: Plan) -> Plan:
    return replace(plan, before=(), fast_path=None, execute=_refuse, limit=None, idle=None, timed=False)
