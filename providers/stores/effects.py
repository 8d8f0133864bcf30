"""What a store keeps of effects and of calls that wait: the facts and the protocols. See ``base`` for tenants and times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class EffectState(StrEnum):
    """Where an effect is: ``claimed → running → committed | no_effect | unknown`` (design 7)."""

    CLAIMED = "claimed"  # somebody has it; nothing has begun
    RUNNING = "running"  # it may take effect at any time
    COMMITTED = "committed"  # it ended, and the receipt says how
    NO_EFFECT = "no_effect"  # it ended, or was given up, without any effect: it may be claimed again
    UNKNOWN = "unknown"  # it began and nobody can say what came of it


OPEN = (EffectState.CLAIMED, EffectState.RUNNING)
"""The states of an effect that somebody holds."""

ENDED = (EffectState.COMMITTED, EffectState.NO_EFFECT)
"""The states of an effect that is over, and may be forgotten."""


@dataclass(slots=True)  # nobody changes one; frozen, making it would cost three times as much at every call
class Effect:
    """One recorded effect of a tenant; ``key`` is a hash that says whose and of what.

    ``version`` is the digest of the tool's definition, ``input_hash`` that of the canonical arguments. ``token`` grows
    with every claim of the key and with every loss of a claim: who holds an old one can settle nothing. ``owner`` is the
    process that runs it, known to be alive until ``lease_until``. ``receipt`` is JSON, ``expires_at`` when the key is free
    again after it was committed (None: not before it is pruned). ``note`` is for people.
    """

    key: str
    tool: str
    version: str
    user: str
    input_hash: str
    request_id: str
    owner: str
    lease_until: float
    began_at: float
    state: EffectState = EffectState.RUNNING
    token: int = 1
    session_id: str | None = None
    call_id: str | None = None
    idempotency_key: str | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    receipt: bytes | None = None
    note: str | None = None


def overdue(effect: Effect, now: float) -> bool:
    """Whether somebody holds an effect and its lease is over."""
    return effect.state in OPEN and effect.lease_until <= now


def claimable(found: Effect, effect: Effect, *, again: bool) -> bool:
    """Whether *effect* may take the place of the one that was found; the rule of ``EffectStore.claim``."""
    now = effect.began_at
    match found.state:
        case EffectState.NO_EFFECT:
            return True
        case EffectState.CLAIMED:
            return overdue(found, now)
        case EffectState.COMMITTED:
            return found.expires_at is not None and found.expires_at <= now
        case _:
            lost = found.state is EffectState.UNKNOWN or overdue(found, now)
            return again and lost and found.input_hash == effect.input_hash


class EffectStore(Protocol):
    """The effect ledger. Every method is one atomic step."""

    async def claim(self, tenant: str, effect: Effect, *, again: bool = False) -> tuple[bool, Effect]:
        """Claim a key for *effect*, whose ``began_at`` is now: whether it is yours, and what is in the ledger then.

        Yours, with the token that it brings, if the key is new. Yours, in the place of what was there and with the next
        token, if its effect is ``no_effect`` or ``claimed`` with its lease over, or if its receipt has expired; with
        *again*, for tools that may run twice, also if it is ``unknown``, or ``running`` with its lease over, and of the
        same ``input_hash``. Not yours otherwise; a ``running`` one with its lease over is made ``unknown`` on the way,
        with the next token. A lease is over at ``lease_until``, a receipt at ``expires_at``.

        Raises:
            StoreError: the effect was written by another version of Callgate.
        """
        ...

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
        """Write down how an effect ended; False, and nothing changed, unless the token is the last and its state in *of*.

        All of receipt, end of the receipt and note are written, None where not given. A *state* of ``OPEN`` is no end
        (what was claimed begins to run): ``ended_at`` is None then.
        """
        ...

    async def get(self, tenant: str, key: str) -> Effect | None:
        """The effect of a key."""
        ...

    async def list(
        self, tenant: str | None, *, states: Collection[EffectState] = (), tool: str | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Effect]]:
        """Effects with their tenants, the newest first; of all tenants for None, which only operators ask for."""
        ...

    async def renew(self, owner: str, until: float) -> int:
        """A process lives: all that it holds is leased until then, whatever the tenant; how many."""
        ...

    async def expire(self, now: float) -> int:
        """What is held and whose lease is over: ``running`` becomes ``unknown``, ``claimed`` ``no_effect``; how many.

        Whatever the tenant, with the next token, and ended now. What somebody is just changing is left to him.
        """
        ...

    async def prune(self, before: float) -> int:
        """Forget what is ``committed`` or ``no_effect`` and ended before then, whatever the tenant; how many.

        The tokens of a key that was forgotten begin anew: forget nothing that a process which sleeps might still settle.
        """
        ...


class WaitState(StrEnum):
    """Where a suspended call is."""

    WAITING = "waiting"
    USED = "used"  # it was resumed, and its effect claimed
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"  # what it was bound to has changed since


@dataclass(frozen=True, slots=True)
class Wait:
    """One suspended call of a tenant. ``body`` is JSON, ``mac`` says that nobody has changed any of it (see ``runtime``).

    ``number`` counts its versions, from 1: who would change it says which he has seen.
    """

    id: str
    kind: str
    tool: str
    user: str
    made_at: float
    expires_at: float | None
    body: bytes
    mac: str
    state: WaitState = WaitState.WAITING
    number: int = 1


class WaitStore(Protocol):
    """Suspended calls. Every method is one atomic step."""

    async def put(self, tenant: str, wait: Wait) -> None:
        """Add one.

        Raises:
            StoreConflict: there is one with that id.
        """
        ...

    async def get(self, tenant: str, id: str) -> Wait | None:
        """The one with that id."""
        ...

    async def replace(self, tenant: str, wait: Wait) -> bool:
        """Put a version in the place of the one before it; False, and nothing changed, unless that is the last.

        *wait* has the next ``number``. What is not ``waiting`` any more is never replaced.
        """
        ...

    async def list(
        self, tenant: str, *, state: WaitState = WaitState.WAITING, user: str | None = None, limit: int = 100
    ) -> Sequence[Wait]:
        """Those of a tenant in that state, the oldest first."""
        ...

    async def due(self, now: float, limit: int = 100) -> Sequence[tuple[str, Wait]]:
        """Those that are waiting and whose time is over, with their tenants, the longest overdue first; of all tenants."""
        ...

    async def prune(self, before: float) -> int:
        """Forget those that were made before then and do not wait any more, whatever the tenant; how many."""
        ...


@dataclass(frozen=True, slots=True)
class Pin:
    """What a provider of outside tools said of one when somebody agreed to it; ``digest`` is over its whole definition."""

    provider: str
    tool: str
    digest: str
    at: float
    by: str | None = None


class PinStore(Protocol):
    """Agreed definitions of outside tools, by provider and name."""

    async def find(self, tenant: str, provider: str, tool: str) -> Pin | None:
        """What was agreed to, None when nothing was."""
        ...

    async def add(self, tenant: str, pin: Pin) -> Pin:
        """Pin a tool that has no pin; the pin that it has now, which is another's if there was one."""
        ...

    async def put(self, tenant: str, pin: Pin) -> None:
        """Pin a tool, in the place of any other pin."""
        ...

    async def list(self, tenant: str, provider: str) -> Sequence[Pin]:
        """The pins of a provider, by name."""
        ...
