"""What a record may show of the arguments: masked by a hook, or else by the detectors of the logs; never raw."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson

from callgate.hooks.builtin import FROZEN
from callgate.providers.redaction import Redactor, redact_text
from callgate.providers.registry import MISSING
from callgate.tools.values import pointer

_SHORT = 12  # no kind of secret that the detectors know is a word of fewer letters and digits
_HARMLESS = frozenset({int, float, bool, type(None)})


class ShownInput:
    """Makes the masked view of a call's arguments. ``keys`` are further names of keys whose values are masked."""

    def __init__(self, keys: Any = ()) -> None:
        self._redact = Redactor(keys)
        self._is_secret = lru_cache(maxsize=1024)(self._redact.is_secret)

    def __call__(self, ctx: Any) -> tuple[Any, list[str]]:
        """The view, and JSON Pointers to where it differs from the arguments.

        None for arguments that never were valid, unless a hook masks those too: nobody has said what they are.
        """
        frozen = ctx._input_state == FROZEN
        if ctx._masked is MISSING and not ctx._maskers:
            if not frozen:
                return None, []
            if ctx.scrubber is None and self._is_plain(ctx._input):
                return dict(ctx._input), []
            shown = self._redact(ctx._input)
            shown = shown if ctx.scrubber is None else ctx.scrubber.value(shown)
        else:
            shown = self._snapshot(ctx.masked_input)
        return shown, list(_differences(ctx._input if frozen else ctx.input, shown, ()))

    def text(self, text: str, scrubber: Any = None) -> str:
        """A reason that a hook gave, with what looks like a secret masked."""
        return redact_text(text if scrubber is None else scrubber.text(text))

    def _is_plain(self, arguments: Any) -> bool:
        """Whether the detectors would find nothing, seen without asking them: most calls are so."""
        for key, value in arguments.items():
            if value.__class__ not in _HARMLESS and not (
                value.__class__ is str and len(value) < _SHORT and (value.isalnum() or not value)
            ):
                return False
            if self._is_secret(key) or len(key) > 31:
                return False
        return len(arguments) <= 64

    def _snapshot(self, masked: Any) -> Any:
        try:
            return orjson.loads(orjson.dumps(masked))
        except (TypeError, ValueError):  # no JSON, or integers that are too long for it
            return self._redact(masked)


def _differences(real: Any, shown: Any, path: tuple[str | int, ...]) -> Iterator[str]:
    if isinstance(real, dict) and isinstance(shown, dict):
        for key, value in real.items():
            if key in shown:
                yield from _differences(value, shown[key], (*path, key))
            else:
                yield pointer((*path, key))
    elif isinstance(real, list) and isinstance(shown, list) and len(real) == len(shown):
        for index, (value, seen) in enumerate(zip(real, shown, strict=True)):
            yield from _differences(value, seen, (*path, index))
    elif type(real) is not type(shown) or real != shown:
        yield pointer(path)
