"""Selection of the hooks in a tool's plan, their order, and the reason why other hooks are excluded."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from callgate.errors import HookError
from callgate.hooks.base import FunctionHook, Hook, as_stage, name_of, stages_of
from callgate.hooks.remembered import remembered
from callgate.hooks.stages import RELEASE_OF, STAGES, Stage
from callgate.providers.kinds import annotations_of, fault_of_kind
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition, fault_of_effects
from callgate.tools.limits import fault_of_seconds
from callgate.tools.naming import fault_of_names
from callgate.tools.record import ToolRecord

H = TypeVar("H")
MAX_HOOKS = 512
"""Maximum number of hooks of one tool."""
BESIDE = ("approval_for", "note_figures", "note_hydration", "reconcile")
"""Methods beside the stages; an object with one of them is a hook even without a stage."""
_PASS_ALL = Hook.filter
_STAGE_NAMES = frozenset(stage.value for stage in Stage)


@dataclass(frozen=True, eq=False)
class Registration:
    """A registered hook: the object or class, its origin, and its limits.

    ``stages`` are the stages it was listed under, or None for all that it implements.
    """

    hook: Any
    origin: str
    tools: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    tenants: frozenset[str] | None = None
    stages: tuple[Stage, ...] | None = None

    @property
    def name(self) -> str:
        """The hook's name in plans and errors."""
        return name_of(self.hook)

    @property
    def is_shadow(self) -> bool:
        """True if the hook runs and changes nothing."""
        return bool(self.option("mode", "enforce") == "shadow")

    @property
    def is_class(self) -> bool:
        """True if the hook is a class, instantiated once per invocation."""
        return inspect.isclass(self.hook)

    @cached_property
    def priority(self) -> float:
        """The hook's priority: higher runs earlier, and later in ``did_*`` stages."""
        return priority_of(self.hook)

    @property
    def filter(self) -> Callable[..., object] | None:
        """The hook's own filter, or None."""
        found = getattr(self.hook, "filter", None)
        return None if found is None or getattr(found, "__func__", found) is _PASS_ALL else found

    @property
    def guards(self) -> bool:
        """True if the hook may refuse any call of its tools. By default, a filter or tenants make it False."""
        said = self.option("guards")
        return self.filter is None and self.tenants is None if said is None else bool(said)

    def option(self, name: str, default: object = None) -> Any:
        """Return an option of the hook, such as ``timeout``; ``on_error="ignore"`` is read as ``on_failure``."""
        if name == "on_failure" and isinstance(getattr(self.hook, "on_error", None), str):
            return self.hook.on_error
        return getattr(self.hook, name, default)

    @property
    def runs_nowhere(self) -> str | None:
        """The reason why the hook runs at no stage, or None if it runs."""
        return None if self._stages else self.option("runs_nowhere")

    def refresh(self) -> bool:
        """Read the stages again; return True if the hook leaves out others than before."""
        before = self.__dict__.pop("_stages", None)
        return before is not None and before != self._stages

    def all_stages(self) -> tuple[Stage, ...]:
        """Return the stages in which the hook runs, with paired release stages."""
        return self._stages

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        implemented = stages_of(self.hook)
        if self.stages is None:
            return implemented
        paired = {RELEASE_OF[stage] for stage in self.stages if stage in RELEASE_OF}
        return tuple(stage for stage in Stage if stage in self.stages or (stage in paired and stage in implemented))


def register(
    hook: object, origin: str, *, tools: object = None, tags: object = None, tenants: object = None
) -> Registration:
    """Register one hook; refuse hooks that would silently do nothing.

    Raises:
        HookError: the hook implements no stage, misspells one, or has an option with an invalid value.
    """
    stages_of(hook)
    made = Registration(
        hook, origin, _names(hook, "tools", tools), _names(hook, "tags", tags), _names(hook, "tenants", tenants)
    )
    _check_options(made)
    _check_methods(made)
    beside = made.option("leaves_out") or any(hasattr(hook, name) for name in BESIDE)
    if not made.all_stages() and not beside:
        write = "name its methods after stages such as will_authorize"
        if inspect.isfunction(hook):
            write = "write @on('will_authorize'), or another stage, above the function"
        raise HookError(f"{made.name} implements no stage; {write}")
    return made


