"""Decisions on a suspended call: approve, deny, edit or respond."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from callgate.errors import Invalid
from callgate.hooks.plan import Plan
from callgate.hooks.stages import Stage
from callgate.hooks.state.asking import answers_schema
from callgate.hooks.state.facts import Suspension
from callgate.providers.ids import flaw_of
from callgate.providers.principal import User
from callgate.providers.stores.effects import SuspensionRecord
from callgate.runtime.pipeline.approval import PLACE
from callgate.runtime.pipeline.builtin import refusal
from callgate.runtime.suspensions.resumption import Answer, SuspendedCall
from callgate.tools.approval import Question
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.calls import Issue
from callgate.tools.schemas.validation import Validator, compile_schema
from callgate.tools.values import hash_of, plain_json

LONGEST_TEXT = 65_536
"""Maximum size of a text in a decision, in bytes."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A suspended call as its approver sees it. Callgate makes ``text`` from the arguments; no model writes it.

    ``arguments`` are exactly those that would run; None if they were not parsed yet. ``approvals`` are the ids of the
    approvers so far, ``needed`` the number of approvals for each rule. ``decided`` is True once ``gate.proceed`` can run
    the call. ``questions`` are those that still wait for an answer, by name, of a call that asks several at once. Times are seconds since the epoch.
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
    decided: bool = False
    questions: Mapping[str, Question] | None = None


def suspension_of(bound: SuspendedCall, kind: str, handle: str) -> Suspension:
    """Return the suspension of a call as its caller reads it."""
    waiting = None if bound.questions is None else bound.waiting
    return Suspension(
        kind,
        bound.prompt,
        answers_schema(waiting) if waiting else bound.schema,
        None,
        handle,
        rules=bound.rules,
        place=bound.place,
        name=bound.name,
        decided=bound.decided,
        questions=waiting,
    )


def call_text(bound: SuspendedCall) -> str:
    """Return a call as text, made from the arguments that would run and escaped against spoofing."""
    if not bound.frozen or not isinstance(bound.arguments, dict):
        return f"{bound.tool}(…)"
    shown = (f"{_name_text(name)}={json.dumps(value, ensure_ascii=True)}" for name, value in bound.arguments.items())
    return f"{bound.tool}({', '.join(shown)})"


def _name_text(name: str) -> str:
    """Return the name of an argument, quoted if it is not an identifier: a model may invent any name."""
    return name if name.isascii() and name.isidentifier() else json.dumps(name, ensure_ascii=True)


