"""Settings of stock hooks: the options that all of them take, and the checks that they share."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import timedelta
from fractions import Fraction
from functools import wraps
from os import PathLike
from typing import Any, Literal, TypedDict, TypeVar, cast, get_args

from callgate.errors import HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.providers.kinds import annotations_of, fault_of_function, fault_of_kind
from callgate.providers.stores.base import CacheStore, Store
from callgate.tools.limits import fault_of_seconds
from callgate.tools.naming import did_you_mean

T = TypeVar("T")
Init = TypeVar("Init", bound=Callable[..., None])

OTHER_NAMES: Mapping[str, frozenset[str]] = {
    setting: frozenset(names.split())
    for setting, names in {
        "by": "key key_func per scope",
        "decider_timeout": "time_limit",
        "default": "missing default_value",
        "entry_tags": "cache_tags",
        "expires": "wait timeout",
        "failure_threshold": "failures fail_max max_failures threshold limit",
        "flag_timeout": "time_limit",
        "limit": "limits places permits rate max max_calls max_concurrency max_concurrent size value",
        "max_attempts": "attempts tries max_tries retries max_retries stop times",
        "max_bytes": "limit size max_size max_length",
        "max_probes": "half_open probes",
        "max_retry_after": "patience",
        "names": "keys fields name",
        "on": "exceptions errors retry_on expected_exception",
        "on_provider_failure": "unreachable",
        "open_for": "recovery_timeout reset_timeout timeout",
        "queue": "max_queue queue_size max_waiting",
        "queue_timeout": "wait",
        "scope": "scopes",
        "seconds": "timeout limit",
        "source": "client flags",
        "sources": "secrets",
        "ttl": "expire expiry max_age seconds timeout",
        "wait": "backoff delay",
        "write_timeout": "write_limit time_limit",
    }.items()
}
"""By setting, names that other libraries use for it. A refused name is answered with the setting to write."""


class HookOptions(TypedDict, total=False):
    """The class attributes of ``Hook`` that every stock hook takes as keyword arguments."""

    priority: float
    tools: Collection[str] | None
    tags: Collection[str] | None
    tenants: Collection[str] | None
    effects: Collection[str] | None
    timeout: float | None
    hard_deadline: bool | None
    on_failure: Literal["deny", "ignore"]
    mode: Literal["enforce", "shadow"]
    filter: Callable[[InvokeContext], bool | Awaitable[bool]]


def checked(init: Init) -> Init:
    """Decorate the ``__init__`` of a stock hook: an unknown or missing setting is refused with the line to write.

    Raises (the decorated method):
        TypeError: an unknown keyword argument, or a required setting is missing.
    """
    hook = init.__qualname__.split(".")[0]
    parameters = list(inspect.signature(init).parameters.values())[1:]
    settings = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    takes_options = len(settings) < len(parameters)
    known = {*settings, *(HookOptions.__annotations__ if takes_options else ())}
    first = parameters[0]
    several = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    by_position = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    places: float = float("inf") if several else len(by_position)

    @wraps(init)
    def check_and_init(self: object, *args: object, **given: object) -> None:
        for name, value in given.items():
            if name not in known or (name == first.name and first.kind is first.VAR_POSITIONAL):
                write = _quota(args, given) if hook == "Quota" and name in _LIMITING else None
                write = write or _instead(hook, name, value, settings, known)
                raise TypeError(f"{hook} has no setting {name!r}{write}")
        if len(args) > places:
            write = _quota(args, given) if hook == "Quota" else None
            write = write or f"; write the others by name: {hook}(..., {[*settings, 'priority'][len(by_position)]}=...)"
            takes = f"{places} setting{'s' * (places != 1)} by position"
            raise TypeError(f"{hook} takes {takes}, and {len(args)} were given{write}")
        if not args and first.default is first.empty and first.kind is first.POSITIONAL_OR_KEYWORD:
            _require(hook, first.name, given)
        placed = [(first if first.kind is first.VAR_POSITIONAL else by_position[at]).name for at in range(len(args))]
        named = [*zip(placed, args, strict=True), *given.items()]
        own = annotations_of(init)
        _refuse(hook, {**annotations_of(HookOptions), **own}, named, fault_of_function)
        init(self, *args, **given)
        _refuse(hook, own, named, _fault_of_setting)  # last: the hook's own checks say more
        if type(self).__init__ is check_and_init:  # a subclass may have settings of its own
            vars(self)["made_with"] = named  # for the linter

    return cast("Init", check_and_init)


def _refuse(
    hook: str,
    kinds: Mapping[str, object],
    named: Iterable[tuple[str, object]],
    fault_of: Callable[[object, object], str | None],
) -> None:
    """Refuse a setting of another kind than its annotation, such as ``filter=lambda: True`` or ``shared="false"``."""
    for name, value in named:
        if (fault := fault_of(value, kinds.get(name, Any))) is not None:
            raise HookError(f"{hook}: {name} {fault}")


_STORES: tuple[object, ...] = (Store, CacheStore)


def _fault_of_setting(value: object, kind: object) -> str | None:
    """Check a setting against its annotation. A store may lack parts that the hook never uses; a built-in type is no store."""
    if (fault := fault_of_kind(value, kind)) is None:
        return None
    of_store = any(one in _STORES for one in get_args(kind) or (kind,))
    is_no_store = isinstance(value, PathLike) or type(value).__module__ == "builtins"  # an address, a number, a class
    return None if of_store and not is_no_store else fault


def _instead(hook: str, name: str, value: object, settings: list[str], known: Collection[str]) -> str:
    meant = next((one for one in settings if name == one or name in OTHER_NAMES.get(one, ())), None)
    if meant is None:
        return did_you_mean(name, known)
    if meant == "wait" and not callable(value):
        return f"; write wait=lambda _: {_in_code(value)}"
    if meant != settings[0]:
        return f"; write {meant}={_in_code(value)}{_TOGETHER.get(meant, '')}"
    if meant == "names" and isinstance(value, list | tuple | set | frozenset):
        return f"; write {hook}({', '.join(map(_in_code, cast('Collection[object]', value)))})"
    return f"; write {hook}({_in_code(value)})"


_TOGETHER = {"queue": ", queue_timeout=1.0", "queue_timeout": ", queue=10"}
"""Settings that are refused alone, with the other that they need."""


def _in_code(value: object) -> str:
    """Return a value as a developer writes it: classes and functions by name."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_in_code, value))}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_in_code(key)}: {_in_code(item)}' for key, item in value.items())}}}"
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name if name.isidentifier() else "..."
    text = repr(value)
    return text if "<" not in text else "..."