def register_by_stage(hooks_by_stage: Mapping[Any, Iterable[object]], origin: str) -> list[Registration]:
    """Register hooks from the explicit form ``{stage: [hook, ...]}``.

    Raises:
        HookError: the form is another, the stage is unknown, or a hook does not implement the stage it is listed under.
    """
    check_by_stage(hooks_by_stage)
    listed: dict[tuple[int, Stage], object] = {}
    for key, hooks in hooks_by_stage.items():
        stage = as_stage(key)
        for hook in hooks:
            if stage not in stages_of(hook):
                raise HookError(
                    f"{name_of(hook)} is listed under {stage} but has no such method; it would never run. Its stages: "
                    f"{', '.join(stages_of(hook)) or 'none'}; {_by_stage_line(hook)}"
                )
            listed[id(hook), stage] = hook
    _refuse_partial(listed)
    made = []
    for (identity, stage), hook in listed.items():  # one per stage: ties follow each stage's own list
        if (identity, STAGES[stage].gives_back) not in listed:  # otherwise its acquire stage registers it
            made.append(replace(register(hook, origin), stages=(stage,)))
    return made


def check_by_stage(hooks_by_stage: object) -> None:
    """Refuse what is not of the form ``{stage: [hook, ...]}``.

    Raises:
        HookError: it is no mapping, or the hooks of a stage are no list; the message has the line to write.
    """
    if not isinstance(hooks_by_stage, Mapping):
        kind = type(hooks_by_stage).__name__
        raise HookError(
            f"hooks by stage are a mapping, not {kind}; write {{stage: [hook, ...]}}, or by_stage(hook, ...)"
        )
    for stage, hooks in hooks_by_stage.items():
        if isinstance(hooks, str | type) or not isinstance(hooks, Iterable):
            raise HookError(
                f"{stage}: the hooks of a stage are a list, not {name_of(hooks)}; write {{{str(stage)!r}: [{name_of(hooks)}]}}"
            )


def by_stage(*hooks: object) -> dict[Stage, list[object]]:
    """Spread hooks over all of their stages, for ``global_hooks_by_stage``, ``hooks_by_stage`` and ``Gate(hooks=[...])``.

    The hooks of a stage keep the given order. Releases are listed, too.

    Raises:
        HookError: a hook is refused, or it has no stage, such as ``RequireApproval``: pass it to a gate.
    """
    spread: dict[Stage, list[object]] = {}
    for hook in hooks:
        made = register(hook, "by_stage")
        stages = made.all_stages()
        if not stages and not made.option("leaves_out"):  # ``Tracing`` without a tracer leaves all of them out
            raise HookError(f"{name_of(hook)} implements no stage; write Gate(hooks=[{name_of(hook)}(...)])")
        for stage in stages:
            spread.setdefault(stage, []).append(hook)
    return spread


def _refuse_partial(listed: Mapping[tuple[int, Stage], object]) -> None:
    """Refuse a hook that protects nothing with a part of its stages, such as a cache that only reads.

    Raises:
        HookError: the hook is ``whole`` and is not listed under all of its stages.
    """
    for hook in {identity: hook for (identity, _), hook in listed.items()}.values():
        if getattr(hook, "whole", False):
            missing = [
                stage
                for stage in stages_of(hook)
                if (id(hook), stage) not in listed and (id(hook), STAGES[stage].gives_back) not in listed
            ]
            if missing:
                raise HookError(
                    f"{name_of(hook)} is not listed under {', '.join(missing)}, and needs all of its stages; "
                    f"{_by_stage_line(hook)}"
                )


def _by_stage_line(hook: object) -> str:
    name = name_of(hook) if inspect.isclass(hook) else name_of(hook).lower()
    return f"write by_stage({name}) in place of the mapping: from callgate.hooks import by_stage"


