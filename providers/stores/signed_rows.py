"""Signatures of the rows of a store: a change by a process without the signing key is refused when the row is read.

Each row has a MAC, a keyed BLAKE2b over its kind, namespace, tenant, key and content. A row that is copied to another key
does not verify. A row that was put back from a backup does: a signed counter (``Version``) therefore names the latest
version of a row that was replaced, denied or revoked.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import orjson

from callgate.errors import StoreError
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import CacheEntry, Grant
from callgate.providers.stores.effects import ROW_REFUSED, EffectRecord, EffectState, Pin
from callgate.providers.stores.jobs import FINAL_STATES, NO_KEY, Job, JobState

_FORMAT = b"callgate row 1"

EFFECT, JOB, CACHE, CONSENT, PIN, SUSPENSION = "effect", "job", "cache", "consent", "pin", "suspension"
"""The kinds of rows."""
REASON_MARK, PROGRESS_MARK = " [signed ", b"signed "
"""What stands before the MAC of the reason or the progress of a job."""
UNREADABLE = "what its row says of its run has no valid signature"
"""The reason that is shown for one without a valid MAC."""
_REASON, _PROGRESS = "reason of a job", "progress of a job"
_UNDER_WAY = (JobState.QUEUED, JobState.RUNNING)


class Version(NamedTuple):
    """The counter of one row. ``number`` grows with each version: it is the time in microseconds, or one more than before.

    ``latest`` identifies the version; "" means that no version is valid.
    """

    number: int
    latest: str


class SignedOutcome(NamedTuple):
    """The outcome of an effect, as it is stored."""

    state: EffectState
    ended_at: float | None
    expires_at: float | None
    receipt: bytes | None
    note: str | None


class RowSigner:
    """Signs and checks the rows of one namespace."""

    def __init__(self, keys: SigningKeys, namespace: str) -> None:
        self._states = keys.states(_FORMAT, namespace.encode("utf-8", "surrogatepass"))
        self._first = keys.ids[0]

    def sign(self, kind: str, tenant: str, facts: Sequence[object], data: bytes = b"") -> str:
        """Return the MAC of a row: of its kind, tenant, key and content. Facts are texts, numbers or None."""
        return self._mac(self._first, (kind, tenant, *_same(facts)), data)

    def check(self, mac: object, kind: str, tenant: str, facts: Sequence[object], data: bytes = b"") -> bool:
        """Return True if one of the keys signed the row."""
        return self._has(mac, (kind, tenant, *_same(facts)), data)

    def _mac(self, id: str, facts: tuple[object, ...], data: bytes) -> str:
        state = self._states[id].copy()
        text = _encoded(facts)
        state.update(b"%d:%b%b" % (len(text), text, data))
        return f"{id}.{state.hexdigest()}"

    def _has(self, mac: object, facts: tuple[object, ...], data: bytes) -> bool:
        if not isinstance(mac, str) or not isinstance(data, bytes):  # SQLite stores any type
            return False
        id = mac.partition(".")[0]
        return id in self._states and hmac.compare_digest(
            mac.encode("utf-8", "replace"), self._mac(id, facts, data).encode()
        )

    # ------------------------------------------------------------------ effects

    def sign_effect(self, tenant: str, effect: EffectRecord) -> str:
        """Return the MAC of an effect that is claimed. The lease and the token are not signed: they only refuse."""
        return self._mac(self._first, _effect_facts(tenant, effect, effect.state, effect), effect.receipt or b"")

    def sign_outcome(self, tenant: str, effect: EffectRecord, outcome: SignedOutcome) -> str:
        """Return the MAC of an effect with an outcome."""
        return self._mac(self._first, _effect_facts(tenant, effect, outcome.state, outcome), outcome.receipt or b"")

    def refuse_changed(self, tenant: str, effect: EffectRecord) -> None:
        """Check the MAC of an effect.

        A lease that ends changes the state without a key, so ``unknown`` is also accepted from ``running``, and
        ``no_effect`` from ``claimed``.

        Raises:
            StoreError: the row is not signed, or was changed.
        """
        receipt = b"" if effect.receipt is None else effect.receipt
        known = self._has(effect.mac, _effect_facts(tenant, effect, effect.state, effect), receipt)
        before = _BEFORE_EXPIRY.get(effect.state)
        if not known and before is not None:
            known = self._has(
                effect.mac, _effect_facts(tenant, effect, before, replace(effect, ended_at=None)), receipt
            )
        if not known:
            raise refusal(EFFECT, effect.mac)


def refusal(kind: str, mac: object) -> StoreError:
    """Return the error about a row that does not verify."""
    if not mac:
        text = "is not signed; check it, and run `callgate stores sign` for rows from before the keys"
    else:
        text = "was changed, or its signing key was not given; restore it, or delete it"
    return StoreError(f"a row of kind {kind} {text}", code=ROW_REFUSED)


def claim_of(effect: EffectRecord) -> str:
    """Return the identity of the claim of an effect; see ``same_claim``."""
    return ascii((effect.owner, effect.request_id, effect.began_at))


def cache_facts(key: str, entry: CacheEntry) -> tuple[object, ...]:
    """Return the signed facts of a cached value; its value is the data."""
    return key, entry.made_at, entry.fresh_until, entry.stale_until, *sorted(entry.tags)


def grant_facts(grant: Grant) -> tuple[object, ...]:
    """Return the signed facts of a consent."""
    return grant.user, grant.tool, grant.scope, grant.granted_at, grant.expires_at


def pin_facts(pin: Pin) -> tuple[object, ...]:
    """Return the signed facts of a pin."""
    return pin.provider, pin.tool, pin.digest, pin.at, pin.by


def signed_result(
    signer: RowSigner,
    tenant: str,
    id: str,
    token: int,
    state: JobState,
    at: float | None,
    result: bytes | None,
    reason: str | None,
) -> str:
    """Return the MAC of the result of a job, behind the token of the attempt that ended so."""
    return f"{token}:{signer.sign(JOB, tenant, (id, token, state.value, at, reason, result is None), result or b'')}"


def is_recorded(job: Job) -> bool:
    """Return True if a job has what ``signed_result`` signs: an end, a suspension, or the result of an earlier one."""
    return job.result is not None or job.state not in _UNDER_WAY


def job_is_whole(signer: RowSigner, tenant: str, job: Job) -> bool:
    """Return True if the end or the suspension of a job is signed.

    A job that goes on after a decision keeps the result of its suspension, which an earlier attempt has signed.
    """
    token, _, mac = (job.result_mac if isinstance(job.result_mac, str) else "").partition(":")  # SQLite stores any type
    if not isinstance(job.token, int) or not token.isdecimal() or len(token) > 19 or int(token) > job.token:
        return False
    if job.state in _UNDER_WAY:  # it waited before
        end: tuple[object, ...] = (JobState.INPUT_REQUIRED.value, None, None)
    elif int(token) == job.token:
        end = (job.state.value, job.ended_at, job.reason)
    else:
        return False
    return signer.check(mac, JOB, tenant, (job.id, int(token), *end, job.result is None), job.result or b"")


# The reason and the progress of a job that has not ended change without its other columns, also of many jobs in one
# statement. So each of these columns holds its own MAC. That of a reason names no job.


def sealed_reason(signer: RowSigner, reason: str) -> str:
    """Return the reason of a job that has not ended with its MAC."""
    if reason == NO_KEY:
        return reason
    return f"{reason}{REASON_MARK}{signer.sign(_REASON, '', (reason,))}]"


def sealed_progress(signer: RowSigner, tenant: str, id: str, progress: bytes) -> bytes:
    """Return the progress of a job with its MAC."""
    return b"%b%b %b" % (PROGRESS_MARK, signer.sign(_PROGRESS, tenant, (id,), progress).encode(), progress)


def unsealed(signer: RowSigner | None, tenant: str, job: Job) -> tuple[Job, bool]:
    """Return a job as it was before the MACs of its texts were added; False if it has ended and they do not fit.

    While it has not ended, a worker with other keys may have written them: they are then not shown.
    """
    is_over = job.state in FINAL_STATES
    reason, progress, mac, tag = job.reason, job.progress, "", b""
    if reason is not None and not is_over and REASON_MARK in reason:
        reason, _, mac = reason.removesuffix("]").rpartition(REASON_MARK)
    if progress is not None and progress.startswith(PROGRESS_MARK):
        tag, _, progress = progress.removeprefix(PROGRESS_MARK).partition(b" ")
    fits = True
    if signer is not None:
        if not (reason in {None, NO_KEY} or is_over or signer.check(mac, _REASON, "", (reason,))):
            reason = UNREADABLE
        text = tag.decode("ascii", "replace")
        if not (progress is None or signer.check(text, _PROGRESS, tenant, (job.id,), progress)):
            progress, fits = None, not is_over
    if reason is not job.reason or progress is not job.progress:
        job = replace(job, reason=reason, progress=progress)
    return job, fits and (is_over or job.ended_at is None or signer is None)


def version_facts(kind: str, key: str, version: Version, ends: float | None) -> tuple[object, ...]:
    """Return the signed facts of a counter."""
    return kind, key, version.number, version.latest, ends


_BEFORE_EXPIRY = {EffectState.UNKNOWN: EffectState.RUNNING, EffectState.NO_EFFECT: EffectState.CLAIMED}
"""The state of an effect before its lease ended, by the state after it."""


def _same(facts: Sequence[object]) -> list[object]:
    """Return facts as every database returns them: 1 is 1.0."""
    return [float(fact) if type(fact) is int else fact for fact in facts]


def _encoded(facts: tuple[object, ...]) -> bytes:
    """Return facts as JSON, which tells None, texts and numbers apart."""
    try:
        return orjson.dumps(facts)  # ascii() takes sixty times as long, and a call signs twice
    except TypeError:  # such as half of a surrogate pair, or bytes in a column of texts: SQLite stores any type
        return json.dumps(facts, default=lambda fact: {"of another type": repr(fact)}).encode()


_CLAIMED = attrgetter(
    *("key", "tool", "version", "user", "input_hash", "request_id", "owner", "session_id", "call_id"),
    *("idempotency_key", "alias_of"),
)


def _effect_facts(
    tenant: str, effect: EffectRecord, state: EffectState, outcome: EffectRecord | SignedOutcome
) -> tuple[object, ...]:
    began, ended, without = float(effect.began_at), outcome.ended_at, outcome.receipt is None
    return EFFECT, tenant, _CLAIMED(effect), began, state.value, ended, outcome.expires_at, outcome.note, without
