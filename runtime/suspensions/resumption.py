"""A call that waits, as it lies in the store and as it is when it goes on: bound to all that it was decided on.

Everything about it is in one JSON body, and a MAC covers the body and every column beside it: what anybody changed in
the store who does not have the signing key is not resumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from callgate.errors import NotPending, ToolError
from callgate.hooks.approval import PLACE
from callgate.providers.principal import User
from callgate.providers.principal_json import user_as_json, user_from_json
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import Wait, WaitState
from callgate.tools.approval import Approval, met
from callgate.tools.values import canonical

VERSION = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody answered at one place of the lifecycle."""

    value: Any = None
    error: str | None = None
    by: str | None = None

    def take(self) -> Any:
        """The value.

        Raises:
            ToolError: there is none, and that is why.
        """
        if self.error is not None:
            raise ToolError(self.error, code="declined")
        return self.value


@dataclass(frozen=True, slots=True)
class Bound:
    """What a suspended call is bound to. ``arguments`` are the frozen ones, or the raw text where it was not read yet.

    ``version`` is the digest of the tool's definition, ``policy`` that of what authorises it. ``place`` is where it waits.
    ``approvals`` are those given so far: where, by whom, and after how many seconds; ``answers`` are by place, too. All
    of them are for the arguments of ``input_hash``; None: they were not read when anybody decided.
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
    schema: Mapping[str, Any] | None
    rules: tuple[Approval, ...]
    nonce: str
    approvals: tuple[tuple[str, User, float], ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict[str, Answer])

    def given_at(self, place: str) -> list[tuple[User, float]]:
        """The approvals that were given at a place."""
        return [(user, waited) for where, user, waited in self.approvals if where == place]

    @property
    def is_met(self) -> bool:
        """Whether all who have to have approved, where it waits now."""
        given = self.given_at(self.place)
        return all(met(rule, given, self.user.id) for rule in self.rules)

    def dump(self) -> bytes:
        """As JSON."""
        body = {name: getattr(self, name) for name in _PLAIN}
        body |= {
            "v": VERSION,
            "user": user_as_json(self.user),
            "rules": [rule.to_dict() for rule in self.rules],
            "approvals": [[place, user_as_json(user), waited] for place, user, waited in self.approvals],
            "answers": {place: [one.value, one.error, one.by] for place, one in self.answers.items()},
        }
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> Bound:
        """What ``dump`` wrote.

        Raises:
            ValueError, TypeError, KeyError: another version did.
        """
        body = json.loads(data)
        if body["v"] != VERSION:
            raise ValueError("another version of Callgate wrote this")
        return cls(
            **{name: body[name] for name in _PLAIN},
            user=user_from_json(body["user"]),
            rules=tuple(Approval.from_dict(rule) for rule in body["rules"]),
            approvals=tuple((place, user_from_json(user), waited) for place, user, waited in body["approvals"]),
            answers={place: Answer(*one) for place, one in body["answers"].items()},
        )


_PLAIN = (
    "tool",
    "version",
    "policy",
    "arguments",
    "frozen",
    "input_hash",
    "request_id",
    "session_id",
    "call_id",
    "synthetic_id",
    "truncated",
    "idempotency_key",
    "place",
    "prompt",
    "schema",
    "nonce",
)


# ---------------------------------------------------------------------- sealing


def sealed(keys: SigningKeys, tenant: str, wait: Wait) -> Wait:
    """The row with its MAC."""
    return replace(wait, mac=keys.sign(*_parts(tenant, wait)))


def is_whole(keys: SigningKeys, tenant: str, wait: Wait) -> bool:
    """Whether nobody has changed anything of a row."""
    try:
        return isinstance(wait.mac, str) and keys.verify(wait.mac, *_parts(tenant, wait))
    except (TypeError, ValueError):  # such as a time that is no number: we wrote none
        return False


def _parts(tenant: str, wait: Wait) -> tuple[bytes, ...]:
    beside = [wait.id, wait.kind, wait.tool, wait.user, wait.made_at, wait.expires_at, wait.state.value, wait.number]
    return b"wait", tenant.encode("utf-8", "surrogatepass"), canonical(beside), wait.body


def handle_of(keys: SigningKeys, tenant: str, id: str) -> str:
    """What resumes a call: its id, and a MAC that whoever reads the store cannot make."""
    return f"{id}.{keys.sign(b'handle', tenant.encode('utf-8', 'surrogatepass'), id.encode())}"


def id_in(keys: SigningKeys, tenant: str, handle: Any) -> str:
    """The id of a handle.

    Raises:
        NotPending: it is none, or another tenant's.
    """
    id, _, mac = handle.partition(".") if isinstance(handle, str) else ("", "", "")
    signed = b"handle", tenant.encode("utf-8", "surrogatepass"), id.encode("utf-8", "replace")
    if not keys.verify(mac, *signed):
        raise NotPending("no such handle")
    return id


# ---------------------------------------------------------------------- going on


class Resumed:
    """The run of a call that waited: what it was answered, and the row that its effect uses up."""

    __slots__ = ("_keys", "bound", "id", "tenant", "wait")

    def __init__(self, keys: SigningKeys, tenant: str, wait: Wait, bound: Bound) -> None:
        self._keys = keys
        self.tenant = tenant
        self.wait = wait
        self.bound = bound
        self.id = wait.id

    def answer_at(self, place: str, input_hash: str | None) -> Answer | None:
        """The answer that was given there; none where it was to other arguments than these (None: not read yet)."""
        other = None not in {input_hash, self.bound.input_hash} and input_hash != self.bound.input_hash
        return None if other else self.bound.answers.get(place)

    def is_answered_at(self, place: str) -> bool:
        """Whether an answer was given there, to whatever arguments."""
        return place in self.bound.answers

    def approved(self, rules: Sequence[Approval], input_hash: str) -> bool:
        """Whether these arguments have been approved, by the rules as they are now."""
        bound = self.bound
        return input_hash == bound.input_hash and all(met(rule, bound.given_at(PLACE), bound.user.id) for rule in rules)

    def used(self, state: WaitState = WaitState.USED) -> Wait:
        """The next version of the row, in which it waits no more."""
        after = replace(self.wait, state=state, number=self.wait.number + 1, body=self.bound.dump())
        return sealed(self._keys, self.tenant, after)
