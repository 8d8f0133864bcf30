"""One module for each provider API; none knows another. ``codec`` finds one by name and loads only that."""

from __future__ import annotations

from importlib import import_module

from callgate.runtime.models.wire.codec import Codec, WireError
from callgate.tools.naming import did_you_mean

__all__ = ["codec", "codecs"]

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


def codecs() -> tuple[str, ...]:
    """The names of the wires there are codecs for, sorted: what ``codec(name).name`` gives; other names are aliases."""
    return tuple(sorted(set(_MODULES.values())))


def codec(name: str) -> Codec:
    """The codec of a wire: one of ``codecs()``, or an alias (C3).

    ``openai`` and ``openai_compat`` are ``openai_chat``; ``openai_responses_compat`` is ``openai_responses``.

    Raises:
        WireError: there is none of that name.
    """
    if name not in _MODULES:
        raise WireError(f"no codec {name!r}{did_you_mean(name, codecs())}")
    found: Codec = import_module(f"callgate.runtime.models.{_MODULES[name]}").CODEC
    return found
