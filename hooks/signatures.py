"""Checks of the signatures that a hook is called with, at registration rather than at the first call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from callgate.errors import HookError
from callgate.hooks.remembered import remembered
from callgate.hooks.stages import Stage
from callgate.providers.kinds import fault_of_call
from callgate.providers.markers import find_injected

CALLED_WITH: Mapping[str, tuple[str, ...]] = {
    **{stage.value: ("ctx",) for stage in Stage},
    "around_execute": ("ctx", "next"),
    "filter": ("ctx",),
    "may_see": ("user", "definition"),
    "approval_for": ("ctx",),
    "note_figures": ("figures",),
    "note_hydration": ("host", "record"),
    "reconcile": ("tenant", "effect"),
}
"""What the gate gives to each method of a hook, by position."""


def check_method(hook: object, name: str, method_name: str) -> None:
    """Check that a method of a hook takes what the gate calls it with; see ``CALLED_WITH``.

    Raises:
        HookError: it is not callable, a parameter is missing, parameters are in another order, or one without a default
            is not marked with ``Provide``.
    """
    own = CALLED_WITH[method_name]
    prefix = "async def" if method_name == "around_execute" else "def"
    method = getattr(hook, method_name)
    if not callable(method):
        raise HookError(
            f"{name}.{method_name} is of type {type(method).__name__}, and the gate calls it: write `{prefix} "
            f"{method_name}(self, {', '.join(own)})`, or leave it out"
        )
    if inspect.ismethod(method):
        method, own = method.__func__, ("self", *own)
    elif inspect.isclass(hook) and not isinstance(inspect.getattr_static(hook, method_name), staticmethod):
        own = ("self", *own)
    if (found := _fault(method, own)) is not None:
        line = ", ".join(own)
        raise HookError(
            f"{name}.{method_name}{found} cannot be called with ({line}): write `{prefix} {method_name}({line})`; mark "
            "further parameters, as in Annotated[Db, Provide[Db]]"
        )


def check_constructor(cls: object, name: str) -> None:
    """Check that a hook class can be made without arguments, and for each call.

    Raises:
        HookError: its constructor has a parameter without a default that is not marked with ``Provide``, or its state is that
            of many calls, as in ``CircuitBreaker``.
    """
    if found := _fault(cls, ()) or (getattr(cls, "keeps_state", False) and "settings that hold for many calls"):
        raise HookError(
            f"{name} is a hook class, made without arguments for each call, and its constructor takes {found}: register "
            f"an object, {name}(...), or mark the parameters, as in Annotated[Db, Provide[Db]]"
        )


@remembered
def _fault(call: Any, own: tuple[str, ...]) -> str | None:
    """Return the parameters of *call* if it cannot be called with *own* and its marked parameters, else None."""
    try:
        signature = inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):  # such as a method in C
        return None
    few = len(signature.parameters) <= len(own) and "Provide" not in str(signature)  # an alias may stand for a mark
    return fault_of_call(call, own, () if few else [one.name for one in find_injected(call)])