def pending_of(bound: SuspendedCall, wait: SuspensionRecord, handle: str, now: float) -> Pending:
    """Return a suspended call as its approver sees it."""
    asked = suspension_of(bound, wait.kind, handle)
    return Pending(
        handle,
        wait.kind,
        wait.tool,
        call_text(bound),
        bound.prompt,
        bound.arguments if bound.frozen else None,
        wait.user,
        wait.made_at,
        wait.expires_at,
        asked.schema,
        tuple(bound.approvers),
        tuple(rule.quorum for rule in bound.rules),
        any(r.escalate_after is not None and now - wait.made_at >= r.escalate_after for r in bound.rules),
        bound.decided,
        asked.questions,
    )


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

    Where a hook asks for the approval, the hook gets the answer, and the tool runs.
    With *error* there is no answer: the model gets the text as the tool's error.
    """

    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NamedAnswers(Respond):
    """Answers by the names of their questions; ``gate.resume`` makes it of a mapping."""


Decision: TypeAlias = Approve | Deny | Edit | Respond | Mapping[str, Any] | Literal["approve", "deny"]
"""What ``gate.resume`` takes. The words are ``Approve()`` and ``Deny()``; a mapping has answers by the names of questions."""

_WORDS: dict[str, Approve | Deny] = {"approve": Approve(), "deny": Deny()}


def as_decision(given: object) -> Approve | Deny | Edit | Respond:
    """Return the argument of ``gate.resume`` as a decision.

    Raises:
        TypeError: the value is not a decision.
        Invalid: a text of it cannot be stored.
    """
    found = _WORDS.get(given) if isinstance(given, str) else given
    if isinstance(found, Mapping):
        found = NamedAnswers(dict(found))
    if not isinstance(found, Approve | Deny | Edit | Respond):
        raise TypeError(
            f"the decision is of type {type(found).__name__}; write gate.resume(handle, Approve(), approver=user), or "
            "Deny(reason), Edit(arguments), Respond(value), {name: answer}, 'approve' or 'deny'"
        )
    if isinstance(found, Edit) and not isinstance(found.arguments, Mapping):
        raise TypeError("Edit takes the whole arguments, as a mapping")
    for name in ("reason", "public", "error"):
        if (flaw := flaw_of(getattr(found, name, None), LONGEST_TEXT)) is not None:
            raise Invalid(f"{name} {flaw}; a database cannot keep it", code="invalid_answer", no_effect=True)
    return found


def name_of(decision: Approve | Deny | Edit | Respond) -> str:
    """Return the name of the decision in records."""
    return "respond" if isinstance(decision, Respond) else type(decision).__name__.lower()


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
    value: object = decision.value
    if isinstance(decision, NamedAnswers):
        if decision.value.keys() != {bound.name}:
            name = "has no name: Respond(value)" if bound.name is None else f"is {bound.name!r}"
            public = "The call does not ask a question of that name."
            raise Invalid(f"the call asks one question, which {name}", code="answer_expected", public=public)
        value = decision.value[bound.name]
    return _fitting(plan, validator, value)


def _fitting(plan: Plan, validator: Validator | None, given: object) -> object:
    try:
        value = plain_json(given, plan.builtins.limits.max_depth)
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
            places = [one.place for one in bound.waiting.values()] or [bound.place]
            if bound.rules and not bound.place.startswith(Stage.WILL_EXECUTE):  # a tool handles that of its question
                places.append(PLACE)  # or the tool would run where its hook asks no more
            return replace(bound, answers={**bound.answers, **dict.fromkeys(places, answer)})
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
    return _with_answer(bound, bound.place, answer, approver, waited)


def _with_answer(bound: SuspendedCall, place: str, answer: Answer, approver: User, waited: float) -> SuspendedCall:
    said = bound.answers.get(place)
    agree = said is None or hash_of(said.value) == hash_of(answer.value)
    if bound.rules:  # an approver counts once, with current roles; a different answer drops the others
        others = (one for one in bound.approvals if one[0] != place or (agree and one[1].id != approver.id))
        bound = replace(bound, approvals=(*others, (place, approver, waited)))
    return bound if place == PLACE else replace(bound, answers={**bound.answers, place: answer})


def with_named_answers(
    plan: Plan, bound: SuspendedCall, decision: Respond, approver: User, waited: float
) -> tuple[SuspendedCall, Invalid | None]:
    """Return the call with the answers that fit their questions, and the refusal of the others.

    Raises:
        Invalid: a question is unknown, none of the answers fits, or they are not a mapping.
    """
    asked = bound.questions or {}
    if not isinstance(decision.value, Mapping) or not decision.value or not decision.value.keys() <= asked.keys():
        names = ", ".join(asked)
        raise Invalid(
            f"answer its questions by their names, in a mapping: {names}",
            code="answer_expected",
            public="Answer the questions of the call by their names.",
        )
    given: dict[str, object] = dict(decision.value)
    issues, after = list[Issue](), bound
    for name, value in given.items():
        schema, place = asked[name]["schema"], asked[name]["place"]
        try:
            fitting = _fitting(plan, None if schema is None else compile_schema(schema, trusted=False), value)
        except Invalid as error:
            found = error.issues or (Issue("", "type", "not JSON"),)
            issues += [replace(one, pointer=f"/{name}{one.pointer}") for one in found]
        else:
            after = _with_answer(after, place, Answer(fitting, None, approver.id), approver, waited)
    if not issues:
        return after, None
    text = "; ".join(map(str, issues))[:2000]
    refused = Invalid(text, code="invalid_answer", issues=issues, public=f"These answers are not valid: {text}")
    if after is bound or after.is_met:  # the call would run, although an answer was refused
        raise refused
    return after, refused


def check_value(validator: Validator | None, value: object) -> None:
    """Refuse edited arguments, or an answer, that break their schema."""
    if validator is not None:
        try:
            validator.check(value)
        except Exception as error:
            raise refusal(validator, value) from error
