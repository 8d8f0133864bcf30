"""One module for each provider API; none knows another. ``codec`` finds one by name and loads only that."""

from __future__ import annotations

from importlib import import_module

from callgate.runtime.wire.codec import Codec, WireError
from callgate.tools.naming import did_you_mean

__all__ = ["codec"]

_MODULES = {
    "anthropic": "anthropic",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai_chat": "openai_chat",
    "openai_compat": "openai_chat",
}


def codec(name: str) -> Codec:
    """The codec of a wire: ``openai_chat`` (also ``openai``, ``openai_compat``), ``anthropic`` or ``ollama`` (C3).

    Raises:
        WireError: there is none of that name.
    """
    if name not in _MODULES:
        raise WireError(f"no codec {name!r}{did_you_mean(name, _MODULES)}")
    found: Codec = import_module(f"{__name__}.{_MODULES[name]}").CODEC
    return found
