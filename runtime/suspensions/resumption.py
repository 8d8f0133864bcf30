"""A suspended call, in the store and on resumption, bound to the facts of its decision.

One JSON body holds the call, and a MAC covers the body and the other columns. The gate does not resume a row that was
changed without the signing key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from callgate.errors import Denied, NotPending, ToolError
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.selection import why_not
from callgate.hooks.stages import Stage
from callgate.hooks.state.facts import FROZEN, Suspension
from callgate.providers.ids import new_id
from callgate.providers.principal import User
from callgate.providers.principal_json import user_as_json, user_from_json
from callgate.providers.scrubbing import Scrubber
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.runtime.pipeline.approval import PLACE
from callgate.runtime.pipeline.compile import plan_with_approval
from callgate.tools.approval import Approval, Question, met
from callgate.tools.arguments.hydration import Repair
from callgate.tools.calls import ToolCall
from callgate.tools.execution import NO_TASK, TaskIds
from callgate.tools.values import canonical, hash_of, thaw

VERSION = 1
_POLICY = (Stage.WILL_AUTHORIZE, Stage.WILL_AUTHORIZE_INPUT, Stage.WILL_CHECK_CONSENT, Stage.WILL_CHECK_FEATURE_FLAGS)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a suspension at one place of the lifecycle."""

    value: Any = None
    error: str | None = None
    by: str | None = None

    def take(self) -> object:
        """Return the value.

        Raises:
            ToolError: the answer is an error.
        """
        if self.error is not None:
            raise ToolError(self.error, code="declined")
        return self.value


