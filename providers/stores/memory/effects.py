"""The effect ledger in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Any, NamedTuple

from callgate.providers.stores.effects import (
    ENDED_STATES,
    OPEN_STATES,
    PRUNE_BATCH,
    Alias,
    EffectPosition,
    EffectRecord,
    EffectState,
    binds,
    claimable,
    overdue,
    same_claim,
)
from callgate.providers.stores.memory.changes import MemoryKey, MemoryPart


class End(NamedTuple):
    """The outcome of an effect, stored beside it: copying the effect would cost more than the rest of ``settle``."""

    effect: EffectRecord
    state: EffectState
    at: float
    receipt: bytes | None
    expires_at: float | None
    note: str | None


class MemoryEffects(MemoryPart[MemoryKey, EffectRecord | End]):
    """Effects by tenant and key. Of ended effects at most *maximum* are stored; the oldest are deleted first."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._live: dict[MemoryKey, EffectRecord] = {}  # open or unknown: never deleted
        self._ended: OrderedDict[MemoryKey, End] = OrderedDict()  # by time of their end
        self._aliases: dict[MemoryKey, EffectRecord] = {}  # the claim that each is an identity of
        self._aliased: dict[MemoryKey, set[str]] = {}  # the aliases of an effect, which go with it

    async def claim(
        self, tenant: str, effect: EffectRecord, *, retry: bool = False, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        if alias is None:
            return self.claim_now(tenant, effect, retry)
        return self.claim_both_now(tenant, effect, alias, retry)

    def claim_both_now(
        self, tenant: str, effect: EffectRecord, alias: Alias, retry: bool = False
    ) -> tuple[bool, EffectRecord]:
        """Run ``claim`` with an alias, without a coroutine."""
        known = self._known(tenant, alias.key)
        if known is not None and not claimable(known, effect, retry=retry):
            if overdue(known, effect.began_at):
                known = self._lose((tenant, known.key), known, effect.began_at)
            return False, known
        mine, found = self.claim_now(tenant, effect, retry)
        if mine or binds(found, effect):
            self._bind(tenant, alias, found)
        return mine, found

    async def bind(self, tenant: str, key: str, alias: Alias) -> None:
        known, found = self._known(tenant, alias.key), self._find((tenant, key))
        free = known is None or known.state is EffectState.NO_EFFECT
        if free and found is not None and found.state in {EffectState.COMMITTED, *OPEN_STATES}:
            self._bind(tenant, alias, found)

    def _known(self, tenant: str, key: str) -> EffectRecord | None:
        """Return the effect of one of its identities."""
        at = (tenant, key)
        if (claim := self._aliases.get(at)) is None:
            return self._find(at)
        found = self._find((tenant, claim.key))
        return found if found is not None and same_claim(found, claim) else self._find(at)

    def _bind(self, tenant: str, alias: Alias, claim: EffectRecord) -> None:
        at, place = (tenant, alias.key), (tenant, claim.key)
        if (before := self._aliases.get(at)) is not None:
            self._aliased[tenant, before.key].discard(alias.key)
        self._aliases[at] = claim
        self._aliased.setdefault(place, set()).add(alias.key)

    def claim_now(self, tenant: str, effect: EffectRecord, retry: bool = False) -> tuple[bool, EffectRecord]:
        """Run ``claim`` without a coroutine."""
        at = (tenant, effect.key)
        if at not in self._live and at not in self._ended:
            if self._log is None:
                self._live[at] = effect
            else:
                self._write(at, effect)
            return True, effect
        return self._claim_found(at, effect, retry=retry)

    def _claim_found(self, at: MemoryKey, effect: EffectRecord, *, retry: bool) -> tuple[bool, EffectRecord]:
        found = self._find(at)
        assert found is not None
        if claimable(found, effect, retry=retry):
            mine = replace(effect, token=found.token + 1)
            self._write(at, mine)
            return True, mine
        if overdue(found, effect.began_at):
            found = self._lose(at, found, effect.began_at)
        return False, found

    async def settle(self, *args: Any, **outcome: Any) -> bool:
        return self.settle_now(*args, **outcome)

    def settle_now(
        self,
        tenant: str,
        key: str,
        token: int,
        state: EffectState,
        at: float,
        receipt: bytes | None = None,
        expires_at: float | None = None,
        note: str | None = None,
        of: Collection[EffectState] = OPEN_STATES,
        aliases: bool = False,
    ) -> bool:
        """Run ``settle`` without a coroutine."""
        place = (tenant, key)
        found = self._live.get(place) or self._find(place)
        if found is None or found.token != token or found.state not in of:
            return False
        self._end(place, End(found, state, at, receipt, expires_at, note))
        return True

    async def get(self, tenant: str, key: str) -> EffectRecord | None:
        return self._known(tenant, key)

    async def list(
        self,
        tenant: str | None,
        *,
        states: Collection[EffectState] = (),
        tool: str | None = None,
        after: EffectPosition | None = None,
        limit: int = 100,
    ) -> Sequence[tuple[str, EffectRecord]]:
        everything = [*self._live.items(), *((at, end.effect) for at, end in self._ended.items())]
        sign = -1 if after is None else 1
        chosen = [
            (sign * effect.began_at, *at)
            for at, effect in everything
            if tenant in {None, at[0]}
            and tool in {None, effect.tool}
            and (not states or self._state(at) in states)
            and (after is None or (effect.began_at, *at) > after)
        ]
        found = [(owner, self._find((owner, key))) for _, owner, key in nsmallest(limit, chosen)]
        return [(owner, effect) for owner, effect in found if effect is not None]

    def unknown(self) -> int:
        """Return the number of unknown effects."""
        return sum(effect.state is EffectState.UNKNOWN for effect in self._live.values())

    async def renew(self, owner: str, until: float) -> int:
        held = [at for at, effect in self._live.items() if effect.owner == owner and effect.state in OPEN_STATES]
        for at in held:
            self._write(at, replace(self._live[at], lease_until=until))
        return len(held)

    async def expire(self, now: float) -> int:
        late = [at for at, effect in self._live.items() if overdue(effect, now)]
        for at in late:
            self._lose(at, self._live[at], now)
        return len(late)

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        old = [at for at, end in self._ended.items() if end.at < before]
        for at in old[:limit]:
            self._write(at, None)
        return len(old[:limit])

    def _find(self, at: MemoryKey) -> EffectRecord | None:
        end = self._ended.get(at)
        return self._live.get(at) if end is None else _with_outcome(end)

    def _state(self, at: MemoryKey) -> EffectState:
        return (self._live.get(at) or self._ended[at]).state

    def _lose(self, at: MemoryKey, effect: EffectRecord, now: float) -> EffectRecord:
        """End an effect whose lease has ended, and return it."""
        state = EffectState.UNKNOWN if effect.state is EffectState.RUNNING else EffectState.NO_EFFECT
        lost = replace(effect, token=effect.token + 1)
        end = End(lost, state, now, effect.receipt, effect.expires_at, effect.note)
        self._end(at, end)
        return _with_outcome(end)

    def _end(self, at: MemoryKey, end: End) -> None:
        self._write(at, end if end.state in ENDED_STATES else _with_outcome(end))

    def _read(self, at: MemoryKey) -> EffectRecord | End | None:
        return self._live.get(at) or self._ended.get(at)

    def _write(self, at: MemoryKey, value: EffectRecord | End | None) -> None:
        if self._log is not None:  # no call of a method outside of a transaction: each tool call comes here
            self._note(at, value)
        self._live.pop(at, None)
        self._ended.pop(at, None)
        if isinstance(value, End):
            self._ended[at] = value
            if len(self._ended) > self._maximum:
                oldest, _ = self._ended.popitem(last=False)
                self._forget(oldest)
        elif value is not None:
            self._live[at] = value
        elif self._log is None:  # a transaction may put the effect back
            self._forget(at)

    def _forget(self, at: MemoryKey) -> None:
        """Delete the aliases of an effect that is deleted."""
        for key in self._aliased.pop(at, ()):
            del self._aliases[at[0], key]


def _with_outcome(end: End) -> EffectRecord:
    """Return the effect with its outcome."""
    return replace(
        end.effect,
        state=end.state,
        ended_at=None if end.state in OPEN_STATES else end.at,
        receipt=end.receipt,
        expires_at=end.expires_at,
        note=end.note,
    )
