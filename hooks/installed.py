"""Hooks of other packages, found by name in the entry point group ``callgate.hooks``."""

from __future__ import annotations

from typing import Any

from callgate.errors import HookError
from callgate.providers.installed import Unusable, load_installed

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
    return load_installed(GROUP, name, "hook", HookError, _callable)


def _callable(hook: object) -> object:
    if not callable(hook):
        raise Unusable(f"it is a {type(hook).__name__}, not a class or a function that returns a hook")
    return hook
