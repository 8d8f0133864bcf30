"""The API for hook authors: subclass ``Hook`` and override methods named after stages, or put ``@on`` on a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeAlias

from callgate.errors import HookError
from callgate.hooks.context import InvokeContext
from callgate.hooks.remembered import remembered
from callgate.hooks.stages import Stage
from callgate.tools.naming import did_you_mean

Step: TypeAlias = Awaitable[None] | None
"""The return type of a stage method: no value. The runtime awaits ``async def`` methods."""


class Next(Protocol):
    """The ``next`` of ``around_execute``: ``await next()`` or ``await next(ctx)`` continues the call.

    A hook may call it once, unless the hook declares ``repeats = True``.
    """

    def __call__(self, ctx: InvokeContext | None = None, /) -> Awaitable[Any]:
        """Run the next wrapper, or the tool, and return the output."""
        ...


class Hook:
    """Base class of hooks. Override the stages you need, with ``def`` or ``async def``; the others cost nothing.

    Class attributes, all optional:

    * ``priority``: a number, or a method that returns a number. Higher runs earlier, and later for ``did_*``.
    * ``tools``, ``tags``, ``tenants``: names that limit the hook; None means all.
    * ``on_failure``: with ``"deny"``, a hook that raises fails the invocation; ``"ignore"`` records the error.
      ``on_error="ignore"`` means the same, on a hook without a method for that stage.
    * ``timeout``: the time limit of one ``async def`` method in seconds, or None.
    * ``hard_deadline``: True abandons a method that does not end within 0.25 s after the deadline of the call; it keeps
      the leases of the call until it ends. None takes what ``Options`` of the gate say.
    * ``mode``: ``"shadow"`` runs the hook, records its verdict, and does not enforce it. A stage that takes longer than
      ``timeout``, or 0.25 s without one, is left behind. Its time does not count for the deadlines of the call.
    * ``repeats``: ``around_execute`` may call ``next`` more than once, as a retry does.
    * ``binds``: tokens that ``will_bind_providers`` provides, for the start-up check.
    * ``releases_by_token``: the release is harmless without an acquire, so it also runs after an interrupted acquire.
    * ``effects``: effects of tools that limit the hook; None means all.
    * ``leaves_out``: stages that the hook implements but skips; an instance may set its own.
    * ``whole``: True refuses the hook in ``{stage: [hook]}`` unless it is listed under all of its stages; ``by_stage`` of
      ``callgate.hooks`` does so. Stock hooks that need all of their stages set it.
    * ``runs_nowhere``: the reason why the hook leaves out all of its stages, for ``explain`` and the linter.
    * ``guards``: True if the hook may refuse any call. A gate needs such a hook for tools that change something.
      None, the default, means True unless the hook has a ``filter`` or is limited to tenants.
    * ``concern``: the hook's concern (``"cache"``, ``"retry"``, ``"redact"``, …), for the linter.
    """

    priority: Any = 0
    tools: Collection[str] | None = None
    tags: Collection[str] | None = None
    tenants: Collection[str] | None = None
    on_failure: Literal["deny", "ignore"] = "deny"
    timeout: float | None = None
    hard_deadline: bool | None = None
    mode: Literal["enforce", "shadow"] = "enforce"
    repeats: bool = False
    binds: Collection[object] = ()
    releases_by_token: bool = False
    effects: Collection[str] | None = None
    leaves_out: Collection[Stage] = ()
    whole: bool = False
    runs_nowhere: str | None = None
    guards: bool | None = None
    concern: str | None = None

    def filter(self, ctx: InvokeContext) -> bool | Awaitable[bool]:
        """Return True if the hook takes part in this invocation. An error, or a value that is no bool, denies the call."""
        return True

    def will_create_invoke_context(self, ctx: InvokeContext) -> Step:
        """Shape the context before all other hooks see it: the last chance. Session and global providers can be read."""

    def did_create_invoke_context(self, ctx: InvokeContext) -> Step:
        """Run when the context is complete."""

    def will_bind_providers(self, ctx: InvokeContext) -> Any:
        """Bind request providers, by ``ctx.bind_provider`` or by returning a mapping or pairs."""

    def will_authorize(self, ctx: InvokeContext) -> Step:
        """Check that this user may call this tool; ``ctx.abort`` denies the call."""

    def will_check_consent(self, ctx: InvokeContext) -> Step:
        """Check the user's consent; ``ctx.respond`` may return the challenge."""

    def will_check_feature_flags(self, ctx: InvokeContext) -> Step:
        """Check that the tool is enabled."""

    def will_acquire_quota(self, ctx: InvokeContext) -> Step:
        """Acquire quota. A hook that returns holds it until ``did_release_quota``."""

    def will_acquire_semaphore(self, ctx: InvokeContext) -> Step:
        """Acquire a permit. A hook that returns holds it until ``did_release_semaphore``."""

    def will_parse_input(self, ctx: InvokeContext) -> Step:
        """Change the raw ``ctx.input``; the runtime parses it after the last hook."""

    def will_validate_input(self, ctx: InvokeContext) -> Step:
        """Change the parsed ``ctx.input``; the runtime validates it after the last hook."""

    def will_normalize_input(self, ctx: InvokeContext) -> Step:
        """Normalize the valid ``ctx.input``. The runtime validates changes again, then freezes the input."""

    def will_authorize_input(self, ctx: InvokeContext) -> Step:
        """Apply policies to the frozen arguments; approval is the last step here."""

    def will_redact_input(self, ctx: InvokeContext) -> Step:
        """Write ``ctx.masked_input``: the arguments that logs, audit rows and spans may show."""

    def will_inject_secrets(self, ctx: InvokeContext) -> Step:
        """Bind secrets as request providers; they never enter ``ctx.input``."""

    def will_read_cache(self, ctx: InvokeContext) -> Step:
        """Read the cache; call ``ctx.respond(value)`` on a hit."""

    def did_cache_hit(self, ctx: InvokeContext) -> Step:
        """Run after a cache hook responded or set ``ctx.cache_hit``."""

    def did_cache_miss(self, ctx: InvokeContext) -> Step:
        """Run after a cache hook found no entry."""

    async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
        """Wrap the attempt; ``await next()`` continues the call and returns the output."""
        return await next()

    def on_retry(self, ctx: InvokeContext) -> Step:
        """Run before each attempt after the first."""

    def will_execute(self, ctx: InvokeContext) -> Step:
        """Run just before the tool, once per attempt."""

    def did_execute(self, ctx: InvokeContext) -> Step:
        """Run after the tool returned."""

    def on_give_up(self, ctx: InvokeContext) -> Step:
        """Run after the last attempt failed."""

    def will_write_cache(self, ctx: InvokeContext) -> Step:
        """Write the cache. ``ctx.output`` is raw. The stage also runs on hits: see ``ctx.executed``."""

    def will_redact_output(self, ctx: InvokeContext) -> Step:
        """Remove data that this caller may not see."""

    def will_validate_output(self, ctx: InvokeContext) -> Step:
        """Check the output; the runtime validates it after the last hook."""

    def will_transform_output(self, ctx: InvokeContext) -> Step:
        """Transform the output for the caller."""

    def on_error(self, ctx: InvokeContext) -> Step:
        """Handle ``ctx.error``; ``raise Other() from ctx.error`` replaces it."""

    def will_audit(self, ctx: InvokeContext) -> Step:
        """Write the record of this invocation."""

    def did_audit(self, ctx: InvokeContext) -> Step:
        """Run after the record is written."""

    def on_metrics(self, ctx: InvokeContext) -> Step:
        """Record metrics; ``ctx.duration`` is set."""

    def did_release_semaphore(self, ctx: InvokeContext) -> Step:
        """Release the permit; runs once for each acquire that returned."""

    def did_release_quota(self, ctx: InvokeContext) -> Step:
        """Release the quota; runs once for each acquire that returned."""

    def will_finalize_invoke(self, ctx: InvokeContext) -> Step:
        """Run last, on every path."""


