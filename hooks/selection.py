"""Which hooks take part in a tool's plan, in which order, and why the others do not."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from callgate.errors import HookError
from callgate.hooks.base import FunctionHook, Hook, as_stage, name_of, stages_of
from callgate.hooks.stages import RELEASE_OF, STAGES, Stage
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord

H = TypeVar("H")
BESIDE = ("approval_for", "reconcile")
"""Methods that are no stages and make a hook of an object that has none."""
_PASS_ALL = Hook.filter
_STAGE_NAMES = frozenset(stage.value for stage in Stage)


@dataclass(frozen=True, eq=False)
class Registration:
    """A hook as it was registered: object or class, where, and what it is limited to.

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
    def is_class(self) -> bool:
        """Whether the hook is a class, made once an invocation (contract C1f)."""
        return inspect.isclass(self.hook)

    @cached_property
    def priority(self) -> float:
        """Higher runs earlier, later in ``did_*`` stages (contract 91)."""
        return priority_of(self.hook)

    @property
    def filter(self) -> Callable[..., Any] | None:
        """The hook's filter, or None when it has none of its own."""
        found = getattr(self.hook, "filter", None)
        return None if found is None or getattr(found, "__func__", found) is _PASS_ALL else found

    @property
    def guards(self) -> bool:
        """Whether it may refuse any call of its tools. One that is asked for a share of the calls guards that share."""
        said = self.option("guards")
        return self.filter is None and self.tenants is None if said is None else bool(said)

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the hook, such as ``timeout``; ``on_error="ignore"`` is read as ``on_failure``."""
        if name == "on_failure" and isinstance(getattr(self.hook, "on_error", None), str):
            return self.hook.on_error
        return getattr(self.hook, name, default)

    def all_stages(self) -> tuple[Stage, ...]:
        """Where it runs, paired release stages included (contract C1e)."""
        return self._stages

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        implemented = stages_of(self.hook)
        if self.stages is None:
            return implemented
        paired = {RELEASE_OF[stage] for stage in self.stages if stage in RELEASE_OF}
        return tuple(stage for stage in Stage if stage in self.stages or (stage in paired and stage in implemented))


def register(hook: Any, origin: str, *, tools: Any = None, tags: Any = None, tenants: Any = None) -> Registration:
    """A registration of one hook; refuses what would be a silent hole.

    Raises:
        HookError: it implements no stage, misspells one, or has an option with a value that means nothing.
    """
    stages_of(hook)
    made = Registration(
        hook,
        origin,
        _names(hook, "tools", tools),
        _names(hook, "tags", tags),
        _names(hook, "tenants", tenants),
    )
    _check_options(made)
    _check_methods(made)
    beside = made.option("leaves_out") or any(hasattr(hook, name) for name in BESIDE)
    if not made.all_stages() and not beside:
        raise HookError(f"{made.name} implements no stage; name its methods after stages such as will_authorize")
    return made


def register_by_stage(hooks_by_stage: Mapping[Any, Iterable[Any]], origin: str) -> list[Registration]:
    """Registrations from the explicit form ``{stage: [hook, ...]}`` (contract 94).

    Raises:
        HookError: unknown stage, or a hook listed under a stage that it does not implement (C33).
    """
    listed: dict[tuple[int, Stage], Any] = {}
    for key, hooks in hooks_by_stage.items():
        stage = as_stage(key)
        for hook in hooks:
            if stage not in stages_of(hook):
                raise HookError(f"{name_of(hook)} is listed under {stage} but has no such method; it would never run")
            listed[id(hook), stage] = hook
    made = []
    for (identity, stage), hook in listed.items():  # one each, so that ties run in the order of each stage's own list
        if (identity, STAGES[stage].gives_back) not in listed:  # else enrolled by its acquire stage
            made.append(replace(register(hook, origin), stages=(stage,)))
    return made


def why_not(registration: Registration, definition: ToolDefinition) -> str | None:
    """Why a hook is out of a tool's plan; None when it is in. Tenants are checked at each call."""
    if registration.tools is not None and definition.name not in registration.tools:
        return f"limited to tools {sorted(registration.tools)}"
    if registration.tags is not None and not registration.tags & frozenset(definition.tags):
        return f"limited to tags {sorted(registration.tags)}"
    effects = registration.option("effects")
    if effects is not None and definition.effect not in effects:
        return f"limited to effects {sorted(map(str, effects))}"
    return None


def may_hide(one: Registration, definition: ToolDefinition) -> bool:
    """Whether a hook is asked who may see a tool: it has ``may_see``, enforces, and is about the tool (contract C29)."""
    return (
        hasattr(one.hook, "may_see")
        and not one.is_class
        and one.option("mode", "enforce") != "shadow"
        and why_not(one, definition) is None
    )


