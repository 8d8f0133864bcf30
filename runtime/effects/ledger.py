"""The effect ledger: records each effect before the tool runs, and its outcome afterwards.

A claim is a lease. The gate takes it in the last step before the tool. It releases the lease exactly once, on every
path, by recording the outcome. When a process dies, its leases expire and its running effects become ``unknown``.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from callgate.errors import RegistrationError, StoreConflict, StoreError, StoreUnsupported
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import ClaimState
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import OLDEST, OPEN_STATES, EffectPosition, EffectRecord, EffectState
from callgate.providers.stores.ledger_writes import LedgerWriter, Settlement, TransactionWriter
from callgate.providers.stores.memory import MemoryStore
from callgate.providers.stores.memory_effects import MemoryEffects
from callgate.runtime.call.waiting import Waiters
from callgate.runtime.lifespan.background import KEPT
from callgate.tools.limits import fault_of_seconds

Unknown: TypeAlias = Callable[[str, EffectRecord, Sequence[Any]], Awaitable[EffectRecord]]
"""Asks hooks for the outcome of an effect (``runtime/effects/reconciling.py``)."""

LATE_WRITE = 30.0
"""Seconds within which a claim may still be written after it was reported as failed."""
ASK_AT_ONCE = 100
"""Maximum number of unknown effects of one tool that one round of maintenance asks about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effect ledger of a gate: ``Gate(effects=Effects(lease=60, wait=30))``.

    Args:
        durable: whether effects need a durable store. False accepts a store in memory; None requires a durable store
            in production mode only.
        lease: maximum seconds until a running effect of a dead process becomes ``unknown``.
        wait: seconds that a repeat waits for the first call before it ends as ``in_flight``. An earlier deadline
            shortens the wait.
        keep: seconds that an effect is kept after it ended; its key is free then. A longer ``within`` of a tool counts
            instead. Unknown effects are always kept. None keeps all effects for ever.

    Raises:
        RegistrationError: a time is negative, or ``lease`` or ``keep`` is 0.
    """

    durable: bool | None = None
    lease: float = 60.0
    wait: float = 30.0
    keep: float | None = KEPT

    def __post_init__(self) -> None:
        for name, fault in (
            ("lease", fault_of_seconds(self.lease, none=False)),
            ("wait", fault_of_seconds(self.wait, least=0.0, none=False)),
            ("keep", fault_of_seconds(self.keep)),
        ):
            if fault is not None:
                raise RegistrationError(f"Effects: {name} {fault}")

    @property
    def valid(self) -> float:
        """Seconds that a row is leased: less than ``lease``, to leave time for the sweep."""
        return self.lease * 0.6

    @property
    def every(self) -> float:
        """Seconds between two rounds that renew and sweep leases."""
        return self.lease * 0.2


class Ledger:
    """The effect ledger of one gate.

    ``owner`` identifies this process in the ledger. ``now`` returns seconds since the epoch.
    """

    def __init__(
        self, store: Store, now: Callable[[], float], options: Effects, ask: Unknown, namespace: str = ""
    ) -> None:
        self.owner = secrets.token_hex(8)
        self.options = options
        self.store = store
        self.namespace = namespace
        self.now = now
        self.ask = ask
        try:
            self.effects = store.effects
        except StoreUnsupported:  # such as Redis: it keeps no effects, so they stay in memory where allowed
            self.store = MemoryStore(self.now)
            self.effects = self.store.effects
        self.writer: LedgerWriter = getattr(self.store, "ledger", None) or TransactionWriter(self.store)
        self.memory = self.effects if type(self.effects) is MemoryEffects else None
        self.valid = math.inf if self.memory is not None else options.valid  # rows in memory end with the process
        self.waiters = Waiters()
        self._unsettled: dict[
            tuple[str, str], tuple[ClaimState[InvokeContext], EffectState, bytes | None, float | None]
        ] = {}
        self._expires_from = -math.inf
        self._asked: dict[str, EffectPosition] = {}
        self._doubtful: dict[tuple[str, str], list[EffectRecord]] = {}

    def begin(self) -> None:
        """Take a new owner id when the gate opens, so that claims from before a fork stay with their process."""
        self.owner = secrets.token_hex(8)

    # ------------------------------------------------------------------ settling

    async def settle(
        self, claim: ClaimState[InvokeContext], state: EffectState, receipt: bytes | None, expires_at: float | None
    ) -> None:
        """Record the outcome of an effect; if the store fails, ``keep_up`` retries later.

        Raises:
            StoreConflict: the claim was lost meanwhile; the ledger stays as it is.
            StoreError: the store failed to record the outcome.
        """
        place = (claim.tenant, claim.effect.key)
        try:
            await self._write_end(claim, state, receipt, expires_at)
        except StoreConflict:
            raise
        except BaseException:
            self._unsettled[place] = (claim, state, receipt, expires_at)
            raise
        finally:
            self.waiters.wake(place)

    async def _write_end(
        self, claim: ClaimState[InvokeContext], state: EffectState, receipt: bytes | None, expires_at: float | None
    ) -> None:
        effect, tenant, at = claim.effect, claim.tenant, self.now()
        # With a decided outcome the transaction of the application has committed; the receipt is left.
        of = (EffectState.COMMITTED,) if claim.decided is EffectState.COMMITTED else OPEN_STATES
        recorded = (state, EffectState.COMMITTED) if claim.carried else (state,)
        aliased = claim.alias is not None
        outcome = Settlement(effect.key, effect.token, state, at, receipt, expires_at, of, recorded, aliased)
        rows = [one.row(claim.host, body) for one, body in claim.records]
        if await self.writer.settle(tenant, outcome, rows):
            return
        claim.records = ()  # a lost claim is audited, too: its rows are written
        if not await self._settle_own(tenant, effect, outcome):
            emit(LogEvent.EFFECT_FENCED, tool=effect.tool, key=effect.key, fence=effect.token, state=state.value)
            raise StoreConflict("the claim was lost: its lease was over")

    async def _settle_own(self, tenant: str, effect: EffectRecord, outcome: Settlement) -> bool:
        """Record the outcome of an effect that became ``unknown`` when its lease ended, such as in an outage of the store.

        Only its own process knows the outcome. Return False if another process has claimed or settled the effect since.
        """
        found = await self.effects.get(tenant, effect.key)
        expired = found is not None and found.state is EffectState.UNKNOWN and found.token == effect.token + 1
        if found is None or not expired or not _is_claim_of(found, effect):
            return False
        of = (EffectState.UNKNOWN,)
        return await self.writer.settle(tenant, replace(outcome, token=found.token, of=of), ())

    async def give_up(self, tenant: str, effect: EffectRecord) -> None:
        """Free the key of a failed claim, which the store may have written despite its error, or may still write.

        If the lookup fails or finds no row yet, ``keep_up`` looks again. ``renew`` renews all claims of this process, so
        a claim without a call would never expire. The lease of a claim begins when it is written, which may be later.
        """
        effect = replace(effect, lease_until=self.now() + max(self.valid, LATE_WRITE))
        self._doubtful.setdefault((tenant, effect.key), []).append(effect)
        try:
            await self._free(tenant, effect.key)
        except Exception as error:  # noqa: BLE001  (the next round retries)
            emit(LogEvent.EFFECT_UNSETTLED, tool=effect.tool, key=effect.key, error=error)

    async def _free(self, tenant: str, key: str) -> None:
        """Settle a claim that the store reported as failed, if it exists; look until its lease would expire."""
        doubtful = self._doubtful.get((tenant, key))
        if doubtful is None:
            return
        found = await self.effects.get(tenant, key)
        mine = None if found is None else next((one for one in doubtful if _is_claim_of(found, one)), None)
        if found is not None and mine is not None:
            await self.effects.settle(tenant, key, found.token, EffectState.NO_EFFECT, at=self.now(), aliases=True)
        now, known = self.now(), self._doubtful.pop((tenant, key), [])
        if left := [one for one in known if one is not mine and one.lease_until > now]:
            self._doubtful[tenant, key] = left

    async def flush(self, tenant: str, key: str) -> None:
        """Record the outcome that the store failed to record before, if there is one."""
        await self._free(tenant, key)
        left = self._unsettled.pop((tenant, key), None)
        if left is not None:
            claim, state, receipt, expires_at = left
            try:
                await self.settle(claim, state, receipt, expires_at)
            except StoreConflict:
                pass  # another process has the claim; the ledger stays as it is

    # ------------------------------------------------------------------ maintenance

    async def renew(self) -> None:
        """Renew the leases of the effects that run in this process.

        After an outage of the store this process expires no lease for ``Effects(lease=)`` seconds: the other processes
        could not renew theirs either.
        """
        if self.memory is not None:
            return
        try:
            await self.effects.renew(self.owner, self.now() + self.valid)
        except BaseException:
            self._expires_from = math.inf
            raise
        if self._expires_from == math.inf:
            self._expires_from = self.now() + self.options.lease

    async def keep_up(self, reconcilers: Callable[[], Mapping[str, Sequence[object]]]) -> None:
        """Run one round: retry failed writes, expire old leases, reconcile unknown effects.

        *reconcilers* returns, by tool, the hooks that can find the outcome of an unknown effect.
        """
        for place in [*self._unsettled, *self._doubtful]:
            try:
                await self.flush(*place)
            except StoreError as error:
                emit(LogEvent.EFFECT_UNSETTLED, key=place[1], error=error)
        now = self.now()
        if now >= self._expires_from and (lost := await self.effects.expire(now)):
            emit(LogEvent.EFFECTS_ORPHANED, number=lost)
        for tool, hooks in reconcilers().items():
            await self._ask_next(tool, hooks)

    async def _ask_next(self, tool: str, hooks: Sequence[object]) -> None:
        """Ask for the outcomes of the next unknown effects of a tool, oldest first; after the last one, start again."""
        after = self._asked.pop(tool, OLDEST)
        found = await self.effects.list(None, states=[EffectState.UNKNOWN], tool=tool, after=after, limit=ASK_AT_ONCE)
        if len(found) == ASK_AT_ONCE:
            tenant, last = found[-1]
            self._asked[tool] = (last.began_at, tenant, last.key)
        for tenant, effect in found:
            await self.ask(tenant, effect, hooks)


def _is_claim_of(found: EffectRecord, effect: EffectRecord) -> bool:
    """Return whether a row of the ledger is this claim, and not another claim of the same process."""
    return (found.owner, found.request_id, found.began_at) == (effect.owner, effect.request_id, effect.began_at)