_STAGE_NAMES = frozenset(stage.value for stage in Stage)
_KNOWN = frozenset(dir(Hook))
_PREFIXES = ("will_", "did_", "around_", "on_")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class FunctionHook(Hook):
    """A hook that ``on`` makes from one function for one stage; it is still callable."""

    def __init__(self, stage: Stage, call: Callable[..., object], options: dict[str, object]) -> None:
        self.stage = stage
        self.call = call
        self.__name__ = getattr(call, "__name__", type(call).__name__)
        self.__doc__ = call.__doc__
        for name, value in options.items():
            setattr(self, "on_failure" if name == "on_error" else name, value)
        setattr(self, stage.value, call)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the function itself."""
        return self.call(*args, **kwargs)


_OPTIONS = frozenset(name for name in vars(Hook) if not name.startswith("_") and name not in _STAGE_NAMES) | {
    "on_error"
}


def on(stage: Stage | str, **options: object) -> Callable[[Callable[..., object]], FunctionHook]:
    """Put a function on one stage: ``@on(Stage.WILL_AUTHORIZE, priority=10, tags={"money"})``.

    The options are the class attributes of ``Hook``, and ``filter``.

    Raises:
        HookError: the stage or option does not exist; the message names the nearest match.
    """
    if callable(stage):
        raise HookError(
            f"@on takes a stage; write @on('will_authorize') above {getattr(stage, '__name__', 'the function')}"
        )
    known = as_stage(stage)
    for name in options:
        if name not in _OPTIONS:
            raise HookError(f"@on has no option {name!r}{did_you_mean(name, _OPTIONS)}")

    def decorate(call: Callable[..., object]) -> FunctionHook:
        return FunctionHook(known, call, options)

    return decorate


def as_stage(name: Stage | str) -> Stage:
    """Return the stage of this name; raise ``HookError`` with the nearest name if it does not exist."""
    try:
        return Stage(name)
    except ValueError:
        raise HookError(f"there is no stage {name!r}{did_you_mean(str(name), _STAGE_NAMES)}") from None


@remembered
def _class_stages(cls: type) -> tuple[Stage, ...]:
    for name in dir(cls):
        meant = _CAPITAL.sub("_", name).lower()  # accepts camel case such as willAuthorize
        if name not in _KNOWN and _resembles_a_stage(meant) and callable(getattr(cls, name)):
            raise HookError(f"{cls.__qualname__}.{name} is not a stage{did_you_mean(meant, _STAGE_NAMES)}; rename it")
    return tuple(stage for stage in Stage if _implements(cls, stage))


def _resembles_a_stage(name: str) -> bool:
    return name.startswith(_PREFIXES) or bool(get_close_matches(name, _STAGE_NAMES, 1, cutoff=0.93))


def _implements(cls: type, stage: Stage) -> bool:
    own = getattr(cls, stage.value, None)
    return callable(own) and own is not getattr(Hook, stage.value)


def stages_of(hook: object) -> tuple[Stage, ...]:
    """Return the stages that a hook object or hook class implements and does not leave out.

    Raises:
        HookError: a method's name resembles a stage. The runtime would never call such a typo.
    """
    if isinstance(hook, FunctionHook):
        return (hook.stage,)
    cls: Any = hook if inspect.isclass(hook) else type(hook)
    stages, left_out = _class_stages(cls), getattr(hook, "leaves_out", ())
    if isinstance(left_out, property):
        raise HookError(f"{cls.__name__} is a class, and its objects differ in their stages; write {cls.__name__}()")
    return tuple(stage for stage in stages if stage not in left_out) if left_out else stages


def not_overridden(hook: Hook, cls: type[Hook], stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the *stages* whose method is still that of *cls*, for ``leaves_out``; a subclass's override runs."""
    return tuple(stage for stage in stages if getattr(type(hook), stage.value) is getattr(cls, stage.value))


def name_of(hook: object) -> str:
    """Return the hook's name in plans, traces and errors."""
    return str(getattr(hook, "__name__", None) or type(hook).__name__)