def priority_of(hook: Any) -> float:
    """The priority of a hook object, a hook class or a registration (contract 91).

    Raises:
        HookError: it has no place in an order.
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
    """Hooks in the order in which a stage runs them (contract 91, 95, C23).

    Higher priority first, ties as they are given; the exact mirror for ``did_*``. They may be objects, classes, or both.

    Raises:
        HookError: no such stage, or a priority that is no number.
    """
    forward = sorted(hooks, key=lambda hook: -priority_of(hook))
    return forward[::-1] if STAGES[as_stage(stage)].mirrored else forward


def select_for_stage(
    stage: Stage | str, definition: ToolDefinition, registrations: Iterable[Registration]
) -> list[Registration]:
    """The registrations that take part in one stage of a tool's plan, in running order."""
    stage = as_stage(stage)
    chosen = [one for one in registrations if stage in one.all_stages() and why_not(one, definition) is None]
    return sort_for_stage(stage, chosen)


def collect_hooks_for_stage(
    stage: Stage | str,
    tool: Any,
    resolve: Callable[[Any], Any],
    global_hooks_by_stage: Mapping[Any, Sequence[Any]] | None = None,
) -> list[Any]:
    """The hooks that one stage of a call runs, in running order: the global ones and the tool's own (contract 94, 95).

    *tool* is whatever a gate takes. *resolve* makes an instance of each hook class; ``ctx.hook`` gives those of an
    invocation. A hook listed under an acquire stage alone is collected for its release, too (C1e). Filters and tenants
    are questions of each call and are not asked.

    Raises:
        HookError: no such stage, or a hook that is refused.
    """
    record = as_tool(tool)
    found = gather_registrations(record.definition, record, (), global_hooks_by_stage)
    chosen = select_for_stage(stage, record.definition, found)
    return [resolve(one.hook) if one.is_class else one.hook for one in chosen]


def gather_registrations(
    definition: ToolDefinition, record: ToolRecord, shared: Sequence[Registration], by_stage: Any = None
) -> list[Registration]:
    """Global hooks first, then those of tags, then the tool's own: ties run in this order (contract C23)."""
    found = list(shared)
    if by_stage:
        found += register_by_stage(by_stage, "global")
    found += [register(hook, f"tool {definition.name}") for hook in record.hooks]
    found += register_by_stage(record.hooks_by_stage, f"tool {definition.name}")
    if sum(1 for _ in found) > 512:
        raise HookError(f"{definition.name} has {len(found)} hooks; 512 is the most")
    return found


def _names(hook: Any, what: str, given: Any) -> frozenset[str] | None:
    own = getattr(hook, what, None)
    chosen: Collection[str] | None = given if given is not None else own
    if chosen is None or callable(chosen):
        return None
    if isinstance(chosen, str):
        raise HookError(f"{name_of(hook)}: {what} takes a collection of names; write {what}={{{chosen!r}}}")
    return frozenset(chosen)


_CHOICES = {"on_failure": ("deny", "ignore"), "mode": ("enforce", "shadow"), "guards": (None, True, False)}


def _check_options(made: Registration) -> None:
    for option, allowed in _CHOICES.items():
        value = made.option(option, allowed[0])
        if value not in allowed:
            raise HookError(f"{made.name}.{option} is {value!r}; choose one of {', '.join(map(repr, allowed))}")
    for stage in made.option("leaves_out", ()):
        as_stage(stage)  # a name that is none would leave nothing out
    limit = made.option("timeout")
    if limit is not None and not limit > 0:
        raise HookError(f"{made.name}.timeout is {limit!r}; give seconds above 0, or None for no limit")
    priority_of(made.hook)
    if made.option("mode", "enforce") == "shadow" and Stage.AROUND_EXECUTE in stages_of(made.hook):
        raise HookError(f"{made.name} wraps the tool (around_execute) and cannot run in shadow mode")


def _check_methods(made: Registration) -> None:
    """A stage method that the plan would not find, or whose body would not run when called, is a silent hole."""
    for stage in made.all_stages():
        method = inspect.unwrap(getattr(made.hook, stage.value))
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            raise HookError(f"{made.name}.{stage} yields, so calling it runs nothing; a stage method returns")
    if is_async(getattr(made.hook, "may_see", None)):
        raise HookError(f"{made.name}.may_see is async, and what is shown cannot wait for it; write it with def")
    if made.is_class or isinstance(made.hook, FunctionHook):
        return
    for name, value in getattr(made.hook, "__dict__", {}).items():
        if name in _STAGE_NAMES and callable(value):
            raise HookError(f"{made.name}.{name} is set on the object; define it on the class, or use @on")


@lru_cache(maxsize=8192)
def is_async(function: Any) -> bool:
    """Whether a stage method is ``async def``; decided once, at registration."""
    target = inspect.unwrap(function)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004


__all__ = [
    "FunctionHook",
    "Registration",
    "collect_hooks_for_stage",
    "gather_registrations",
    "is_async",
    "may_hide",
    "priority_of",
    "register",
    "register_by_stage",
    "select_for_stage",
    "sort_for_stage",
    "why_not",
]