@dataclass(frozen=True, slots=True)
class SuspendedCall:
    """The facts that a suspended call is bound to. ``arguments`` are frozen, or raw text if they were not parsed yet.

    ``version`` is the digest of the tool's definition, ``policy`` the digest of its policies. ``place`` is the place of
    the lifecycle where the call waits. ``approvals`` lists the approvals so far: place, approver and seconds waited.
    ``answers`` maps places to answers. Both apply to the arguments of ``input_hash``; None means that they were
    not parsed at the time of the decision. ``repair`` is the record of the repairer that wrote the arguments. ``task`` has
    the ids of the A2A task. ``job`` is the id of the job that made the call. Once it is ``decided``, a worker or ``gate.proceed`` runs
    the call. ``asked_hash`` is the ``input_hash`` of the caller, before an approver edited the arguments.
    ``changed`` is True if a hook or an approver has changed the arguments of the caller. ``name`` is that of the question.
    ``questions`` has the prompt, the schema and the place of each, for a call that asks several at once. ``raw`` is the
    identity of a call that was first suspended before its arguments were parsed. ``repeat`` is the chain of its repeats,
    for a call with ``joins_waiting``. ``more_keys`` are the keys of callers who repeated the call under its declared key.
    """

    tool: str
    version: str
    policy: str
    user: User
    arguments: Any
    frozen: bool
    input_hash: str | None
    request_id: str
    session_id: str | None
    call_id: str | None
    synthetic_id: bool
    truncated: bool
    idempotency_key: str | None
    place: str
    prompt: str
    schema: Mapping[str, object] | None
    rules: tuple[Approval, ...]
    nonce: str
    approvals: tuple[tuple[str, User, float], ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict[str, Answer])
    repair: Mapping[str, object] | None = None
    task: TaskIds = NO_TASK
    job: str | None = None
    decided: bool = False
    asked_hash: str | None = None
    changed: bool = False
    name: str | None = None
    questions: Mapping[str, Mapping[str, Any]] | None = None
    raw: str | None = None
    repeat: str | None = None
    more_keys: Sequence[str] = ()

    def given_at(self, place: str) -> list[tuple[User, float]]:
        """Return the approvals at a place."""
        return [(user, waited) for where, user, waited in self.approvals if where == place]

    def has_passed(self, other: SuspendedCall) -> bool:
        """Return whether this call has the decision that another one asks for, and waits for a later one."""
        asked = [one["place"] for one in (other.questions or {}).values()] or [other.place]
        return all(place in self.answers or self.given_at(place) for place in asked)

    @property
    def approvers(self) -> list[str]:
        """The ids of the people who approved, or answered with a rule, where the call waits now."""
        places = {self.place, *(one["place"] for one in (self.questions or {}).values())}
        return list(dict.fromkeys(user.id for place, user, _ in self.approvals if place in places))

    @property
    def deciders(self) -> list[str]:
        """The ids of the people who approved or answered."""
        answered = (one.by for one in self.answers.values() if one.by is not None)
        return sorted({*answered, *(user.id for _, user, _ in self.approvals)})

    @property
    def is_met(self) -> bool:
        """True once the call has all approvals that its current place requires, and the answers to all its questions."""
        return not self.waiting if self.questions is not None else self._is_met_at(self.place)

    @property
    def waiting(self) -> dict[str, Question]:
        """The questions that still wait for an answer, or for the same answer of further people."""
        asked = {name: Question(**one) for name, one in (self.questions or {}).items()}
        return {
            name: one for name, one in asked.items() if one.place not in self.answers or not self._is_met_at(one.place)
        }

    def _is_met_at(self, place: str) -> bool:
        given = self.given_at(place)
        return all(met(rule, given, self.user.id) for rule in self.rules)

    def dump(self) -> bytes:
        """Return the facts as JSON."""
        body = {name: getattr(self, name) for name in _PLAIN}
        body |= {
            "v": VERSION,
            "user": user_as_json(self.user),
            "task": list(self.task),
            "rules": [rule.to_dict() for rule in self.rules],
            "approvals": [[place, user_as_json(user), waited] for place, user, waited in self.approvals],
            "answers": {place: [one.value, one.error, one.by] for place, one in self.answers.items()},
        }
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> SuspendedCall:
        """Read the JSON that ``dump`` wrote.

        Raises:
            ValueError, TypeError, KeyError: another version of Callgate wrote it.
        """
        body: dict[str, Any] = json.loads(data)
        body = {
            "repair": None,
            "task": (),
            "job": None,
            "decided": False,
            "asked_hash": None,
            "changed": False,
            "name": None,
            "questions": None,
            "raw": None,
            "repeat": None,
            "more_keys": (),
            **body,
        }  # rows of earlier versions have none
        if body["v"] != VERSION:
            raise ValueError("another version of Callgate wrote this")
        return cls(
            **{name: body[name] for name in _PLAIN},
            user=user_from_json(body["user"]),
            rules=tuple(Approval.from_dict(rule) for rule in body["rules"]),
            approvals=tuple((place, user_from_json(user), waited) for place, user, waited in body["approvals"]),
            answers={place: Answer(*one) for place, one in body["answers"].items()},
            task=TaskIds(*body["task"]),
        )


_CONVERTED = {"user", "rules", "approvals", "answers", "task"}
_PLAIN = tuple(one.name for one in fields(SuspendedCall) if one.name not in _CONVERTED)
"""The facts that are JSON as they are."""


# ---------------------------------------------------------------------- signing


def signed(keys: SigningKeys, tenant: str, wait: SuspensionRecord) -> SuspensionRecord:
    """Return the row with its MAC."""
    return replace(wait, mac=keys.sign(*_parts(tenant, wait)))


def is_whole(keys: SigningKeys, tenant: str, wait: SuspensionRecord) -> bool:
    """Return whether the MAC of a row fits its content."""
    try:
        return isinstance(wait.mac, str) and keys.verify(wait.mac, *_parts(tenant, wait))
    except (TypeError, ValueError):  # such as a time that is not a number: Callgate never writes one
        return False


def _parts(tenant: str, wait: SuspensionRecord) -> tuple[bytes, ...]:
    beside = [wait.id, wait.kind, wait.tool, wait.user, wait.made_at, wait.expires_at, wait.state.value, wait.number]
    return b"wait", tenant.encode("utf-8", "surrogatepass"), canonical(beside), wait.body