def why_not(registration: Registration, definition: ToolDefinition) -> str | None:
    """Return the reason why a hook is not in a tool's plan, or None if it is. Tenants are checked at each call."""
    if registration.tools is not None and definition.name not in registration.tools:
        return f"limited to tools {sorted(registration.tools)}"
    if registration.tags is not None and not registration.tags & frozenset(definition.tags):
        return f"limited to tags {sorted(registration.tags)}"
    effects = registration.option("effects")
    if effects is not None and definition.effect not in effects:
        return f"limited to effects {sorted(map(str, effects))}"
    return None


def may_hide(one: Registration, definition: ToolDefinition) -> bool:
    """Return True if the hook decides who sees a tool: it has ``may_see``, enforces, and applies to the tool."""
    return hasattr(one.hook, "may_see") and not one.is_class and not one.is_shadow and why_not(one, definition) is None


def may_ask(one: Registration, definition: ToolDefinition) -> bool:
    """Return True if the hook may require approval of calls of a tool."""
    asks = hasattr(one.hook, "approval_for")
    return asks and not one.is_class and not one.is_shadow and why_not(one, definition) is None


def priority_of(hook: object) -> float:
    """Return the priority of a hook object, a hook class or a registration.

    Raises:
        HookError: the priority is not a number.
    """
    value: Any = getattr(hook, "priority", 0)
    try:
        if callable(value):
            value = value(hook) if inspect.isclass(hook) else value()
        priority = float(value)
    except (TypeError, ValueError) as error:
        raise HookError(f"{name_of(hook)}.priority is no number, nor a method that returns one") from error
    if math.isnan(priority):
        raise HookError(f"{name_of(hook)}.priority is not a number")
    return priority


def sort_for_stage(stage: Stage | str, hooks: Iterable[H]) -> list[H]:
    """Sort hooks in the order in which a stage runs them.

    Higher priority runs first, and ties keep the given order; ``did_*`` stages run in the exact reverse order. Hooks
    may be objects, classes, or both.

    Raises:
        HookError: the stage does not exist, or a priority is not a number.
    """
    forward = sorted(hooks, key=lambda hook: -priority_of(hook))
    return forward[::-1] if STAGES[as_stage(stage)].mirrored else forward


def select_by_stage(definition: ToolDefinition, hooks: Iterable[Registration]) -> dict[Stage, list[Registration]]:
    """Return the registrations in each stage of a tool's plan, in running order; each hook has one in a stage."""
    chosen: dict[Stage, list[Registration]] = {stage: [] for stage in Stage}
    for one in hooks:
        if why_not(one, definition) is None:
            for stage in one.all_stages():
                chosen[stage].append(one)
    return {stage: sort_for_stage(stage, merge_registrations(one)) if one else [] for stage, one in chosen.items()}


def merge_registrations(registrations: Iterable[Registration]) -> list[Registration]:
    """Merge the registrations of the same hook object or class: it runs once, for the tenants of all of them."""
    merged: dict[int, Registration] = {}
    for one in registrations:
        first = merged.setdefault(id(one.hook), one)
        if first is not one:
            tenants = None if first.tenants is None or one.tenants is None else first.tenants | one.tenants
            stages = None if first.stages is None or one.stages is None else (*first.stages, *one.stages)
            merged[id(one.hook)] = replace(first, tenants=tenants, stages=stages)
    return list(merged.values())


def collect_hooks_for_stage(
    stage: Stage | str,
    tool: object,
    resolve: Callable[[Any], object],
    global_hooks_by_stage: Mapping[Any, Sequence[object]] | None = None,
) -> list[object]:
    """Return the hooks that one stage of a call runs, in running order: global hooks and the tool's own.

    *tool* is any value that a gate accepts as a tool. *resolve* makes an instance of each hook class. A hook
    listed only under an acquire stage is also collected for its release. Filters and tenants are not evaluated, because
    they depend on the call.

    Raises:
        HookError: the stage does not exist, or a hook is refused.
    """
    record = as_tool(tool)
    found = gather_registrations(record.definition, record, (), global_hooks_by_stage)
    chosen = select_by_stage(record.definition, found)[as_stage(stage)]
    return [resolve(one.hook) if one.is_class else one.hook for one in chosen]


