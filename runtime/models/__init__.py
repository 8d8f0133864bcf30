"""One module for each provider API. ``codec`` finds one by name and loads only that one."""

from callgate.runtime.models.registry import codec, codecs

__all__ = ["codec", "codecs"]