def handle_of(keys: SigningKeys, tenant: str, id: str) -> str:
    """Return the handle of a suspended call: its id, and a MAC that a reader of the store cannot compute."""
    return f"{id}.{keys.sign(b'handle', tenant.encode('utf-8', 'surrogatepass'), id.encode())}"


def id_in(keys: SigningKeys, tenant: str, handle: object) -> str:
    """Return the id in a handle.

    Raises:
        NotPending: the handle is invalid, or belongs to another tenant.
    """
    id, _, mac = handle.partition(".") if isinstance(handle, str) else ("", "", "")
    signed = b"handle", tenant.encode("utf-8", "surrogatepass"), id.encode("utf-8", "replace")
    if not keys.verify(mac, *signed):
        raise NotPending("no such handle")
    return id


def bound_call(
    ctx: InvokeContext, asked: Suspension, policy: str, raw: str | None, repeat: str | None
) -> SuspendedCall:
    """Return the facts of a call that asks for a decision.

    *policy* is the digest of its policies, *raw* its identity, and *repeat* the chain of its repeats.
    """
    from callgate.runtime.pipeline.changed_arguments import are_changed  # few calls wait

    frozen = ctx.run.input_state == FROZEN
    given = ctx.raw_input if not isinstance(ctx.raw_input, Mapping) else thaw(dict(ctx.raw_input))
    call, resumed = ctx.tool_call, ctx.run.resumed
    before = resumed.bound if isinstance(resumed, Resumed) else None
    asked_hash = None if before is None else before.asked_hash
    decided_on = None if before is None else before.input_hash
    input_hash = ctx.input_hash if frozen else decided_on
    if decided_on not in {None, input_hash}:  # earlier decisions apply to other arguments
        before = None
    return SuspendedCall(
        tool=ctx.tool_id,
        version=ctx.tool.binding_digest,
        policy=policy,
        user=ctx.user,
        arguments=thaw(ctx.run.input) if frozen else given,  # not the copy that hooks read
        frozen=frozen,
        input_hash=input_hash,
        request_id=ctx.request_id,
        session_id=ctx.run.session_id,
        call_id=call.id,
        synthetic_id=call.synthetic_id,
        truncated=call.truncated,
        idempotency_key=caller_key(ctx),
        place=asked.place,
        prompt=asked.prompt,
        name=asked.name,
        questions=None if asked.questions is None else questions_as_json(asked.questions),
        schema=None if asked.schema is None else thaw(asked.schema),
        rules=asked.rules,
        nonce=new_id(),
        approvals=() if before is None else before.approvals,
        answers={} if before is None else before.answers,
        repair=None if ctx.run.repair is None else ctx.run.repair.to_dict(),
        task=ctx.run.task,
        job=ctx.run.job,
        asked_hash=asked_hash or input_hash,
        changed=frozen and are_changed(ctx),
        raw=raw,
        repeat=repeat,
    )


def without_secrets(asked: Suspension, scrubber: Scrubber) -> Suspension:
    """Return what a call asks without the secrets of the call: it is stored, and people and models read it."""

    def clean(schema: Mapping[str, object] | None) -> Mapping[str, object] | None:
        found = None if schema is None else scrubber.value(thaw(schema))
        return found if isinstance(found, Mapping) else None

    questions = None
    if asked.questions is not None:
        questions = {
            name: replace(one, prompt=str(scrubber.value(one.prompt)), schema=clean(one.schema))
            for name, one in asked.questions.items()
        }
    prompt = str(scrubber.value(asked.prompt))
    return replace(asked, prompt=prompt, schema=clean(asked.schema), questions=questions)


def questions_as_json(questions: Mapping[str, Question]) -> dict[str, Any]:
    """Return questions by name as JSON."""
    made = {name: {"prompt": one.prompt, "schema": one.schema, "place": one.place} for name, one in questions.items()}
    found: dict[str, object] = thaw(made)
    return found


