"""Decisions on a suspended call: approve, deny, edit or respond."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from callgate.errors import Invalid
from callgate.hooks.approval import PLACE
from callgate.hooks.builtin import refusal
from callgate.hooks.plan import Plan
from callgate.providers.ids import flaw_of
from callgate.providers.principal import User
from callgate.runtime.suspensions.resumption import Answer, SuspendedCall
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.schemas.validation import Validator, compile_schema
from callgate.tools.values import hash_of, plain_json

LONGEST_TEXT = 65_536
"""Maximum size of a text in a decision, in bytes."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A suspended call as its approver sees it. Callgate makes ``text`` from the arguments; no model writes it.

    ``arguments`` are exactly those that would run; None if they were not parsed yet. ``approvals`` are the ids of the
    approvers so far, ``needed`` the number of approvals for each rule. Times are seconds since the epoch.
    """

    handle: str
    kind: str
    tool: str
    text: str
    prompt: str
    arguments: Mapping[str, Any] | None
    requested_by: str
    made_at: float
    expires_at: float | None
    schema: Mapping[str, Any] | None = None
    approvals: tuple[str, ...] = ()
    needed: tuple[int, ...] = ()
    escalated: bool = False


@dataclass(frozen=True, slots=True)
class Approve:
    """Run the call with exactly the arguments that the approver saw."""


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse the call for good. *reason* goes to logs and audit; the model may read *public*."""

    reason: str = ""
    public: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """Run the call with other arguments. They are validated and authorised anew; earlier approvals no longer count."""

    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Respond:
    """The requested answer. For a call that waits for approval: its output, in place of running the tool.

    With *error* there is no answer: the model gets the text as the tool's error.
    """

    value: Any = None
    error: str | None = None


Decision: TypeAlias = Approve | Deny | Edit | Respond | Literal["approve", "deny"]
"""What ``gate.resume`` takes; the two words are ``Approve()`` and ``Deny()``."""

_WORDS: dict[str, Approve | Deny] = {"approve": Approve(), "deny": Deny()}


def as_decision(given: object) -> Approve | Deny | Edit | Respond:
    """Return the argument of ``gate.resume`` as a decision.

    Raises:
        TypeError: the value is not a decision.
        Invalid: a text of it cannot be stored.
    """
    found = _WORDS.get(given) if isinstance(given, str) else given
    if not isinstance(found, Approve | Deny | Edit | Respond):
        raise TypeError("a decision is Approve(), Deny(reason), Edit(arguments), Respond(value), 'approve' or 'deny'")
    if isinstance(found, Edit) and not isinstance(found.arguments, Mapping):
        raise TypeError("Edit takes the whole arguments, as a mapping")
    for name in ("reason", "public", "error"):
        if (flaw := flaw_of(getattr(found, name, None), LONGEST_TEXT)) is not None:
            raise Invalid(f"{name} {flaw}; a database cannot keep it", code="invalid_answer", no_effect=True)
    return found


def name_of(decision: Approve | Deny | Edit | Respond) -> str:
    """Return the name of the decision in records."""
    return type(decision).__name__.lower()


def is_final(decision: object, bound: SuspendedCall) -> bool:
    """Return whether a decision needs no further approval: it replaces the run, or ends the call with an error."""
    return isinstance(decision, Respond) and (bound.place == PLACE or decision.error is not None)


def may_decide(bound: SuspendedCall, person: User, waited: float) -> bool:
    """Return whether a person of the caller's tenant may decide: by any rule, or as caller without rules."""
    if not bound.rules:
        return person.id == bound.user.id
    return any(rule.allows(person, bound.user.id, waited) for rule in bound.rules)


RULES = b'"rules":['
"""Where the rules begin in the body of a suspended call. The requester, who has roles, too, comes before."""


def parts_for(person: User) -> list[bytes]:
    """Return parts of which a body has one behind ``RULES`` if its rules let a person decide: see ``Approval.to_dict``.

    Other bodies may have one, too, so ``may_decide`` has the last word.
    """
    return [b'"roles":[],"quorum"', *(json.dumps(role).encode() for role in person.roles)]


def fitting_answer(plan: Plan, bound: SuspendedCall, decision: Respond) -> object:
    """Return the answer if it fits the requested schema.

    Raises:
        Invalid: it does not.
    """
    if decision.error is not None:
        return None
    if bound.place == PLACE:
        validator = plan.builtins.output
    else:
        validator = None if bound.schema is None else compile_schema(bound.schema, trusted=False)
    try:
        value = plain_json(decision.value, plan.builtins.limits.max_depth)
    except (TypeError, ValueError):
        raise Invalid("the answer is not JSON", code="invalid_answer") from None
    check_value(validator, value)
    return value


def with_decision(
    plan: Plan, bound: SuspendedCall, decision: Approve | Edit | Respond, approver: User, waited: float
) -> SuspendedCall:
    """Return the call with a decision; an edit drops earlier approvals.

    Raises:
        Invalid: the arguments or the answer do not fit.
    """
    answer = Answer(by=approver.id)
    if isinstance(decision, Respond):
        answer = Answer(fitting_answer(plan, bound, decision), decision.error, approver.id)
        if is_final(decision, bound):
            return replace(bound, answers={**bound.answers, bound.place: answer})
    elif bound.schema is not None:
        raise Invalid("an answer was asked for: Respond(value)", code="answer_expected")
    elif isinstance(decision, Edit):
        if not bound.frozen:
            raise Invalid("its arguments were not read yet: there is nothing to edit", code="not_editable")
        arguments = parse_arguments(dict(decision.arguments), limits=plan.builtins.limits).value
        check_value(plan.builtins.arguments, arguments)
        arguments = plan.builtins.settled(arguments)
        edited = plan.builtins.hash_of(arguments)
        changed = bound.changed or edited != bound.input_hash
        bound = replace(bound, arguments=arguments, input_hash=edited, approvals=(), answers={}, changed=changed)
    said = bound.answers.get(bound.place)
    agree = said is None or hash_of(said.value) == hash_of(answer.value)
    if bound.rules:  # an approver counts once, with current roles; a different answer drops the others
        others = (one for one in bound.approvals if one[0] != bound.place or (agree and one[1].id != approver.id))
        bound = replace(bound, approvals=(*others, (bound.place, approver, waited)))
    return bound if bound.place == PLACE else replace(bound, answers={**bound.answers, bound.place: answer})


def check_value(validator: Validator | None, value: object) -> None:
    """Refuse edited arguments, or an answer, that break their schema."""
    if validator is not None:
        try:
            validator.check(value)
        except Exception as error:
            raise refusal(validator, value) from error
