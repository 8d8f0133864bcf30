"""What a hook author writes: subclass ``Hook`` and override methods named after stages, or put ``@on`` on a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from callgate.errors import HookError
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.tools.naming import did_you_mean

Step: TypeAlias = Awaitable[None] | None
"""What a stage method returns: nothing; ``async def`` methods are awaited."""
Next: TypeAlias = Callable[[], Awaitable[Any]]
"""What ``around_execute`` calls to go on; once, unless the hook declares ``repeats = True``."""


class Hook:
    """Base of hooks (contract 90-93). Override the stages you need, ``def`` or ``async def``; the others cost nothing.

    Class attributes, all optional:

    * ``priority``: number, or a method returning one; higher runs earlier, later for ``did_*`` (contract 91).
    * ``tools``, ``tags``, ``tenants``: names that the hook is limited to; None means all.
    * ``on_failure``: ``"deny"`` lets a hook that raises fail the invocation; ``"ignore"`` records it and goes on.
      ``on_error="ignore"`` means the same, on a hook that does not use the stage of that name.
    * ``timeout``: seconds that one ``async def`` method may take, or None.
    * ``mode``: ``"shadow"`` runs the hook but only records what it would have done.
    * ``repeats``: its ``around_execute`` may call ``next`` more than once (a retry).
    * ``binds``: tokens that its ``will_bind_providers`` provides, so that the start-up check knows them.
    * ``releases_by_token``: its release is harmless without an acquire, so it also runs after an interrupted one.
    * ``effects``: the effects of tools that it is limited to; None means all.
    * ``leaves_out``: stages that it has a method for and takes no part in; an object may set its own.
    * ``guards``: whether it may refuse any call, so that a gate with a tool that may change the world needs nobody else
      who authorises. None, the default: it does, unless it has a ``filter`` or is limited to tenants.
    * ``concern``: what it is about (``"cache"``, ``"retry"``, ``"redact"``, …), for the linter.
    """

    priority: Any = 0
    tools: Collection[str] | None = None
    tags: Collection[str] | None = None
    tenants: Collection[str] | None = None
    on_failure: Literal["deny", "ignore"] = "deny"
    timeout: float | None = None
    mode: Literal["enforce", "shadow"] = "enforce"
    repeats: bool = False
    binds: Collection[Any] = ()
    releases_by_token: bool = False
    effects: Collection[str] | None = None
    leaves_out: Collection[Stage] = ()
    guards: bool | None = None
    concern: str | None = None

    def filter(self, ctx: InvokeContext) -> bool | Awaitable[bool]:
        """Whether the hook takes part in this invocation (contract 92); an error here fails closed (C22)."""
        return True

    def will_create_invoke_context(self, ctx: InvokeContext) -> Step:
        """Last chance to shape the context; session and global providers can be read."""

    def did_create_invoke_context(self, ctx: InvokeContext) -> Step:
        """The context stands."""

    def will_bind_providers(self, ctx: InvokeContext) -> Any:
        """Bind request providers, by ``ctx.bind_provider`` or by returning a mapping or pairs (contract 89)."""

    def will_authorize(self, ctx: InvokeContext) -> Step:
        """May this user call this tool at all? ``ctx.abort`` says no."""

    def will_check_consent(self, ctx: InvokeContext) -> Step:
        """Has the user agreed? ``ctx.respond`` may carry the challenge."""

    def will_check_feature_flags(self, ctx: InvokeContext) -> Step:
        """Is the tool switched on?"""

    def will_acquire_quota(self, ctx: InvokeContext) -> Step:
        """Take quota; returning means holding it until ``did_release_quota``."""

    def will_acquire_semaphore(self, ctx: InvokeContext) -> Step:
        """Take a place; returning means holding it until ``did_release_semaphore``."""

    def will_parse_input(self, ctx: InvokeContext) -> Step:
        """``ctx.input`` is raw; the runtime parses after the last hook."""

    def will_validate_input(self, ctx: InvokeContext) -> Step:
        """``ctx.input`` is parsed; the runtime validates after the last hook."""

    def will_normalize_input(self, ctx: InvokeContext) -> Step:
        """``ctx.input`` is valid; changes are validated again, then it is frozen."""

    def will_authorize_input(self, ctx: InvokeContext) -> Step:
        """Policies on the frozen arguments; approval is the last step here."""

    def will_redact_input(self, ctx: InvokeContext) -> Step:
        """Write ``ctx.masked_input``: what logs, audit and spans may see."""

    def will_inject_secrets(self, ctx: InvokeContext) -> Step:
        """Bind secrets as request providers; they never enter ``ctx.input``."""

    def will_read_cache(self, ctx: InvokeContext) -> Step:
        """``ctx.respond(value)`` on a hit."""

    def did_cache_hit(self, ctx: InvokeContext) -> Step:
        """A cache hook responded or set ``ctx.cache_hit``."""

    def did_cache_miss(self, ctx: InvokeContext) -> Step:
        """A cache hook looked and found nothing."""

    async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
        """Wrap the attempt; call ``next()`` to go on and return the output (contract 93)."""
        return await next()

    def on_retry(self, ctx: InvokeContext) -> Step:
        """Before attempt N > 1."""

    def will_execute(self, ctx: InvokeContext) -> Step:
        """Just before the tool runs, once an attempt."""

    def did_execute(self, ctx: InvokeContext) -> Step:
        """The tool returned."""

    def on_give_up(self, ctx: InvokeContext) -> Step:
        """The last attempt failed."""

    def will_write_cache(self, ctx: InvokeContext) -> Step:
        """``ctx.output`` is raw; also runs on hits: see ``ctx.executed``."""

    def will_redact_output(self, ctx: InvokeContext) -> Step:
        """Take out what this reader may not see."""

    def will_validate_output(self, ctx: InvokeContext) -> Step:
        """The runtime validates after the last hook."""

    def will_transform_output(self, ctx: InvokeContext) -> Step:
        """Shape the output for the reader."""

    def on_error(self, ctx: InvokeContext) -> Step:
        """``ctx.error`` is set; ``raise Other() from ctx.error`` replaces it (C18)."""

    def will_audit(self, ctx: InvokeContext) -> Step:
        """Write the record of this invocation."""

    def did_audit(self, ctx: InvokeContext) -> Step:
        """The record is written."""

    def on_metrics(self, ctx: InvokeContext) -> Step:
        """``ctx.duration`` is known."""

    def did_release_semaphore(self, ctx: InvokeContext) -> Step:
        """Give the place back; runs once for each acquire that returned."""

    def did_release_quota(self, ctx: InvokeContext) -> Step:
        """Give the quota back; runs once for each acquire that returned."""

    def will_finalize_invoke(self, ctx: InvokeContext) -> Step:
        """Always last, on every path."""


_STAGE_NAMES = frozenset(stage.value for stage in Stage)
_KNOWN = frozenset(dir(Hook))
_PREFIXES = ("will_", "did_", "around_", "on_")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class FunctionHook(Hook):
    """One function put on one stage by ``on``; still callable."""

    def __init__(self, stage: Stage, call: Callable[..., Any], options: dict[str, Any]) -> None:
        self.stage = stage
        self.call = call
        self.__name__ = getattr(call, "__name__", type(call).__name__)
        self.__doc__ = call.__doc__
        for name, value in options.items():
            setattr(self, "on_failure" if name == "on_error" else name, value)
        setattr(self, stage.value, call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.call(*args, **kwargs)


_OPTIONS = frozenset(name for name in vars(Hook) if not name.startswith("_") and name not in _STAGE_NAMES) | {
    "on_error"
}


def on(stage: Stage | str, **options: Any) -> Callable[[Callable[..., Any]], FunctionHook]:
    """Put a function on one stage: ``@on(Stage.WILL_AUTHORIZE, priority=10, tags={"money"})``.

    The options are the class attributes of ``Hook``, and ``filter``.

    Raises:
        HookError: no such stage or option; the message names the nearest one.
    """
    known = as_stage(stage)
    for name in options:
        if name not in _OPTIONS:
            raise HookError(f"@on has no option {name!r}{did_you_mean(name, _OPTIONS)}")

    def decorate(call: Callable[..., Any]) -> FunctionHook:
        return FunctionHook(known, call, options)

    return decorate


def as_stage(name: Stage | str) -> Stage:
    """A stage by name; raises ``HookError`` with the nearest name (contract C33)."""
    try:
        return Stage(name)
    except ValueError:
        raise HookError(f"there is no stage {name!r}{did_you_mean(str(name), _STAGE_NAMES)}") from None


@lru_cache(maxsize=4096)
def _class_stages(cls: type) -> tuple[Stage, ...]:
    for name in dir(cls):
        meant = _CAPITAL.sub("_", name).lower()  # willAuthorize, as the documents spell it
        if name not in _KNOWN and _resembles_a_stage(meant) and callable(getattr(cls, name)):
            raise HookError(f"{cls.__qualname__}.{name} is not a stage{did_you_mean(meant, _STAGE_NAMES)}; rename it")
    return tuple(stage for stage in Stage if _implements(cls, stage))


def _resembles_a_stage(name: str) -> bool:
    return name.startswith(_PREFIXES) or bool(get_close_matches(name, _STAGE_NAMES, 1, cutoff=0.93))


def _implements(cls: type, stage: Stage) -> bool:
    own = getattr(cls, stage.value, None)
    return callable(own) and own is not getattr(Hook, stage.value)


def stages_of(hook: Any) -> tuple[Stage, ...]:
    """The stages that a hook object or hook class implements and does not leave out (contract 95, C1e).

    Raises:
        HookError: a method looks like a stage and is none: a typo would be a silent hole (C33).
    """
    if isinstance(hook, FunctionHook):
        return (hook.stage,)
    cls: Any = hook if inspect.isclass(hook) else type(hook)
    stages, left_out = _class_stages(cls), getattr(hook, "leaves_out", ())
    return tuple(stage for stage in stages if stage not in left_out) if left_out else stages


def not_overridden(hook: Hook, cls: type[Hook], stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Those of *stages* whose method is still the one of *cls*: for ``leaves_out``, so that a subclass's own is run."""
    return tuple(stage for stage in stages if getattr(type(hook), stage.value) is getattr(cls, stage.value))


def name_of(hook: Any) -> str:
    """How a hook is called in plans, traces and errors."""
    return str(getattr(hook, "__name__", None) or type(hook).__name__)
