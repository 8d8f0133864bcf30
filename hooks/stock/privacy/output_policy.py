"""``OutputPolicy``: a size limit for outputs, which refuses, truncates or stores larger ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Unpack

from callgate.errors import CallgateError, HookError
from callgate.hooks.base import Hook, Step, not_overridden
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.stock.options import HookOptions, check_choice, check_count, checked, set_options
from callgate.providers.blobs import Blobs
from callgate.providers.content_json import digested, may_hold
from callgate.providers.registry import MISSING
from callgate.tools.outputs import bad_output
from callgate.tools.values import dump

_WAYS = ("refuse", "truncate", "spill")
_LEAST = 256
"""The smallest limit in bytes: the marker of a truncated output needs room."""


class OutputPolicy(Hook):
    """Output size limit: refuses, truncates or stores outputs above *max_bytes*.

    A truncated output is still JSON and has a marker: a text ends in ``… [cut, 90000 bytes in all]``, any other value
    becomes ``{"truncated": true, "bytes": 90000, "start": "…"}``, where ``start`` is the beginning of its JSON. A stored
    output is replaced by the handle ``{"blob": "…", "bytes": 90000, "start": "…"}``. An output whose schema forbids the
    replacement is refused. The data of content blocks has limits of its own (``Limits.max_content_bytes``), and is not
    counted here.

    Args:
        max_bytes: the largest output, in bytes of JSON; at least 256.
        on_too_large: ``"refuse"``, ``"truncate"`` or ``"spill"``.
        spill: with ``"spill"``, where outputs are stored, such as ``FolderBlobs("/var/lib/service/blobs")``.
        preview: bytes of the output that are shown beside a handle; 0 for none.
        options: the options of every hook: ``tools``, ``tags``, ``tenants``, ``filter``, ... With ``mode="shadow"`` it
            changes nothing, and records would-be refusals.

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "output"
    priority = -100
    """Low, so that it measures the output after the other hooks have shaped it."""
    whole = True

    @checked
    def __init__(
        self,
        max_bytes: int,
        *,
        on_too_large: Literal["refuse", "truncate", "spill"] = "refuse",
        spill: Blobs | None = None,
        preview: int = 0,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        check_count("OutputPolicy", "max_bytes", max_bytes, least=_LEAST)
        check_choice("OutputPolicy", "on_too_large", on_too_large, _WAYS)
        if (on_too_large == "spill") != (spill is not None):
            raise HookError('OutputPolicy: on_too_large="spill" and spill=... go together')
        check_count("OutputPolicy", "preview", preview, least=0, maximum=max_bytes)
        self.max_bytes, self.on_too_large, self.preview = max_bytes, on_too_large, preview
        self._spill = spill
        if on_too_large != "refuse":
            self.leaves_out = not_overridden(self, OutputPolicy, (Stage.WILL_VALIDATE_OUTPUT,))

    def will_validate_output(self, ctx: InvokeContext) -> None:
        """Refuse a large output before it is validated."""
        data = self._too_large(ctx.run.output)
        if data is not None:
            raise self._refusal(data)
        ctx.data[self] = ctx.run.output

    def will_transform_output(self, ctx: InvokeContext) -> Step:
        """Truncate or store a large output; changes by other hooks are measured too."""
        output = ctx.run.output
        if ctx.data.get(self, MISSING) is output:  # measured before, and no hook has set another
            return None
        data = self._too_large(output)
        return None if data is None else self._shrink(ctx, data)

    async def _shrink(self, ctx: InvokeContext, data: bytes) -> None:
        if ctx.run.step.shadow:
            raise CallgateError(f"OutputPolicy would {self.on_too_large}: {len(data)} bytes", code="shadow")
        if self.on_too_large == "refuse":
            raise self._refusal(data)
        if self._spill is None:
            ctx.output = self._admitted(ctx, self._cut(ctx.output, data), data)
            return
        self._admitted(ctx, self._handle("x" * 32, data), data)  # checked before the output is stored
        ctx.output = self._handle(await self._spill.put(ctx.user.tenant or "", dump(ctx.run.output)), data)

    def _too_large(self, output: object) -> bytes | None:
        """Return the JSON of an output that is too large, with digests of its content; None for a smaller one, or no JSON."""
        try:
            data = dump(output)
            if len(data) > self.max_bytes and may_hold(data):
                data = dump(digested(output))
        except (TypeError, ValueError, RecursionError):
            return None
        return data if len(data) > self.max_bytes else None

    def _cut(self, output: object, data: bytes) -> object:
        if isinstance(output, str):
            note = f"… [cut, {len(data)} bytes in all]"
            return self._fitting(lambda start: start + note, output.encode("utf-8", "replace"), self.max_bytes)
        marked = {"truncated": True, "bytes": len(data)}
        return self._fitting(lambda start: {**marked, "start": start}, data, self.max_bytes)

    def _handle(self, blob: str, data: bytes) -> object:
        marked = {"blob": blob, "bytes": len(data)}
        if not self.preview:
            return marked
        return self._fitting(lambda start: {**marked, "start": start}, data, self.preview)

    def _fitting(self, made: Callable[[str], object], source: bytes, size: int) -> object:
        """Call *made* with the longest beginning of *source*, at most *size* bytes, whose result fits into ``max_bytes``."""
        while True:
            shown = made(source[:size].decode("utf-8", "ignore"))
            over = len(dump(shown)) - self.max_bytes
            if over <= 0:
                return shown
            size = max(0, size - max(over // 2, 1))  # half: escapes in JSON take more room than the bytes they replace

    def _admitted(self, ctx: InvokeContext, value: object, data: bytes) -> object:
        schema = ctx.run.plan.builtins.output
        if schema is not None and ctx.run.validate_response:
            try:
                schema.check(value)
            except Exception as error:
                raise self._refusal(data) from error
        return value

    def _refusal(self, data: bytes) -> Exception:
        return bad_output(f"the output has {len(data)} bytes; the maximum is {self.max_bytes}", code="output_too_large")
