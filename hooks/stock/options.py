"""What every stock hook takes beside its own settings: the options of ``Hook``, as keywords."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Literal, TypedDict

from callgate.errors import HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.tools.naming import did_you_mean


class HookOptions(TypedDict, total=False):
    """The class attributes of ``Hook`` that may be given to one object; see there."""

    priority: float
    tools: Collection[str] | None
    tags: Collection[str] | None
    tenants: Collection[str] | None
    timeout: float | None
    mode: Literal["enforce", "shadow"]
    filter: Callable[[InvokeContext], bool | Awaitable[bool]]


def set_options(hook: Hook, options: HookOptions) -> None:
    """Put options on a hook object.

    Raises:
        HookError: there is no such option; the message names the nearest one.
    """
    for name, value in options.items():
        if name not in HookOptions.__annotations__:
            known = HookOptions.__annotations__
            raise HookError(f"{type(hook).__name__} has no option {name!r}{did_you_mean(name, known)}")
        setattr(hook, name, value)


def is_number(value: Any, *, least: float, whole: bool = False) -> bool:
    """Whether a setting is a finite number, not below *least*; True and False are none."""
    kinds: Any = int if whole else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool) and least <= value < float("inf")


def selectors_of(hook: Hook) -> str:
    """What a hook is limited to, as text: the same in every process."""
    return " ".join("*" if one is None else "+".join(sorted(one)) for one in (hook.tools, hook.tags, hook.tenants))
