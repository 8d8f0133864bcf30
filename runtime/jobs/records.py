"""The stored form of a job: the call, its user and its options, with a signature; its progress, and the result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from callgate.errors import DefinitionError, OutcomeUnknown, StoreError
from callgate.hooks.state.facts import Suspension
from callgate.providers.ids import flaw_of
from callgate.providers.principal import User
from callgate.providers.principal_json import user_as_json, user_from_json
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.jobs import KEY, Fitting, Job, JobState, JobStore
from callgate.runtime.effects.idempotency_keys import scope_of
from callgate.runtime.pipeline.options import BadCall, CallOptions
from callgate.runtime.pipeline.streams import Progress
from callgate.runtime.suspensions.resumption import handle_of, questions_as_json
from callgate.tools.approval import Approval, Question
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.execution import NO_TASK, TaskIds
from callgate.tools.limits import fault_of_seconds
from callgate.tools.values import canonical, hash_of, thaw

VERSION = 1
_FIRST = ("tool", "version", "key_id", "deadline_at")

_SUBMITTED = ("id", "tool", "user", "made_at", "queue", "priority", "max_attempts")
"""The fields of a job beside its body that stay as they were submitted."""
_SUBMITTED_BEFORE = _SUBMITTED[:4]
"""Those that earlier versions signed. Such a job is valid; no actor without a key makes one of a newer job."""

WAITS = "waits for a worker"
"""What the ``reason`` of a job begins with that a worker has left."""
UNSETTLED = "the call may have taken effect"
"""What the ``reason`` of a job ends with whose last worker ended during the call, without its outcome."""
INTERRUPTED = f"{WAITS}: the last one ended during the call; {UNSETTLED}"

_CANCELLED = ErrorInfo("cancelled", "The call was cancelled.")
_FAILED = ErrorInfo("job_failed", "The worker of the call failed, and the call may have taken effect.")
_DEAD = ErrorInfo("job_dead", "The call was abandoned after too many attempts.")
_UNKNOWN = ErrorInfo(OutcomeUnknown.code, OutcomeUnknown.default_public, http_status=OutcomeUnknown.http_status)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The call of a job.

    ``deadline_at`` is in seconds since the epoch. ``trace`` has the trace headers of the request that submitted the job.
    ``task`` has the ids of the A2A task. ``version`` is ``ToolDefinition.binding_digest``: only a worker with that
    definition runs the call. ``key_id`` names the key that signed the job. Jobs of earlier versions have neither.
    """

    tool: str
    version: str | None
    key_id: str | None
    arguments: object
    user: User
    call_id: str
    request_id: str
    synthetic_id: bool = False
    truncated: bool = False
    session_id: str | None = None
    idempotency_key: str | None = None
    deadline_at: float | None = None
    idle: float | None = None
    trace: dict[str, str] | None = None
    task: TaskIds = NO_TASK

    @property
    def call(self) -> ToolCall:
        """The tool call."""
        return ToolCall(
            id=self.call_id,
            name=self.tool,
            arguments=self.arguments,
            synthetic_id=self.synthetic_id,
            truncated=self.truncated,
        )

    @property
    def options(self) -> CallOptions:
        """The options of the call, without the deadline."""
        return {
            "session_id": self.session_id,
            "request_id": self.request_id,
            "idempotency_key": self.idempotency_key,
            "task": self.task,
            "idle": self.idle,
        }

    def dump(self) -> bytes:
        """Encode as JSON.

        Raises:
            DefinitionError: the arguments are no JSON.
        """
        # What decides which workers it fits comes first, in one order: see `fitting`.
        body: dict[str, object] = {"v": VERSION, **{name: getattr(self, name) for name in _FIRST}}
        body |= {one.name: getattr(self, one.name) for one in fields(self)}
        body["user"] = user_as_json(self.user)
        if self.idle is None:  # older workers know no such limit
            del body["idle"]
        try:
            return _compact(body)
        except (TypeError, ValueError, RecursionError):
            raise DefinitionError("a job's arguments are JSON, or the text of it") from None

    @classmethod
    def load(cls, data: bytes) -> JobRequest:
        """Decode what ``dump`` wrote.

        Raises:
            ValueError, TypeError, KeyError: another version wrote it.
        """
        body: dict[str, Any] = {"version": None, "key_id": None} | json.loads(data)
        if body.pop("v") != VERSION:
            raise ValueError("another version of Callgate wrote this")
        body["user"], body["task"] = user_from_json(body["user"]), TaskIds(*body.get("task", ()))
        return cls(**body)


