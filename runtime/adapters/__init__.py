"""One module for each provider API; none knows another. ``codec`` finds one by name and loads only that."""

from __future__ import annotations

from importlib import import_module

from callgate.runtime.wire.codec import Codec, WireError
from callgate.tools.naming import did_you_mean

__all__ = ["codec", "codecs"]

_MODULES = {
    "anthropic": "anthropic",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai_chat": "openai_chat",
    "openai_compat": "openai_chat",
}


def codecs() -> tuple[str, ...]:
    """The names of the wires there are codecs for, sorted: what ``codec(name).name`` gives; other names are aliases."""
    return tuple(sorted(set(_MODULES.values())))


def codec(name: str) -> Codec:
    """The codec of a wire: ``openai_chat`` (also ``openai``, ``openai_compat``), ``anthropic`` or ``ollama`` (C3).

    Raises:
        WireError: there is none of that name.
    """
    if name not in _MODULES:
        raise WireError(f"no codec {name!r}{did_you_mean(name, codecs())}")
    found: Codec = import_module(f"{__name__}.{_MODULES[name]}").CODEC
    return found
