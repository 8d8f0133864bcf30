"""The effect of a call: its claim in the ledger, rows that hooks write with it, reconciliation of unknown effects."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeAlias, TypeVar, assert_never

from callgate.errors import ControlRespond, InvocationError, ToolError
from callgate.providers.exits import PlainThreads
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import Alias, EffectRecord, EffectState
from callgate.providers.stores.ledger_writes import RowChain

C_contra = TypeVar("C_contra", contravariant=True)
"""The context of hooks: see ``hooks/state/facts.py``."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The effect took place; a repeated call gets *output* as its answer."""

    output: object = None


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The effect did not take place and will not; the caller may retry the call."""


Finding: TypeAlias = Committed | NoEffect | None
"""The finding of a ``reconcile`` hook; None if the effect is still unknown."""


class Reconciler(Protocol):
    """A hook that can find the outcome of an effect whose process ended before it recorded one.

    It queries the service that the tool used, by ``effect.idempotency_key`` or by the input of that key. The runtime
    calls it when a caller repeats the call, and in the gate's maintenance. If it raises, the effect stays unknown.
    """

    async def reconcile(self, tenant: str, effect: EffectRecord) -> Finding:
        """Return the outcome of the effect."""
        ...


class EffectRecorder(Protocol[C_contra]):
    """A hook that writes its rows about an effect in the transactions of the ledger."""

    def joins_ledger(self, store: Store) -> bool:
        """Return True if the hook writes to the same store."""
        ...

    def intent_row(self, ctx: C_contra) -> tuple[RowChain, Mapping[str, object]]:
        """Return the row that announces a tool run, and its chain."""
        ...

    def chain_of(self, host: Any) -> RowChain:
        """Return the chain of the rows that the hook has put into ``ctx.run.claim.records``."""
        ...


# ---------------------------------------------------------------------- the claim of a call

AWAITED = b'{"v":1,"awaited":true}'
"""The receipt of an effect that a transaction of the application has committed, until the gate writes the output."""


class Evidence(IntEnum):
    """The evidence of an execution for its effect. The greater of two values is the evidence of both together."""

    NOT_STARTED = 0
    """No body has started: the gate resolves dependencies, or the call waits for a thread."""
    STARTED = 1
    """A body has started; if it has ended, it stated that it had no effect."""
    UNDONE = 2
    """A body returned, and what it did was rolled back."""
    ANSWERED = 3
    """A body ended with a response other than an output, such as a ``ToolError``."""
    UNCLEAR = 4
    """A body failed and did not state that it had no effect."""
    RETURNED = 5
    """A body returned: the effect took place, even if the output has no JSON form."""


Known: TypeAlias = tuple[Evidence, Evidence]
"""The evidence of earlier executions, and that of the latest one."""


class Attempted(Protocol):
    """The part of a call's state on which the outcome of its effect depends."""

    executed: bool
    error: BaseException | None


class Claim:
    """The claim of one call in the ledger.

    *started* is True if no step of the gate runs between an attempt and its body. ``decided`` is the outcome that a
    transaction of the application has decided. ``records`` are audit rows that are written with the outcome. Beside a
    declared key, ``alias`` is the identity by the caller's key, and ``more`` are those of repeats of a suspended call.
    ``is_joinable`` is True where a transaction of the application carries the outcome.
    """

    is_joinable = False
    decided: EffectState | None = None
    alias: Alias | None = None
    more: Sequence[Alias] = ()
    records: Sequence[tuple[EffectRecorder[Any], dict[str, Any]]] = ()

    def __init__(
        self, host: object, tenant: str, effect: EffectRecord, together: Sequence[EffectRecorder[Any]], started: bool
    ) -> None:
        self.host, self.tenant = host, tenant
        self.effect, self.together = effect, together
        self._first = Evidence.STARTED if started else Evidence.NOT_STARTED
        self._earlier, self._latest = Evidence.NOT_STARTED, self._first

    @property
    def token(self) -> int:
        """The fencing token: a service that receives it can refuse requests with an older token."""
        return self.effect.token

    @property
    def known(self) -> Known:
        """The evidence so far; ``roll_back`` restores it."""
        return self._earlier, self._latest

    def in_transaction(self, connection: object, threads: PlainThreads | None) -> None:
        """Change nothing: the gate's store is not in the database of the transaction."""

    def begin(self) -> None:
        """Record that a body starts."""
        self._latest = max(self._latest, Evidence.STARTED)

    def take_back(self) -> None:
        """Record that the body did not start after all: no thread was free until the end of the call."""
        self._latest = Evidence.NOT_STARTED

    def returned(self) -> None:
        """Record that a body returned, so the effect took place."""
        self._latest = Evidence.RETURNED

    async def watch(self, body: Awaitable[object]) -> object:
        """Run a body and record how it ended, even if an outer wrapper handles its error."""
        self._earlier, self._latest = max(self._earlier, self._latest), self._first
        try:
            output = await body
        except BaseException as error:
            self.failed(error)
            raise
        self.returned()
        return output

    def failed(self, error: BaseException) -> None:
        """Record that a body ended with this error or with a response."""
        if self._latest is Evidence.NOT_STARTED:
            return
        if isinstance(error, ControlRespond) or (isinstance(error, ToolError) and not error.no_effect):
            self._latest = max(self._latest, Evidence.ANSWERED)
        elif not getattr(error, "no_effect", False):
            self._latest = max(self._latest, Evidence.UNCLEAR)

    def wrapper_failed(self, error: BaseException) -> None:
        """Record that a hook of the execution failed after the body had returned: it may have rolled the effect back.

        Only an error of the application can state ``no_effect``, such as that of a transaction. What ``ctx.abort`` or a
        ``ToolError`` says is meant for the body.
        """
        if self._earlier is Evidence.RETURNED:  # nothing says whether the hook rolled that execution back, too
            self._earlier = Evidence.UNCLEAR
        if self._latest is Evidence.RETURNED:
            self._latest = Evidence.UNDONE
        if isinstance(error, InvocationError) or not getattr(error, "no_effect", False):
            self._latest = Evidence.UNCLEAR

    def roll_back(self, before: Known, *, sure: bool = True) -> None:
        """Restore what was known before an execution that was rolled back; if that is not *sure*, it is unclear."""
        is_sure = sure or self._latest is Evidence.NOT_STARTED  # a body that did not start had no effect
        self._earlier, latest = before
        self._latest = max(latest, Evidence.UNDONE if is_sure else Evidence.UNCLEAR)

    def outcome(self, run: Attempted) -> EffectState:
        """Return the outcome of the effect of a call with this state."""
        if self.decided is not None:
            return self.decided
        match max(self._earlier, self._latest):
            case Evidence.NOT_STARTED | Evidence.STARTED:  # the fast path of a tool without middleware watches no body
                return EffectState.COMMITTED if run.executed else EffectState.NO_EFFECT
            case Evidence.UNDONE:
                return EffectState.NO_EFFECT
            case Evidence.UNCLEAR:  # a fallback is an outcome
                return EffectState.COMMITTED if run.error is None else EffectState.UNKNOWN
            case Evidence.ANSWERED | Evidence.RETURNED:
                return EffectState.COMMITTED
            case never:
                assert_never(never)
