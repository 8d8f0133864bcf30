"""Records and protocols of a store: the effect ledger, suspended calls and pinned tools. See ``base`` for tenants and times."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeAlias


class EffectState(StrEnum):
    """The state of an effect: ``claimed → running → committed | no_effect | unknown``."""

    CLAIMED = "claimed"  # a process holds it; the tool has not begun
    RUNNING = "running"  # the tool has begun and may take effect at any time
    COMMITTED = "committed"  # it ended, and the receipt holds the result
    NO_EFFECT = "no_effect"  # it ended or was abandoned without an effect: it may be claimed again
    UNKNOWN = "unknown"  # it began, and its outcome is not known


ROW_REFUSED = "row_refused"
"""The code of the ``StoreError`` about a row that does not verify; the store itself works."""

OPEN_STATES = (EffectState.CLAIMED, EffectState.RUNNING)
"""The states of an effect that a process holds."""

ENDED_STATES = (EffectState.COMMITTED, EffectState.NO_EFFECT)
"""The states of an effect that has ended and may be pruned."""

PRUNE_BATCH = 1_000
"""Maximum number of rows that one statement prunes: it is short, and the locks of its rows with it."""


@dataclass(slots=True)  # never changed after it is made; not frozen, since that triples the cost of making one per call
class EffectRecord:
    """One effect of a tenant. ``key`` is a hash of the idempotency key, its user and its tool.

    ``version`` is the digest of the tool's definition, ``input_hash`` the digest of the canonical arguments. ``token`` is
    a fencing token: it grows with every claim and every lost claim, and a process with an old token can settle nothing.
    ``owner`` is the process that runs the effect; its lease ends at ``lease_until``. ``receipt`` is JSON. The key is free
    again at ``expires_at`` after a commit (None: only after pruning). ``note`` is a text for operators.

    ``idempotency_key`` is the caller's key where that is the only identity of the effect. ``alias_of`` is set in the row of
    an ``Alias``: the key of the effect. ``mac`` signs the row in a store with signing keys.
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
    alias_of: str | None = None
    mac: str | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """The second identity of an effect whose tool declares a key: the key that a caller passed.

    ``key`` is its hash, ``given`` the caller's text. In SQL it is a row of its own, which repeats the row of the effect:
    the version of Callgate before this one knows the effect by it.
    """

    key: str
    given: str

    def row(self, effect: EffectRecord) -> EffectRecord:
        """Return the row of this identity of *effect*."""
        return replace(effect, key=self.key, idempotency_key=self.given, alias_of=effect.key)


def same_claim(one: EffectRecord, other: EffectRecord) -> bool:
    """Return True when two rows are of one claim: an alias stands for its effect until that is claimed again."""
    return (one.owner, one.request_id, one.began_at) == (other.owner, other.request_id, other.began_at)


def binds(found: EffectRecord, effect: EffectRecord) -> bool:
    """Return True when the key of a caller who repeats *found* as *effect* becomes another identity of it."""
    known, new = (found.user, found.input_hash), (effect.user, effect.input_hash)
    return found.state is EffectState.COMMITTED and known == new


EffectPosition: TypeAlias = tuple[float, str, str]
"""The position of an effect in the order of time: ``began_at``, tenant and key."""

OLDEST: EffectPosition = (-math.inf, "", "")
"""The position before every effect."""


def overdue(effect: EffectRecord, now: float) -> bool:
    """Return True when a process holds the effect and its lease has ended."""
    return effect.state in OPEN_STATES and effect.lease_until <= now


def claimable(found: EffectRecord, effect: EffectRecord, *, retry: bool) -> bool:
    """Return True when *effect* may replace *found*, by the rule of ``EffectStore.claim``."""
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
            return retry and lost and found.input_hash == effect.input_hash


class EffectStore(Protocol):
    """The effect ledger. Every method is atomic."""

    async def claim(
        self, tenant: str, effect: EffectRecord, *, retry: bool = False, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        """Claim a key for *effect*, whose ``began_at`` is now. Return True with the claimed effect, or False with the found one.

        A new key is claimed with the token of *effect*. A known key is claimed, with the next token, when its effect is
        ``no_effect``, when it is ``claimed`` and its lease has ended, or when its receipt has expired. With *retry*, for
        idempotent tools, it is also claimed when it is ``unknown``, or ``running`` and its lease has ended, and
        ``input_hash`` is equal. Otherwise the claim fails; a ``running`` effect whose lease has ended then becomes
        ``unknown``, with the next token. A lease ends at ``lease_until``, a receipt expires at ``expires_at``.

        With *alias* both identities are claimed, or neither. The claim fails if either is that of another effect, and then
        returns the one of the alias first. A committed effect that *effect* repeats gets the alias as another identity.

        Raises:
            StoreError: another version of Callgate wrote the effect.
        """
        ...

    async def bind(self, tenant: str, key: str, alias: Alias) -> None:
        """Make a caller's key another identity of an effect that is open or committed; that of another effect stays as it is."""
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
        of: Collection[EffectState] = OPEN_STATES,
        aliases: bool = False,
    ) -> bool:
        """Record the outcome of an effect. Return False and change nothing if the token is old or the state is not in *of*.

        With *aliases* its aliases get the same outcome; without, when they are next looked up. ``receipt``, ``expires_at`` and ``note`` are overwritten, with None where they are not given. An open *state*
        (a claimed effect begins to run) sets ``ended_at`` to None.
        """
        ...

    async def get(self, tenant: str, key: str) -> EffectRecord | None:
        """Return the effect of a key, or of a caller's key that is an alias of it; or None."""
        ...

    async def list(
        self,
        tenant: str | None,
        *,
        states: Collection[EffectState] = (),
        tool: str | None = None,
        after: EffectPosition | None = None,
        limit: int = 100,
    ) -> Sequence[tuple[str, EffectRecord]]:
        """Return effects with their tenants, without their aliases, newest first; None as tenant means all tenants, for operators.

        With *after*, the order is that of ``EffectPosition``, oldest first, and begins behind that position. A store with
        signing keys does not check these rows: ``get`` does.
        """
        ...

    async def renew(self, owner: str, until: float) -> int:
        """Renew the leases of all open effects of a process, in every tenant, until then. Return their number."""
        ...

    async def expire(self, now: float) -> int:
        """End open effects whose lease has ended, in every tenant: ``running`` becomes ``unknown``, ``claimed`` ``no_effect``.

        Each gets the next token and ends now. Rows that another process has locked are skipped. Return the number.
        """
        ...

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        """Delete at most *limit* effects that are ``committed`` or ``no_effect`` and ended before then, in every tenant.

        Return the number. Rows that another process has locked are skipped.

        The token of a deleted key starts again at its first value. Keep effects longer than any process may be paused.
        """
        ...