def policy_digest(plan: Plan, version: str) -> str:
    """Return the digest of a tool's policies: the application's version, and each policy hook with its version."""
    hooks = [
        [one.name, str(getattr(one.hook, "policy_version", ""))]
        for one in plan.registrations
        if why_not(one, plan.definition) is None
        and (not set(_POLICY).isdisjoint(one.all_stages()) or hasattr(one.hook, "approval_for"))
    ]
    return hash_of([version, hooks])


def caller_key(ctx: InvokeContext) -> str | None:
    """Return the idempotency key that the caller passed: a claim puts its own in the place of the key of the context."""
    claim = ctx.run.claim
    if claim is None:
        return ctx.run.idempotency_key
    return claim.effect.idempotency_key if claim.alias is None else claim.alias.given


def job_of(wait: SuspensionRecord) -> str | None:
    """Return the job of a suspended call. The record may be damaged: its job finds that out by itself."""
    try:
        return SuspendedCall.load(wait.body).job
    except (ValueError, TypeError, KeyError):
        return None


# ---------------------------------------------------------------------- resuming


class Resumed:
    """The run of a resumed call: its answers, and the row that its effect uses up."""

    __slots__ = ("_keys", "bound", "id", "tenant", "wait")

    def __init__(self, keys: SigningKeys, tenant: str, wait: SuspensionRecord, bound: SuspendedCall) -> None:
        self._keys = keys
        self.tenant = tenant
        self.wait = wait
        self.bound = bound
        self.id = wait.id

    def answer_at(self, place: str, input_hash: str | None) -> Answer | None:
        """Return the answer at a place; None if it applies to other arguments. *input_hash* None: not parsed yet."""
        other = None not in {input_hash, self.bound.input_hash} and input_hash != self.bound.input_hash
        return None if other else self.bound.answers.get(place)

    def is_answered_at(self, place: str) -> bool:
        """Return whether a place has an answer, for any arguments."""
        return place in self.bound.answers

    def approved(self, rules: Sequence[Approval], input_hash: str) -> bool:
        """Return whether the approvals of these arguments satisfy the current rules."""
        bound = self.bound
        return input_hash == bound.input_hash and all(met(rule, bound.given_at(PLACE), bound.user.id) for rule in rules)

    def used(self, state: SuspensionState = SuspensionState.USED) -> SuspensionRecord:
        """Return the next version of the row, in which the call no longer waits."""
        after = replace(self.wait, state=state, number=self.wait.number + 1, body=self.bound.dump())
        return signed(self._keys, self.tenant, after)


def context_of_resumed(plan: Plan, bound: SuspendedCall, resumed: Resumed | None) -> InvokeContext:
    """Return a new context for the same call; *resumed* is None if the call must not run."""
    if resumed is not None:
        plan = plan_with_approval(plan, repaired=bound.repair is not None, answered=PLACE in bound.answers)
    ctx = InvokeContext(plan, bound.arguments, bound.user, plan.now())
    if bound.repair is not None:
        ctx.run.repair = Repair.from_dict(bound.repair)
    ctx.run.tool_call = call = ToolCall(
        id=bound.call_id or "",
        name=bound.tool,
        arguments=bound.arguments,
        synthetic_id=bound.synthetic_id,
        truncated=bound.truncated,
    )
    if call.truncated:
        ctx.run.input = call  # as in ``context_of``
    ctx.run.request_id, ctx.run.session_id = bound.request_id, bound.session_id
    ctx.run.idempotency_key, ctx.run.task = bound.idempotency_key, bound.task
    ctx.run.joins_waiting = bound.repeat is not None
    ctx.run.resumed, ctx.run.deciders = resumed, tuple(bound.deciders)
    return ctx


def refused_context(plan: Plan, bound: SuspendedCall, refused: Denied) -> InvokeContext:
    """Return the context of a call that must not run; *plan* notifies the hooks that observe and record."""
    ctx = context_of_resumed(plan, bound, None)
    ctx.run.step, ctx.run.unknown = plan.start, refused
    if bound.frozen:
        ctx.run.input_state = FROZEN
    return ctx
