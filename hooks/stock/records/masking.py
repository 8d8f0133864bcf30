"""Arguments and outputs for records: arguments masked by a hook or the detectors of the logs, outputs as hashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Any

import orjson

from callgate.errors import HookError
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import FROZEN
from callgate.providers.content_json import digest_of, may_hold, with_data
from callgate.providers.redaction import Redactor, fault_of_key, redact_text
from callgate.providers.registry import MISSING
from callgate.providers.scrubbing import Scrubber
from callgate.tools.arguments.attempts import readable
from callgate.tools.values import canonical_fast, pointer

_SHORT = 12  # the detectors find no secret in a shorter word of letters and digits
_HARMLESS = frozenset({int, float, bool, type(None)})


class ShownInput:
    """Makes the masked view of a call's arguments. ``keys``: names of further members to mask."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = tuple(keys)
        for key in self._keys:
            if (fault := fault_of_key(key)) is not None:
                raise HookError(f"secret_keys: one of them {fault}")
        self._redact = Redactor(self._keys)
        self._is_secret = lru_cache(maxsize=1024)(self._redact.is_secret)

    def __call__(self, ctx: InvokeContext) -> tuple[object, list[str]]:
        """Return the masked view, and JSON Pointers to its differences from the arguments.

        The view is None for arguments that were never valid, unless a hook masks them: their content is unknown.
        """
        frozen = ctx.run.input_state == FROZEN
        if ctx.run.masked is MISSING and not ctx.run.maskers:
            if not frozen:
                return None, []
            if ctx.run.scrubber is None and self._is_plain(ctx.run.input):
                return dict(ctx.run.input), []
            shown = self._redact(ctx.run.input)
            shown = shown if ctx.run.scrubber is None else ctx.run.scrubber.value(shown)
        else:
            shown = self._snapshot(ctx.masked_input)
        return shown, list(_differences(ctx.run.input if frozen else ctx.run.latest_input(), shown, ()))

    def repair(self, ctx: InvokeContext) -> dict[str, Any] | None:
        """Return the record of a repair with both arguments, masked like the arguments of the call; None without one.

        Members that a hook masks are masked by name. Text that is not JSON is left out if a hook masks, because the
        members in it cannot be found, and both are left out while the call has no valid arguments.
        """
        repair = ctx.run.repair
        if repair is None:
            return None
        shown = {"by": repair.by, "stage": repair.reason.stage, "reason": self.text(repair.reason.message)}
        view, masked = self(ctx)
        if view is None:
            return shown | {"before": None, "after": None}
        hidden = Redactor([*self._keys, *(pointer.rpartition("/")[2] for pointer in masked)])
        hooked = ctx.run.masked is not MISSING or bool(ctx.run.maskers)
        for name, value in (("before", repair.before), ("after", repair.after)):
            shown[name] = _masked_payload(value, hidden, ctx.run.scrubber, texts=not hooked)
        return shown

    def text(self, text: str, scrubber: Scrubber | None = None) -> str:
        """Mask secrets in the reason that a hook gave."""
        return redact_text(text if scrubber is None else scrubber.text(text))

    def _is_plain(self, arguments: Any) -> bool:
        """Return True when the detectors cannot find anything. This fast path covers most calls."""
        for key, value in arguments.items():
            if value.__class__ not in _HARMLESS and not (
                value.__class__ is str and len(value) < _SHORT and (value.isalnum() or not value)
            ):
                return False
            if self._is_secret(key) or len(key) > 31:
                return False
        return len(arguments) <= 64

    def _snapshot(self, masked: object) -> object:
        try:
            return orjson.loads(orjson.dumps(masked))
        except (TypeError, ValueError):  # not JSON, or an integer beyond 64 bits
            return self._redact(masked)


def output_facts(output: object) -> dict[str, object]:
    """Return the hash of an output, and the digests of its content blocks if it has any."""
    try:
        data = canonical_fast(output)
    except (TypeError, ValueError, RecursionError):
        return {"output_hash": None}
    content = [digest_of(block) for block in with_data(output)] if may_hold(data) else []
    facts: dict[str, object] = {"output_hash": sha256(data).hexdigest()}
    return facts | ({"content": content} if content else {})


def _masked_payload(value: object, redact: Redactor, scrubber: Scrubber | None, *, texts: bool) -> Any:
    """Mask arguments as a provider or repairer wrote them; without *texts*, text that is not JSON is left out."""
    value = readable(value)
    if isinstance(value, str):
        if not texts:
            return f"<{len(value)} characters>"
        return redact_text(value if scrubber is None else scrubber.text(value))
    shown = redact(value)
    return shown if scrubber is None else scrubber.value(shown)


def _differences(real: object, shown: object, path: tuple[str | int, ...]) -> Iterator[str]:
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