class SuspensionState(StrEnum):
    """The state of a suspended call."""

    WAITING = "waiting"
    USED = "used"  # it was resumed, and its effect claimed
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"  # earlier versions of Callgate ended a call so when its tool or policies had changed


def may_follow(before: SuspensionState, after: SuspensionState) -> bool:
    """Return whether a version of a suspension may replace one in the state *before*."""
    waits = SuspensionState.WAITING
    return before is waits or (before is SuspensionState.USED and after is waits)


@dataclass(frozen=True, slots=True)
class SuspensionRecord:
    """One suspended call of a tenant. ``body`` is JSON, ``mac`` the signature over the record (see ``signing``).

    ``number`` is the version of the record, counted from 1; a writer names the version that it has read.
    """

    id: str
    kind: str
    tool: str
    user: str
    made_at: float
    expires_at: float | None
    body: bytes
    mac: str
    state: SuspensionState = SuspensionState.WAITING
    number: int = 1


SuspensionPosition: TypeAlias = tuple[float, str]
"""The position of a suspension in the order of time: ``made_at`` and id."""


def is_listed(one: SuspensionRecord, user: str | None, having: Collection[bytes] | None, behind: bytes) -> bool:
    """Return True when *user* and *having* of ``SuspensionStore.list`` choose a suspension."""
    if having is None:
        return user in {None, one.user}
    start = max(one.body.find(behind), 0)
    return user == one.user or any(one.body.find(part, start) >= 0 for part in having)


class SuspensionStore(Protocol):
    """Suspended calls. Every method is atomic."""

    async def put(self, tenant: str, wait: SuspensionRecord) -> None:
        """Add a suspension.

        Raises:
            StoreConflict: a suspension has that id already.
        """
        ...

    async def get(self, tenant: str, id: str) -> SuspensionRecord | None:
        """Return the suspension with that id, or None."""
        ...

    async def replace(self, tenant: str, wait: SuspensionRecord) -> bool:
        """Replace the version before this one. Return False and change nothing if that is not the last version.

        *wait* has the next ``number``. Only a ``waiting`` suspension is replaced, except that a ``used``
        one may wait again: its call was put off before the tool ran.
        """
        ...

    async def list(
        self,
        tenant: str,
        *,
        state: SuspensionState = SuspensionState.WAITING,
        user: str | None = None,
        limit: int = 100,
        after: SuspensionPosition | None = None,
        kind: str | None = None,
        valid_at: float | None = None,
        having: Collection[bytes] | None = None,
        behind: bytes = b"",
        newest: bool = False,
    ) -> Sequence[SuspensionRecord]:
        """Return the suspensions of a tenant in that state, oldest first; with *newest*, newest first.

        Args:
            tenant: the tenant.
            state: the state.
            user: only those of this user; with *having*, also those of this user.
            limit: the maximum number.
            after: only those behind this position.
            kind: only those of this kind.
            valid_at: only those that expire after this time.
            having: only those whose body has one of these parts.
            behind: look for the parts from the first occurrence of this on, if the body has it.
            newest: newest first; older ones are then behind a position.
        """
        ...

    async def count(self, tenant: str, user: str, limit: int, *, kind: str | None = None) -> int:
        """Return the number of a user's ``waiting`` rows, counted up to *limit*: of that kind, or of calls of tools."""
        ...

    async def due(self, now: float, limit: int = 100) -> Sequence[tuple[str, SuspensionRecord]]:
        """Return expired suspensions that are still ``waiting``, of all tenants, with their tenants; longest overdue first.

        A transaction locks them until it ends, and skips those that other transactions have locked.
        """
        ...

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        """Delete at most *limit* suspensions that were made before then and are no longer ``waiting``, in every tenant.

        Return the number. Rows that another process has locked are skipped.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pin:
    """An approved definition of an outside tool; ``digest`` covers the whole definition, ``by`` is the approver."""

    provider: str
    tool: str
    digest: str
    at: float
    by: str | None = None


class PinStore(Protocol):
    """Approved definitions of outside tools, by provider and tool name."""

    async def find(self, tenant: str, provider: str, tool: str) -> Pin | None:
        """Return the pin of a tool, or None."""
        ...

    async def add(self, tenant: str, pin: Pin) -> Pin:
        """Pin a tool that has no pin. Return the pin that the tool has then, which may be an earlier one."""
        ...

    async def put(self, tenant: str, pin: Pin) -> None:
        """Pin a tool, and replace its earlier pin."""
        ...

    async def list(self, tenant: str, provider: str) -> Sequence[Pin]:
        """Return the pins of a provider, sorted by tool name."""
        ...