def fitting(versions: Iterable[tuple[str, str]], key_ids: Iterable[str]) -> Fitting:
    """Return which jobs fit a worker with these versions of tools and these signing keys; see ``JobRequest.dump``."""

    def beginning(tool: str, version: str) -> bytes:
        return _compact({"v": VERSION, "tool": tool, "version": version})[:-1] + b","

    return Fitting(
        frozenset(beginning(tool, version) for tool, version in versions),
        frozenset(KEY + _compact(id) + b"," for id in key_ids),
    )


def dump_result(result: ToolResult) -> bytes:
    """Encode a result as JSON. A suspension loses its handle: readers of the store may not resume it."""
    from callgate.runtime.pipeline.result_json import result_as_json

    kept, pending = result_as_json(result), result.pending
    if isinstance(pending, Suspension):
        kept["pending"] = {
            "kind": pending.kind,
            "prompt": pending.prompt,
            "schema": thaw(pending.schema),
            "expires": pending.expires,
            "id": None if pending.handle is None else pending.handle.partition(".")[0],
            "rules": [rule.to_dict() for rule in pending.rules],
            "place": pending.place,
            **({} if pending.name is None else {"name": pending.name}),  # older versions know no names
            **({} if pending.questions is None else {"questions": questions_as_json(pending.questions)}),
        }
    return json.dumps(kept, separators=(",", ":")).encode()


def load_result(keys: SigningKeys, tenant: str, data: bytes) -> ToolResult:
    """Decode what ``dump_result`` wrote; a suspension has its handle again.

    Raises:
        ValueError, TypeError, KeyError: the data is no result.
    """
    from callgate.runtime.pipeline.result_json import result_from_json

    kept: dict[str, Any] = json.loads(data)
    pending: dict[str, Any] | None = kept.pop("pending", None)
    result = result_from_json(kept)
    if pending is None:
        return result
    id, rules = pending.pop("id"), tuple(Approval.from_dict(rule) for rule in pending.pop("rules"))
    handle = None if id is None else handle_of(keys, tenant, id)
    if (asked := pending.pop("questions", None)) is not None:
        pending["questions"] = {name: Question(**one) for name, one in asked.items()}
    return replace(result, pending=Suspension(**pending, handle=handle, rules=rules))


def job_id_of(user: User, tool: str, key: str, namespace: str) -> str:
    """Return the id of the job of an idempotency key."""
    return hash_of(["job", *scope_of(user, namespace), tool, key])[:32]


def outcome_in(result: bytes | None) -> str | None:
    """Return the outcome in a stored result; None without one."""
    try:
        outcome = None if result is None else json.loads(result).get("outcome")
    except (ValueError, AttributeError):
        return None
    return outcome if isinstance(outcome, str) else None


def suspension_in(result: bytes | None) -> str | None:
    """Return the id of the suspension in a stored result; None without one. The store may have been written by others."""
    try:
        pending = None if result is None else json.loads(result).get("pending")
        id = None if pending is None else pending.get("id")
    except (ValueError, AttributeError):
        return None
    return id if isinstance(id, str) else None


def signed(keys: SigningKeys, tenant: str, job: Job) -> Job:
    """Return the job with its signature."""
    return replace(job, mac=keys.sign(*_parts(tenant, job, _SUBMITTED)))


def is_intact(keys: SigningKeys, tenant: str, job: Job) -> bool:
    """Return whether the signature fits the call of the job, its user, and how it was submitted."""
    return any(keys.verify(job.mac, *_parts(tenant, job, names)) for names in (_SUBMITTED, _SUBMITTED_BEFORE))


async def find_job(jobs: JobStore, keys: SigningKeys, tenant: str, id: str, user: str) -> Job | None:
    """Return a job of a user, or None.

    Raises:
        StoreError: the row was changed without the signing key, or the store failed.
    """
    job = None if flaw_of(id) is not None else await jobs.get(tenant, id)
    if job is None or job.user != user:
        return None
    if not is_intact(keys, tenant, job):
        from callgate.providers.stores.signed_rows import JOB, refusal

        raise refusal(JOB, job.mac)
    return job


