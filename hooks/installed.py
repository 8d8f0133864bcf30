"""Hooks of other packages, found by name in the entry point group ``callgate.hooks``."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from callgate.errors import HookError
from callgate.tools.naming import did_you_mean

GROUP = "callgate.hooks"


def load(name: str) -> Any:
    """Load a hook of another package: the hook class, or the function that makes the hook.

    The package declares it in its ``pyproject.toml``::

        [project.entry-points."callgate.hooks"]
        geofence = "acme_geofence:Geofence"

    An application then writes ``callgate.hooks.load("geofence")("EU")``.

    Raises:
        HookError: no installed package declares the name, several do, its import fails, or it cannot be called.
    """
    known = entry_points(group=GROUP)
    found: dict[str, EntryPoint] = {point.value: point for point in known if point.name == name}
    if not found:
        names = sorted({point.name for point in known})
        raise HookError(
            f"no installed package declares a hook {name!r} in the entry point group {GROUP!r}"
            f"{did_you_mean(name, names) if names else ''}; install the package that declares it"
        )
    if len(found) > 1:
        owners = ", ".join(sorted(f"{_package(point)} ({value})" for value, point in found.items()))
        raise HookError(f"several packages declare a hook {name!r}: {owners}; import the class from one of them")
    (point,) = found.values()
    try:
        hook = point.load()
    except Exception as error:
        raise HookError(
            f"the hook {name!r} of {_package(point)} cannot be imported from {point.value!r}: "
            f"{type(error).__name__}: {error}; reinstall the package and its dependencies"
        ) from error
    if not callable(hook):
        raise HookError(
            f"the hook {name!r} of {_package(point)} is a {type(hook).__name__}; the entry point has to name a class, "
            "or a function that returns a hook"
        )
    return hook


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else point.dist.name
