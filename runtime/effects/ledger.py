"""The effect ledger: records each effect before the tool runs, and its outcome afterwards.

A claim is a lease. The gate takes it in the last step before the tool. It releases the lease exactly once, on every
path, by recording the outcome. When a process dies, its leases expire and its running effects become ``unknown``.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from callgate.errors import StoreConflict, StoreError, StoreUnsupported
from callgate.hooks.effects import Claim
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import (
    OLDEST,
    OPEN_STATES,
    ROW_REFUSED,
    Alias,
    EffectPosition,
    EffectRecord,
    EffectState,
    same_claim,
)
from callgate.providers.stores.ledger_writes import LedgerWriter, Settlement, TransactionWriter
from callgate.providers.stores.memory.effects import MemoryEffects
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.options.gate import Effects
from callgate.runtime.pipeline.waiting import Waiters

Place: TypeAlias = tuple[str, str]
"""The tenant and the key of an effect."""
Unknown: TypeAlias = Callable[[str, EffectRecord, Sequence[Any]], Awaitable[EffectRecord]]
"""Asks hooks for the outcome of an effect (``runtime/effects/reconciling.py``)."""

LATE_WRITE = 30.0
"""Seconds within which a claim may still be written after it was reported as failed."""
ASK_AT_ONCE = 100
"""Maximum number of unknown effects of one tool that one round of maintenance asks about."""
PAGE = 1_000
"""Open effects that one look-up of doubtful claims reads at once."""
PAUSE = 1.0
"""Seconds between a look-up that failed and the next: the claims of a whole batch fail together."""


class EffectOutcome(NamedTuple):
    """The outcome of an effect, its receipt if it was committed, and when the receipt expires."""

    state: EffectState
    receipt: bytes | None = None
    expires_at: float | None = None


class _Doubtful(NamedTuple):
    """A claim that the store reported as failed, and its second identity."""

    effect: EffectRecord
    alias: Alias | None


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
        self._unsettled: dict[Place, tuple[Claim, EffectOutcome]] = {}
        self._queued: dict[Place, asyncio.Future[bool]] = {}  # outcomes that the store goes on writing
        self._expires_from = -math.inf
        self._asked: dict[str, EffectPosition] = {}
        self._doubtful: dict[Place, list[_Doubtful]] = {}
        self._looked_up: set[Place] | None = None  # the claims that the look-up under way has still to look at
        self._looks_from = -math.inf
        self._failed: BaseException | None = None  # of the last attempt to record what was left, when the gate closed

    def begin(self) -> None:
        """Take a new owner id when the gate opens, so that claims from before a fork stay with their process."""
        self.owner, self._looked_up = secrets.token_hex(8), None

    # ------------------------------------------------------------------ settling

    async def settle(self, claim: Claim, outcome: EffectOutcome) -> None:
        """Record the outcome of an effect; if the store fails, ``maintain`` retries later.

        Raises:
            StoreConflict: the claim was lost meanwhile; the ledger stays as it is.
            StoreError: the store failed to record the outcome.
        """
        effect, tenant, at, (state, receipt, expires_at) = claim.effect, claim.tenant, self.now(), outcome
        place = (tenant, effect.key)
        # With a decided outcome the transaction of the application has committed; the receipt is left.
        of = (EffectState.COMMITTED,) if claim.decided is EffectState.COMMITTED else OPEN_STATES
        recorded = (state, EffectState.COMMITTED) if claim.is_joinable else (state,)
        alias = None if claim.more else claim.alias
        both, late = alias is not None or bool(claim.more), self._write_late
        settlement = Settlement(
            effect.key, effect.token, state, at, receipt, expires_at, of, recorded, both, effect, alias, late
        )
        try:
            rows = [(one.chain_of(claim.host), body) for one, body in claim.records]
            if not await self.writer.settle(tenant, settlement, rows):
                claim.records = ()  # a lost claim is audited, too: its rows are written
                await self._settle_own(tenant, effect, settlement)
        except StoreConflict:
            raise
        except BaseException:
            self._unsettled[place] = (claim, outcome)
            raise
        finally:
            self.waiters.wake(place)

    def _write_late(self, tenant: str, settlement: Settlement, done: asyncio.Future[bool]) -> None:
        """Note an outcome that is in the queue of the store although its caller was cancelled: it is not sent twice."""
        place = (tenant, settlement.key)
        self._queued[place] = done

        def end(_: object) -> None:
            if self._queued.get(place) is done:
                del self._queued[place]
            left = self._unsettled.get(place)
            written = not done.cancelled() and done.exception() is None and done.result()
            if written and left is not None and left[0].effect is settlement.effect:
                del self._unsettled[place]

        done.add_done_callback(end)

    async def _settle_own(self, tenant: str, effect: EffectRecord, settlement: Settlement) -> None:
        """Record the outcome of an effect that became ``unknown`` when its lease ended, such as in an outage of the store.

        Only its own process knows the outcome.

        Raises:
            StoreConflict: another process has claimed or settled the effect since.
        """
        found = await self.effects.get(tenant, effect.key)
        expired = found is not None and found.state is EffectState.UNKNOWN and found.token == effect.token + 1
        if found is not None and expired and same_claim(found, effect):
            of = (EffectState.UNKNOWN,)
            if await self.writer.settle(tenant, replace(settlement, token=found.token, of=of), ()):
                return
        state = settlement.state
        emit(LogEvent.EFFECT_FENCED, tool=effect.tool, key=effect.key, fence=effect.token, state=state.value)
        raise StoreConflict("the claim was lost: its lease was over")

    async def abandon(self, tenant: str, effect: EffectRecord, alias: Alias | None = None) -> None:
        """Free the key of a failed claim, which the store may have written despite its error, or may still write.

        The first of several callers looks up the claims of all of them; each for itself would wait for a connection. If the
        lookup fails or finds no row yet, ``maintain`` looks again. ``renew`` renews all claims of this process, so
        a claim without a call would never expire. The lease of a claim begins when it is written, which may be later.
        """
        effect = replace(effect, lease_until=self.now() + max(self.valid, LATE_WRITE))
        place = (tenant, effect.key)
        self._doubtful.setdefault(place, []).append(_Doubtful(effect, alias))
        if self._looked_up is not None:
            self._looked_up.add(place)
        if self._looked_up is not None or self.now() < self._looks_from:
            return
        self._looked_up = {place}
        try:
            while places := self._looked_up:
                self._looked_up = set()
                await self._free(places)
        except Exception as error:  # noqa: BLE001  (the next round retries)
            self._looks_from = self.now() + PAUSE
            emit(LogEvent.EFFECT_UNSETTLED, tool=effect.tool, key=effect.key, number=len(self._doubtful), error=error)
        finally:
            self._looked_up = None

    async def _free(self, places: Collection[Place]) -> None:
        """Settle the claims that the store reported as failed, where they exist; look until their leases would expire.

        A list checks no signatures. That is harmless: what is signed here is the claim as this process has made it.
        """
        if not (doubtful := {place: self._doubtful[place] for place in places if place in self._doubtful}):
            return
        after: EffectPosition = (min(one.effect.began_at for known in doubtful.values() for one in known), "", "")
        mine = set[int]()
        while True:
            rows = await self.effects.list(None, states=OPEN_STATES, after=after, limit=PAGE)
            found = [
                (tenant, row, one)
                for tenant, row in rows
                for one in doubtful.get((tenant, row.key), ())
                if same_claim(row, one.effect)
            ]
            await _all(self._settle_as_free(*each) for each in found)
            mine.update(id(one) for _, _, one in found)
            if len(rows) < PAGE:
                break
            tenant, last = rows[-1]
            after = (last.began_at, tenant, last.key)
        now = self.now()
        for place in doubtful:
            known = self._doubtful.pop(place, [])
            if left := [one for one in known if id(one) not in mine and one.effect.lease_until > now]:
                self._doubtful[place] = left

    async def _settle_as_free(self, tenant: str, found: EffectRecord, one: _Doubtful) -> None:
        state, both = EffectState.NO_EFFECT, one.alias is not None
        settlement = Settlement(
            found.key,
            found.token,
            state,
            self.now(),
            recorded=(state,),
            aliases=both,
            effect=one.effect,
            alias=one.alias,
        )
        await self.writer.settle(tenant, settlement, ())

    async def flush(self, tenant: str, key: str) -> None:
        """Record the outcome that the store failed to record before, if there is one."""
        if self._doubtful:
            await self._free([(tenant, key)])
        if (queued := self._queued.get((tenant, key))) is not None and not queued.get_loop().is_closed():
            await asyncio.wait({queued})
        left = self._unsettled.pop((tenant, key), None)
        if left is not None:
            with suppress(StoreConflict):  # another process has the claim; the ledger stays as it is
                await self.settle(*left)

    async def _record_left(self) -> None:
        """Record the outcomes that the store failed to record, and free the keys of failed claims."""
        if self._unsettled or self._doubtful:
            await _all([self._free([*self._doubtful]), *(self.flush(*place) for place in [*self._unsettled])])

    def _log_left(self, error: BaseException) -> None:
        left = [*self._unsettled, *self._doubtful]
        # A cancellation counts as no fault, and would be printed nowhere without a handler.
        shown = error if isinstance(error, Exception) else StoreError("the store did not answer in time")
        emit(LogEvent.EFFECT_UNSETTLED, key=left[0][1] if left else "", number=len(left), error=shown)

    # ------------------------------------------------------------------ maintenance

    async def close(self) -> None:
        """Record the outcomes that are left, before the store closes. Effects without one become ``unknown``."""
        self._failed = None
        try:
            await self._record_left()
        except BaseException as error:
            self._failed = error
            if not isinstance(error, StoreError):
                raise

    async def closed(self) -> None:
        """Log how many outcomes are not recorded, after the store has closed: it writes until then."""
        error, self._failed = self._failed, None
        if error is not None and (self._unsettled or self._doubtful):
            self._log_left(error)

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

    async def maintain(self, reconcilers: Callable[[], Mapping[str, Sequence[object]]]) -> None:
        """Run one round: retry failed writes, expire old leases, reconcile unknown effects.

        *reconcilers* returns, by tool, the hooks that can find the outcome of an unknown effect.
        """
        try:
            await self._record_left()
        except BaseException as error:
            self._log_left(error)
            if not isinstance(error, StoreError):
                raise
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
        for tenant, listed in found:
            try:
                effect = await self.effects.get(tenant, listed.key)  # a list does not check signatures
            except StoreError as error:
                if error.code != ROW_REFUSED:
                    raise
                emit(LogEvent.EFFECT_REFUSED, tool=tool, key=listed.key, error=error)
                continue
            if effect is not None and effect.state is EffectState.UNKNOWN:
                await self.ask(tenant, effect, hooks)


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Await steps together, so that group commit writes them together; then raise the first error."""
    # asyncio: an anyio task group would cancel the other steps at the first error, and each of them counts
    results = await asyncio.gather(*steps, return_exceptions=True)
    for error in results:
        if error is not None:
            raise error
