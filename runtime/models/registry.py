"""The wires by name: Callgate's own, and those that other packages register as entry points."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from callgate.providers.installed import Unusable, declared_names, load_installed
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
def registered() -> frozenset[str]:
    """The wires of installed packages, by name. The metadata of packages is read once."""
    return frozenset(declared_names(WIRES_GROUP) - _MODULES.keys())


@cache
def of_package(name: str) -> Codec:
    """Load the codec that another package registered under *name*; see ``codec``."""

    def use(found: object) -> Codec:
        made: Any = found.CODEC if isinstance(found, ModuleType) else found
        if isinstance(made, type):
            raise Unusable("it is a class, not an instance")
        if missing := [member for member in _MEMBERS if not hasattr(made, member)]:
            raise Unusable(f"it has no {', '.join(missing)}")
        if made.name != name:
            raise Unusable(f"its name is {made.name!r}")
        known: Codec = made
        return known

    return load_installed(WIRES_GROUP, name, "wire", WireError, use, dict.fromkeys(_MODULES.values(), ""))
