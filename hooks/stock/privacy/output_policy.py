"""``OutputPolicy``: how many bytes of output a reader gets, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from callgate.errors import CallgateError, HookError
from callgate.hooks.base import Hook, Step, not_overridden
from callgate.hooks.builtin import bad_output
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.providers.blobs import Blobs
from callgate.tools.values import dump

_WAYS = ("refuse", "truncate", "spill")
_LEAST = 256
"""Bytes that the smallest limit leaves: what says that something was cut needs room."""


class OutputPolicy(Hook):
    """Holds outputs to a number of bytes. What is no JSON, or not finite, the gate itself refuses.

    An output that is too large is refused, cut, or kept elsewhere with a handle in its place. A cut output says so and
    is JSON still: a text ends in ``… [cut, 90000 bytes in all]``; anything else becomes ``{"truncated": true, "bytes":
    90000, "start": "…"}``, where ``start`` is the beginning of its JSON. A handle is ``{"blob": "…", "bytes": 90000,
    "start": "…"}``. Neither is put in the place of an output whose schema forbids it: that one is refused.

    Args:
        max_bytes: bytes of JSON that may go out; at least 256.
        on_too_large: ``"refuse"``, ``"truncate"`` or ``"spill"``.
        spill: where outputs are kept, for ``"spill"``, such as ``FolderBlobs("/var/lib/service/blobs")``.
        preview: bytes of the output that are shown beside a handle; 0 for none.
        mode: ``"shadow"`` changes nothing and records what it would have done.

    Raises:
        HookError: an option with a value that means nothing.
    """

    concern = "output"
    priority = -100
    """Late: other hooks have shaped the output when it is measured."""

    def __init__(
        self,
        *,
        max_bytes: int,
        on_too_large: Literal["refuse", "truncate", "spill"] = "refuse",
        spill: Blobs | None = None,
        preview: int = 0,
        mode: Literal["enforce", "shadow"] = "enforce",
    ) -> None:
        if type(max_bytes) is not int or max_bytes < _LEAST:
            raise HookError(f"OutputPolicy: max_bytes is {max_bytes!r}; give a number of bytes, at least {_LEAST}")
        if on_too_large not in _WAYS:
            raise HookError(f"OutputPolicy: on_too_large is {on_too_large!r}; choose one of {', '.join(_WAYS)}")
        if (on_too_large == "spill") != (spill is not None):
            raise HookError('OutputPolicy: on_too_large="spill" and spill=... go together')
        if type(preview) is not int or not 0 <= preview <= max_bytes:
            raise HookError(f"OutputPolicy: preview is {preview!r}; give bytes, from 0 to max_bytes")
        self.max_bytes, self.on_too_large, self.preview, self.mode = max_bytes, on_too_large, preview, mode
        self._spill = spill
        if on_too_large != "refuse":
            self.leaves_out = not_overridden(self, OutputPolicy, (Stage.WILL_VALIDATE_OUTPUT,))

    def will_validate_output(self, ctx: InvokeContext) -> None:
        """Refuse what is too large before a validator walks it."""
        data = self._too_large(ctx._output)
        if data is not None:
            raise self._refusal(data)

    def will_transform_output(self, ctx: InvokeContext) -> Step:
        """Cut it or keep it elsewhere; what other hooks made of it since is measured, too."""
        data = self._too_large(ctx._output)
        return None if data is None else self._shrink(ctx, data)

    async def _shrink(self, ctx: InvokeContext, data: bytes) -> None:
        if ctx.step.shadow:
            raise CallgateError(f"OutputPolicy would {self.on_too_large}: {len(data)} bytes", code="shadow")
        if self.on_too_large == "refuse":
            raise self._refusal(data)
        if self._spill is None:
            ctx.output = self._admitted(ctx, self._cut(ctx.output, data), data)
            return
        self._admitted(ctx, self._handle("x" * 32, data), data)  # asked before anything is kept
        ctx.output = self._handle(await self._spill.put(ctx.user.tenant or "", data), data)

    def _too_large(self, output: Any) -> bytes | None:
        """The JSON of an output that is too large; None when it is not, or is no JSON at all."""
        try:
            data = dump(output)
        except (TypeError, ValueError, RecursionError):
            return None
        return data if len(data) > self.max_bytes else None

    def _cut(self, output: Any, data: bytes) -> Any:
        if isinstance(output, str):
            note = f"… [cut, {len(data)} bytes in all]"
            return self._fitting(lambda start: start + note, output.encode("utf-8", "replace"), self.max_bytes)
        marked = {"truncated": True, "bytes": len(data)}
        return self._fitting(lambda start: {**marked, "start": start}, data, self.max_bytes)

    def _handle(self, blob: str, data: bytes) -> Any:
        marked = {"blob": blob, "bytes": len(data)}
        if not self.preview:
            return marked
        return self._fitting(lambda start: {**marked, "start": start}, data, self.preview)

    def _fitting(self, made: Callable[[str], Any], source: bytes, size: int) -> Any:
        """What *made* makes of a beginning of at most *size* bytes, such that it fits into ``max_bytes``."""
        while True:
            shown = made(source[:size].decode("utf-8", "ignore"))
            over = len(dump(shown)) - self.max_bytes
            if over <= 0:
                return shown
            size = max(0, size - max(over // 2, 1))  # half: what JSON escapes takes more room than it has bytes

    def _admitted(self, ctx: InvokeContext, value: Any, data: bytes) -> Any:
        schema = ctx.plan.builtins.output
        if schema is not None and ctx.validate_response:
            try:
                schema.check(value)
            except Exception as error:
                raise self._refusal(data) from error
        return value

    def _refusal(self, data: bytes) -> Exception:
        return bad_output(f"the output has {len(data)} bytes; {self.max_bytes} is the most", code="output_too_large")


__all__ = ["OutputPolicy"]
