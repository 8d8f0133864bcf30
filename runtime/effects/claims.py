"""One call's place in the effect ledger, and what its end will depend on."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from callgate.errors import ControlRespond, ToolError
from callgate.hooks.effects import EffectRecorder
from callgate.providers.stores.effects import Effect, EffectState


class Claim:
    """One call's place in the ledger, and what its end will depend on.

    ``began``: a body has begun; before, dependencies are made. ``returned``: one has given something that is still to be
    made JSON. ``unclear``: one failed and did not say that it had no effect. ``answered``: one ended with an answer that
    is no output, such as a ``ToolError``. ``records`` are rows that are written with the outcome.
    """

    answered = unclear = returned = False
    records: Sequence[tuple[EffectRecorder, dict[str, Any]]] = ()

    def __init__(self, host: Any, tenant: str, effect: Effect, together: Sequence[EffectRecorder], began: bool) -> None:
        self.host = host
        self.began = began
        self.tenant = tenant
        self.effect = effect
        self.together = together

    @property
    def token(self) -> int:
        """The fencing token: a service that is handed it can refuse whoever comes with an older one."""
        return self.effect.token

    async def watch(self, body: Awaitable[Any]) -> Any:
        """Run a body, and remember how it failed, whatever becomes of the error further out."""
        try:
            return await body
        except BaseException as error:
            self.failed(error)
            raise

    def failed(self, error: BaseException) -> None:
        """A body ended with this error, or with a response."""
        if not self.began:
            return
        told = isinstance(error, ControlRespond) or (isinstance(error, ToolError) and not error.no_effect)
        if told or self.returned:
            self.answered = True
        elif not getattr(error, "no_effect", False):
            self.unclear = True

    def state(self, ctx: Any) -> EffectState:
        """How the effect ended."""
        if ctx.executed:
            return EffectState.COMMITTED
        if self.unclear:
            return EffectState.COMMITTED if ctx._error is None else EffectState.UNKNOWN  # a fallback is an outcome
        return EffectState.COMMITTED if self.answered else EffectState.NO_EFFECT