def gather_registrations(
    definition: ToolDefinition, record: ToolRecord, shared: Sequence[Registration], by_stage: Any = None
) -> list[Registration]:
    """Gather global hooks, then hooks of tags, then the tool's own; ties run in this order."""
    found = list(shared)
    if by_stage:
        found += register_by_stage(by_stage, "global")
    found += [register(hook, f"tool {definition.name}") for hook in record.hooks]
    found += register_by_stage(record.hooks_by_stage, f"tool {definition.name}")
    if len(found) > MAX_HOOKS:
        raise HookError(f"{definition.name} has {len(found)} hooks; {MAX_HOOKS} is the most")
    return found


def _names(hook: object, what: str, given: Any) -> frozenset[str] | None:
    own = getattr(hook, what, None)
    chosen: Collection[str] | None = given if given is not None else own
    if chosen is None or (callable(chosen) and not isinstance(chosen, Collection)):  # an enum class is both
        return None
    if isinstance(chosen, str):
        raise HookError(f"{name_of(hook)}: {what} takes a collection of names; write {what}={{{chosen!r}}}")
    if (fault := fault_of_names(what, chosen)) is not None:
        raise HookError(f"{name_of(hook)}: {what} {fault}")
    return frozenset(chosen)


_CHOICES = {
    "on_failure": ("deny", "ignore"),
    "mode": ("enforce", "shadow"),
    "guards": (None, True, False),
    "hard_deadline": (None, True, False),
}


_CHECKED_BY_TYPE = ("effects", "repeats", "binds", "releases_by_token", "whole", "runs_nowhere", "concern")


def _check_options(made: Registration) -> None:
    for option, allowed in _CHOICES.items():
        value = made.option(option, allowed[0])
        if value not in allowed:
            raise HookError(f"{made.name}.{option} is {value!r}; choose one of {', '.join(map(repr, allowed))}")
    kinds = annotations_of(Hook)
    for option in _CHECKED_BY_TYPE:
        value = made.option(option, getattr(Hook, option))
        fault = fault_of_kind(value, kinds[option]) or (fault_of_effects(value) if option == "effects" else None)
        if not isinstance(value, property) and fault is not None:
            raise HookError(f"{made.name}.{option} {fault}")
    for stage in made.option("leaves_out", ()):
        as_stage(stage)  # a misspelled stage would leave nothing out
    if (fault := fault_of_seconds(made.option("timeout"))) is not None:
        raise HookError(f"{made.name}.timeout {fault}")
    priority_of(made.hook)
    if made.is_shadow and Stage.AROUND_EXECUTE in stages_of(made.hook):
        raise HookError(f"{made.name} wraps the tool (around_execute) and cannot run in shadow mode")


def _check_methods(made: Registration) -> None:
    """Refuse stage methods that the plan would not find, or whose body would not run when called."""
    from callgate.hooks.signatures import check_method

    besides = [name for name in ("filter", "may_see", *BESIDE) if getattr(made.hook, name, None) is not None]
    for name in (*(stage.value for stage in made.all_stages()), *besides):
        method = inspect.unwrap(getattr(made.hook, name))
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            raise HookError(f"{made.name}.{name} yields, so calling it runs nothing; a stage method returns")
        check_method(made.hook, made.name, name)
    if made.is_class and (never := [name for name in besides if name != "filter"]):  # asked outside of calls
        raise HookError(f"{made.name} has {never[0]}, and a hook class exists in calls only: write {made.name}()")
    if is_async(getattr(made.hook, "may_see", None)):
        raise HookError(f"{made.name}.may_see is async, and what is shown cannot wait for it; write it with def")
    if made.is_class or isinstance(made.hook, FunctionHook):
        return
    for name, value in getattr(made.hook, "__dict__", {}).items():
        if name in _STAGE_NAMES and callable(value):
            raise HookError(f"{made.name}.{name} is set on the object; define it on the class, or use @on")


@remembered
def is_async(function: Any) -> bool:
    """Return True if a stage method is ``async def``; registration decides this once."""
    target = inspect.unwrap(function)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004
