"""The claim of one call in the effect ledger, and the facts that decide its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from callgate.errors import ControlRespond, ToolError
from callgate.hooks.effects import EffectRecorder
from callgate.providers.stores.effects import EffectRecord, EffectState


class Claim:
    """The claim of one call in the ledger, and the facts that decide its outcome.

    ``began``: a tool body has started; before that, the gate resolves dependencies. ``returned``: a body returned a
    value that is not converted to JSON yet. ``unclear``: a body failed without stating that it had no effect.
    ``answered``: a body ended with a response other than an output, such as a ``ToolError``. ``records`` are audit rows
    that are written with the outcome.
    """

    answered = unclear = returned = False
    records: Sequence[tuple[EffectRecorder, dict[str, Any]]] = ()

    def __init__(
        self, host: Any, tenant: str, effect: EffectRecord, together: Sequence[EffectRecorder], began: bool
    ) -> None:
        self.host = host
        self.began = began
        self.tenant = tenant
        self.effect = effect
        self.together = together

    @property
    def token(self) -> int:
        """The fencing token: a service that receives it can refuse requests with an older token."""
        return self.effect.token

    async def watch(self, body: Awaitable[Any]) -> Any:
        """Run a body and record its error, even if an outer wrapper handles that error."""
        try:
            return await body
        except BaseException as error:
            self.failed(error)
            raise

    def failed(self, error: BaseException) -> None:
        """Record that a body ended with this error or with a response."""
        if not self.began:
            return
        told = isinstance(error, ControlRespond) or (isinstance(error, ToolError) and not error.no_effect)
        if told or self.returned:
            self.answered = True
        elif not getattr(error, "no_effect", False):
            self.unclear = True

    def state(self, ctx: Any) -> EffectState:
        """Return the outcome of the effect."""
        if ctx.run.executed:
            return EffectState.COMMITTED
        if self.unclear:
            return EffectState.COMMITTED if ctx.run.error is None else EffectState.UNKNOWN  # a fallback is an outcome
        return EffectState.COMMITTED if self.answered else EffectState.NO_EFFECT