_AMOUNTS = OTHER_NAMES["limit"] | {"limit", "amount", "calls", "count", "requests", "times"}
_WINDOWS = {"per_second": "second", "per_minute": "minute", "per_hour": "hour", "per_day": "day"}
_SECONDS = frozenset({"interval", "per", "period", "seconds", "time_window", "window"})


_LIMITING = _AMOUNTS | _SECONDS | _WINDOWS.keys()


def _quota(args: tuple[object, ...], given: Mapping[str, object]) -> str | None:
    """Return the limit to write for an amount and a window, which other rate limiters take as two settings; else None."""
    amount: object = next((value for name, value in given.items() if name in _AMOUNTS), args[0] if args else None)
    named = next((name for name in given if name in _WINDOWS), None)
    window: object = next(
        (value for name, value in given.items() if name in _SECONDS), args[1] if len(args) > 1 else None
    )
    if named is not None:
        return f"; write Quota({f'{given[named]}/{_WINDOWS[named]}'!r})"
    if amount is None and window is None:
        return None
    if isinstance(amount, str) and "/" in amount:
        return f"; write Quota({amount!r})"
    if isinstance(window, timedelta):
        window = window.total_seconds()
    number = amount if isinstance(amount, int) else 100
    if isinstance(window, int | float):  # a window has whole seconds
        exact = Fraction(window).limit_denominator(1000)
        return f"; write Quota({f'{number * exact.denominator}/{exact.numerator}s'!r})"
    named = window if isinstance(window, str) else "minute"
    return f"; write Quota({f'{number}/{named}'!r})"


def _require(hook: str, setting: str, given: Mapping[str, object]) -> None:
    if setting in given:
        return
    for name, value in given.items():
        if name in OTHER_NAMES.get(setting, ()):
            raise TypeError(f"{hook} takes its {setting} first; write {hook}({_in_code(value)})")
    raise TypeError(f"{hook} needs its {setting} as the first argument")


def set_options(hook: Hook, options: HookOptions) -> None:
    """Put the options that every hook has on a hook object; ``checked`` has refused all other names."""
    for name, value in options.items():
        setattr(hook, name, value)


# ---------------------------------------------------------------------- values


def is_number(value: Any, *, least: float, whole: bool = False) -> bool:
    """True for a finite number that is at least *least*; False for True and False."""
    kinds: Any = int if whole else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool) and least <= value < float("inf")


def check_seconds(hook: str, name: str, value: object, *, least: float | None = None) -> None:
    """Check a time in seconds; without *least* it has to be above 0.

    Raises:
        HookError: not a finite number of seconds, or too few of them.
    """
    if isinstance(value, timedelta):
        raise HookError(f"{hook}: {name} is a timedelta; times are seconds, so write {name}={value.total_seconds():g}")
    if (fault := fault_of_seconds(value, least=least, none=False)) is not None:
        raise HookError(f"{hook}: {name} {fault}")


def check_count(hook: str, name: str, value: Any, *, least: int = 1, maximum: int | None = None) -> None:
    """Check a whole number.

    Raises:
        HookError: not a whole number, or out of range.
    """
    if not is_number(value, least=least, whole=True) or (maximum is not None and value > maximum):
        bound = f"at least {least}" if maximum is None else f"from {least} to {maximum}"
        raise HookError(f"{hook}: {name} is {value!r}; give a whole number, {bound}")


def check_choice(hook: str, name: str, value: object, choices: Collection[str]) -> None:
    """Check a setting that takes one of a few words.

    Raises:
        HookError: another value.
    """
    if value not in choices:
        raise HookError(f"{hook}: {name} is {value!r}; choose {' or '.join(map(repr, choices))}")


def selectors_of(hook: Hook) -> str:
    """Text for the tools, tags, tenants and effects of a hook. It is the same in every process."""
    given = [hook.tools, hook.tags, hook.tenants, *([] if hook.effects is None else [hook.effects])]
    return " ".join("*" if one is None else "+".join(sorted(one)) for one in given)


MOST_TOOLS = 4_096
"""Tools of which a hook remembers something. Clients bring tools, with names of their choice."""


def keep(known: dict[str, T], tool: str, value: T) -> T:
    """Remember a value by the name of a tool; a dict of ``MOST_TOOLS`` begins anew."""
    if len(known) >= MOST_TOOLS:
        known.clear()
    known[tool] = value
    return value
