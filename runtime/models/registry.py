"""The wires by name: Callgate's own, and those that other packages register as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

from callgate.runtime.models.wire.codec import Codec, WireError

WIRES_GROUP = "callgate.wires"
"""The group of entry points. A name in it leads to a ``Codec``, or to a module that has one as ``CODEC``."""

_MODULES = {
    "anthropic": "anthropic",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai_chat": "openai_chat",
    "openai_compat": "openai_chat",
    "openai_responses": "openai_responses",
    "openai_responses_compat": "openai_responses",
}
_MEMBERS = ("name", "translate", "calls", "results", "reply", "decoder", "request")


def codecs() -> tuple[str, ...]:
    """The names of all wires, sorted: Callgate's own and those of installed packages. Aliases are left out."""
    return tuple(sorted({*_MODULES.values(), *registered()}))


def codec(name: str) -> Codec:
    """Return the codec of a wire; it is loaded at its first use.

    ``openai`` and ``openai_compat`` are aliases of ``openai_chat``, ``openai_responses_compat`` of
    ``openai_responses``. Another package adds a wire by an entry point in the group ``callgate.wires``; it cannot
    replace a wire of Callgate.

    Raises:
        WireError: no wire has this name, or the package that registered it is broken.
    """
    module = _MODULES.get(name)
    if module is None:
        return of_package(name)
    found: Codec = import_module(f"callgate.runtime.models.{module}").CODEC
    return found


@cache
def registered() -> Mapping[str, tuple[metadata.EntryPoint, ...]]:
    """The entry points of installed packages, by name. The metadata of packages is read once."""
    found: dict[str, tuple[metadata.EntryPoint, ...]] = {}
    for point in metadata.entry_points(group=WIRES_GROUP):
        if point.name not in _MODULES:
            found[point.name] = (*found.get(point.name, ()), point)
    return found


@cache
def of_package(name: str) -> Codec:
    """Load the codec that another package registered under *name*; see ``codec``."""
    points = list(registered().get(name, ()))
    if not points:
        near = [f"; did you mean {found!r}?" for found in get_close_matches(name, codecs(), n=1)]
        raise WireError(
            f"no codec {name!r}{near[0] if near else ''}; known: {', '.join(codecs())}. "
            f"Another package adds a wire by an entry point in the group {WIRES_GROUP!r}."
        )
    packages = [point.dist.name if point.dist else point.value for point in points]
    if len(points) > 1:
        raise WireError(f"the wire {name!r} is registered by {' and '.join(sorted(packages))}; uninstall all but one")
    try:
        found: Any = points[0].load()
        made: Any = found.CODEC if isinstance(found, ModuleType) else found
    except Exception as error:
        raise _broken(name, packages[0], points[0].value, f"{type(error).__name__}: {error}") from error
    problem = _problem(made, name)
    if problem:
        raise _broken(name, packages[0], points[0].value, problem)
    codec: Codec = made
    return codec


def _problem(made: Any, name: str) -> str | None:
    """The reason why an object cannot be the codec of a wire, or None."""
    if isinstance(made, type):
        return "it is a class, not an instance"
    missing = [member for member in _MEMBERS if not hasattr(made, member)]
    if missing:
        return f"it has no {', '.join(missing)}"
    return None if made.name == name else f"its name is {made.name!r}"


def _broken(name: str, package: str, value: str, reason: str) -> WireError:
    return WireError(
        f"the wire {name!r} of the package {package!r} cannot be loaded from {value!r}: {reason}; "
        f"upgrade or repair {package}, or uninstall it"
    )
