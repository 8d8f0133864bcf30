"""The effect ledger in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import NamedTuple, TypeAlias

from callgate.providers.stores.effects import ENDED, OPEN, Effect, EffectState, claimable, overdue
from callgate.providers.stores.memory_changes import Changes

Key: TypeAlias = tuple[str, str]


class End(NamedTuple):
    """How an effect ended: beside it, since a copy of it with these in it costs more than all the rest of settling."""

    effect: Effect
    state: EffectState
    at: float
    receipt: bytes | None
    expires_at: float | None
    note: str | None


class MemoryEffects:
    """Effects by tenant and key. At most *kept* that are over: those that ended first are forgotten first."""

    def __init__(self, kept: int) -> None:
        self._size = kept
        self._live: dict[Key, Effect] = {}  # open or unknown: never forgotten
        self._ended: OrderedDict[Key, End] = OrderedDict()  # committed or without effect, in the order of their ends

    async def claim(self, tenant: str, effect: Effect, *, again: bool = False) -> tuple[bool, Effect]:
        """See ``EffectStore``."""
        return self.claim_now(tenant, effect, again)

    def claim_now(self, tenant: str, effect: Effect, again: bool = False) -> tuple[bool, Effect]:
        """``claim``, without a coroutine."""
        at = (tenant, effect.key)
        if at not in self._live and at not in self._ended:
            self._live[at] = effect
            return True, effect
        return self._claim_found(at, effect, again=again)

    def _claim_found(self, at: Key, effect: Effect, *, again: bool) -> tuple[bool, Effect]:
        found = self._found(at)
        assert found is not None
        if claimable(found, effect, again=again):
            mine = replace(effect, token=found.token + 1)
            self._place(at, mine)
            return True, mine
        if overdue(found, effect.began_at):
            found = self._lose(at, found, effect.began_at)
        return False, found

    async def settle(
        self,
        tenant: str,
        key: str,
        token: int,
        state: EffectState,
        *,
        at: float,
        receipt: bytes | None = None,
        expires_at: float | None = None,
        note: str | None = None,
        of: Collection[EffectState] = OPEN,
    ) -> bool:
        """See ``EffectStore``."""
        return self.settle_now(tenant, key, token, state, at, receipt, expires_at, note, of)

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
        of: Collection[EffectState] = OPEN,
    ) -> bool:
        """``settle``, without a coroutine."""
        where = (tenant, key)
        found = self._live.get(where) or self._found(where)
        if found is None or found.token != token or found.state not in of:
            return False
        self._end(where, End(found, state, at, receipt, expires_at, note))
        return True

    async def get(self, tenant: str, key: str) -> Effect | None:
        """See ``EffectStore``."""
        return self._found((tenant, key))

    async def list(
        self, tenant: str | None, *, states: Collection[EffectState] = (), tool: str | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Effect]]:
        """See ``EffectStore``."""
        everything = [*self._live.items(), *((at, end.effect) for at, end in self._ended.items())]
        chosen = [
            (-effect.began_at, *at)
            for at, effect in everything
            if tenant in {None, at[0]} and tool in {None, effect.tool} and (not states or self._state(at) in states)
        ]
        newest = [(owner, self._found((owner, key))) for _, owner, key in nsmallest(limit, chosen)]
        return [(owner, effect) for owner, effect in newest if effect is not None]

    async def renew(self, owner: str, until: float) -> int:
        """See ``EffectStore``."""
        held = [at for at, effect in self._live.items() if effect.owner == owner and effect.state in OPEN]
        for at in held:
            self._place(at, replace(self._live[at], lease_until=until))
        return len(held)

    async def expire(self, now: float) -> int:
        """See ``EffectStore``."""
        late = [at for at, effect in self._live.items() if overdue(effect, now)]
        for at in late:
            self._lose(at, self._live[at], now)
        return len(late)

    async def prune(self, before: float) -> int:
        """See ``EffectStore``."""
        old = [at for at, end in self._ended.items() if end.at < before]
        for at in old:
            self._place(at, None)
        return len(old)

    def _found(self, at: Key) -> Effect | None:
        end = self._ended.get(at)
        return self._live.get(at) if end is None else _told(end)

    def _state(self, at: Key) -> EffectState:
        return (self._live.get(at) or self._ended[at]).state

    def _lose(self, at: Key, effect: Effect, now: float) -> Effect:
        """Nobody holds it any more: what it is then."""
        state = EffectState.UNKNOWN if effect.state is EffectState.RUNNING else EffectState.NO_EFFECT
        lost = replace(effect, token=effect.token + 1)
        end = End(lost, state, now, effect.receipt, effect.expires_at, effect.note)
        self._end(at, end)
        return _told(end)

    def _end(self, at: Key, end: End) -> None:
        self._place(at, end if end.state in ENDED else _told(end))

    def _place(self, at: Key, kept: Effect | End | None) -> None:
        """Put it in the place of what is there; None forgets that."""
        self._live.pop(at, None)
        self._ended.pop(at, None)
        if isinstance(kept, End):
            self._ended[at] = kept
            if len(self._ended) > self._size:
                self._ended.popitem(last=False)
        elif kept is not None:
            self._live[at] = kept


class HeldEffects(MemoryEffects):
    """The ledger within a transaction: everybody sees at once what it writes, and ``forget`` takes that back."""

    def __init__(self, outer: MemoryEffects) -> None:
        super().__init__(outer._size)
        self._live, self._ended = outer._live, outer._ended
        self._changes = Changes[Key, Effect | End](self._kept, super()._place)

    def claim_now(self, tenant: str, effect: Effect, again: bool = False) -> tuple[bool, Effect]:
        """See ``MemoryEffects``."""
        at = (tenant, effect.key)
        if self._kept(at) is None:
            self._place(at, effect)
            return True, effect
        return self._claim_found(at, effect, again=again)

    def forget(self) -> None:
        """See ``Changes``."""
        self._changes.forget()

    def _place(self, at: Key, kept: Effect | End | None) -> None:
        self._changes.place(at, kept)

    def _kept(self, at: Key) -> Effect | End | None:
        return self._live.get(at) or self._ended.get(at)


def _told(end: End) -> Effect:
    """The effect, as it ended."""
    return replace(
        end.effect,
        state=end.state,
        ended_at=None if end.state in OPEN else end.at,
        receipt=end.receipt,
        expires_at=end.expires_at,
        note=end.note,
    )