def key_id_of(job: Job) -> str | None:
    """Return the id of the key that signed a job, as its body says; None for a body without one."""
    try:
        body = json.loads(job.body)
    except (ValueError, RecursionError):
        return None
    return body.get("key_id") if isinstance(body, dict) else None


def _compact(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _parts(tenant: str, job: Job, names: Sequence[str]) -> tuple[bytes, ...]:
    beside: Mapping[str, object] = {name: getattr(job, name) for name in names}
    return b"job", tenant.encode("utf-8", "surrogatepass"), canonical(beside), job.body


def time_of(now: float, at: datetime | None, delay: float | None) -> float:
    """Return the time to run a job, in seconds since the epoch.

    Raises:
        TypeError: *at* is no aware datetime, *delay* is no time in seconds, one is too far ahead, or both are given.
    """
    if at is None:
        if (fault := fault_of_seconds(delay, least=0.0)) is not None:
            raise BadCall(f"delay {fault}")
        return now + (delay or 0.0)
    if delay is not None:
        raise TypeError("submit takes at= or delay=, not both")
    if not isinstance(at, datetime) or at.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("submit: at takes an aware datetime, such as datetime.now(UTC); for seconds write delay=")
    if fault_of_seconds(max(at.timestamp() - now, 0.0), least=0.0) is not None:
        raise BadCall("at is more than 300 years ahead; give the time at which the job may run")
    return at.timestamp()


def request_of(job: Job) -> JobRequest:
    """Return the request of a stored job.

    Raises:
        StoreError: another version wrote it.
    """
    try:
        return JobRequest.load(job.body)
    except (ValueError, TypeError, KeyError):
        raise StoreError("another version of Callgate wrote the job of this key; use another key") from None


def is_unsettled(reason: str | None) -> bool:
    """Return whether the last worker of a job ended during the call, which may have taken effect."""
    return reason is not None and reason.endswith(UNSETTLED)


def result_without_run(job: Job) -> ToolResult:
    """Return the result of a job that was cancelled or abandoned before a run ended."""
    outcome = Outcome.CANCELLED if job.state is JobState.CANCELLED else Outcome.ERROR
    error = _CANCELLED if outcome is Outcome.CANCELLED else _DEAD
    if is_unsettled(job.reason):
        outcome, error = Outcome.UNKNOWN, _UNKNOWN
    return ToolResult(JobRequest.load(job.body).call_id, job.tool, outcome, error=error)


def failed_result(job: Job) -> ToolResult:
    """Return the result of a job whose worker could not end it: the call may have run."""
    return ToolResult(JobRequest.load(job.body).call_id, job.tool, Outcome.ERROR, error=_FAILED)


def progress_as_json(progress: Progress) -> bytes | None:
    """Encode a progress for the store; None if it is no JSON."""
    try:
        return orjson.dumps([progress.progress, progress.total, progress.message])
    except (TypeError, RecursionError):  # also a text with a lone surrogate
        return None


def progress_from_json(tool: str, data: bytes | None) -> Progress | None:
    """Decode what ``progress_as_json`` wrote."""
    return None if data is None else Progress(tool, *orjson.loads(data))


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job.

    ``reason`` says why the job was put back, is dead or was cancelled. ``progress`` is the last that the tool reported
    with ``ToolContext.progress``; it is up to a second old. ``pending`` is the suspension of a job that is
    ``input_required``. Times are aware datetimes.
    """

    id: str
    state: JobState
    attempts: int
    run_at: datetime
    made_at: datetime
    ended_at: datetime | None
    reason: str | None
    progress: Progress | None = None
    pending: Suspension | None = None


def never_began(status: JobStatus) -> bool:
    """Return whether no worker began the call of a job."""
    return status.attempts == 0 and not is_unsettled(status.reason)


def status_of_job(job: Job, pending: Suspension | None = None) -> JobStatus:
    """Return the state of a job; *pending* is the suspension that it waits for."""
    progress = progress_from_json(job.tool, job.progress)
    run_at, made_at = _moment(job.run_at), _moment(job.made_at)
    ended_at = None if job.ended_at is None else _moment(job.ended_at)
    return JobStatus(job.id, job.state, job.attempts, run_at, made_at, ended_at, job.reason, progress, pending)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
