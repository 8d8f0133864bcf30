"""The effect ledger: what may change the world is written down before it runs, and how it ended after (design 7, I3, I4).

A claim is a lease. It is taken as the last step before the tool, and given back, exactly once and on every path, by
writing down how the effect ended: the runtime's own ledger of leases sees to that. What a process that dies leaves
behind is found by its lease, and becomes ``unknown``.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

from callgate.errors import RegistrationError, StoreConflict, StoreError, StoreUnsupported
from callgate.providers.logs import Event, emit
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import Effect, EffectState, EffectStore
from callgate.providers.stores.memory import MemoryStore
from callgate.providers.stores.memory_effects import MemoryEffects
from callgate.runtime.call.waiting import Waiters
from callgate.runtime.effects.claims import Claim

Unknown: TypeAlias = Callable[[str, Effect, Sequence[Any]], Awaitable[Effect]]
"""Asks hooks what became of an effect (``runtime/effects/reconciling.py``)."""


@dataclass(frozen=True, slots=True)
class EffectOptions:
    """How a gate keeps its ledger; times in seconds.

    ``lease``: what a process that died was running is ``unknown`` at the latest after this. ``wait``: how long a
    repeat waits for the first call, at most, before it ends as ``in_flight``; its deadline may be earlier.

    Raises:
        RegistrationError: a time that means nothing.
    """

    lease: float = 60.0
    wait: float = 30.0

    def __post_init__(self) -> None:
        if not self.lease > 0 or not self.wait >= 0:
            raise RegistrationError("EffectOptions: lease and wait are seconds, lease above 0")

    @property
    def valid(self) -> float:
        """How long a row is leased: less than the promise, so that sweeping has time."""
        return self.lease * 0.6

    @property
    def every(self) -> float:
        """How often leases are renewed and swept."""
        return self.lease * 0.2


class Ledger:
    """The effect ledger of one gate. ``owner`` names this process in it."""

    def __init__(
        self, store: Store, monotonic: Callable[[], float], offset: float, options: EffectOptions, ask: Unknown
    ) -> None:
        self.owner = secrets.token_hex(8)
        self.options = options
        self.store = store
        self._monotonic, self._offset = monotonic, offset
        self.ask = ask
        try:
            self.effects = store.effects
        except StoreUnsupported:  # such as Redis: what it cannot promise is kept in memory, where that is allowed
            self.store = MemoryStore(self.now)
            self.effects = self.store.effects
        self.memory = self.effects if type(self.effects) is MemoryEffects else None
        self.valid = math.inf if self.memory is not None else options.valid  # in memory nobody survives who runs them
        self.waiters = Waiters()
        self._unsettled: dict[tuple[str, str], tuple[Claim, EffectState, bytes | None, float | None]] = {}
        self._doubtful: dict[tuple[str, str], list[Effect]] = {}

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._monotonic() + self._offset

    def begin(self) -> None:
        """The gate opens in this process: what a process of another name has claimed, such as before a fork, is not ours."""
        self.owner = secrets.token_hex(8)

    # ------------------------------------------------------------------ settling

    async def settle(self, claim: Claim, state: EffectState, receipt: bytes | None, expires_at: float | None) -> None:
        """Write down how an effect ended; what cannot be written now is written by ``keep_up``.

        Raises:
            StoreConflict: the claim was lost meanwhile: what is in the ledger stays.
            StoreError: it could not be written.
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
        self, claim: Claim, state: EffectState, receipt: bytes | None, expires_at: float | None
    ) -> None:
        effect, tenant, at = claim.effect, claim.tenant, self.now()
        facts: dict[str, Any] = {"at": at, "receipt": receipt, "expires_at": expires_at}
        if not claim.records:
            done = await self.effects.settle(tenant, effect.key, effect.token, state, **facts)
        else:
            async with AsyncExitStack() as sealings, AsyncExitStack() as transactions:
                sealed = [
                    await sealings.enter_async_context(one.sealing(claim.host, body)) for one, body in claim.records
                ]
                written = await transactions.enter_async_context(self.store.transaction())
                done = await written.effects.settle(tenant, effect.key, effect.token, state, **facts)
                if done or not await _is_settled(written.effects, claim, state):  # who lost the claim is recorded, too
                    for one in sealed:
                        await one.put(written.audit, tenant)
        if not done and not await _is_settled(self.effects, claim, state):
            emit(Event.EFFECT_FENCED, tool=effect.tool, key=effect.key, fence=effect.token, state=state.value)
            raise StoreConflict("the claim was lost: its lease was over")

    async def give_up(self, tenant: str, effect: Effect) -> None:
        """A claim that failed may be there all the same, now or soon: nothing came of it, and the key is to be free.

        Whoever fails to look, or finds nothing yet, leaves it to ``keep_up``: ``renew`` is for all that this process has
        claimed, so that a claim which nobody holds would never end by itself.
        """
        self._doubtful.setdefault((tenant, effect.key), []).append(effect)
        try:
            await self._free(tenant, effect.key)
        except Exception as error:  # noqa: BLE001  (the next round may do better)
            emit(Event.EFFECT_UNSETTLED, tool=effect.tool, key=effect.key, error=error)

    async def _free(self, tenant: str, key: str) -> None:
        """Settle the claim of a call that was told that it had none, if it is there; look until its lease would be over."""
        doubtful = self._doubtful.get((tenant, key))
        if doubtful is None:
            return
        found = await self.effects.get(tenant, key)
        mine = None if found is None else next((one for one in doubtful if _is_claim_of(found, one)), None)
        if found is not None and mine is not None:
            await self.effects.settle(tenant, key, found.token, EffectState.NO_EFFECT, at=self.now())
        now, known = self.now(), self._doubtful.pop((tenant, key), [])
        if left := [one for one in known if one is not mine and one.lease_until > now]:
            self._doubtful[tenant, key] = left

    async def flush(self, tenant: str, key: str) -> None:
        """Write down now what could not be written before, if there is something."""
        await self._free(tenant, key)
        left = self._unsettled.pop((tenant, key), None)
        if left is not None:
            claim, state, receipt, expires_at = left
            try:
                await self.settle(claim, state, receipt, expires_at)
            except StoreConflict:
                pass  # lost for good; what is in the ledger stays

    # ------------------------------------------------------------------ looking after

    async def renew(self) -> None:
        """Renew the leases of what runs here."""
        if self.memory is None:
            await self.effects.renew(self.owner, self.now() + self.valid)

    async def keep_up(self, reconcilers: Callable[[], Mapping[str, Sequence[Any]]]) -> None:
        """One round: what could not be written, leases of others that are over, what is unknown.

        *reconcilers* gives the tools of which somebody can find out what became of an effect, and who.
        """
        for place in [*self._unsettled, *self._doubtful]:
            try:
                await self.flush(*place)
            except StoreError as error:
                emit(Event.EFFECT_UNSETTLED, key=place[1], error=error)
        if lost := await self.effects.expire(self.now()):
            emit(Event.EFFECTS_ORPHANED, number=lost)
        for tool, hooks in reconcilers().items():
            for tenant, effect in await self.effects.list(None, states=[EffectState.UNKNOWN], tool=tool):
                await self.ask(tenant, effect, hooks)


async def _is_settled(effects: EffectStore, claim: Claim, state: EffectState) -> bool:
    """Whether it was written before: a store may say that it failed when it did not."""
    found = await effects.get(claim.tenant, claim.effect.key)
    return found is not None and found.token == claim.effect.token and found.state is state


def _is_claim_of(found: Effect, effect: Effect) -> bool:
    """Whether what is in the ledger is the claim that was to be written, and no other of the same process."""
    return (found.owner, found.request_id, found.began_at) == (effect.owner, effect.request_id, effect.began_at)
