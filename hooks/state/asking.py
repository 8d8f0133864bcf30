"""Suspension of a call for a person or a client: the first run ends here; a resumed run continues with the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from callgate.errors import ControlSuspend
from callgate.hooks.state.facts import FROZEN, GivenAnswer, Suspension
from callgate.hooks.state.run import CallContext
from callgate.tools.approval import Approval, Question
from callgate.tools.values import thaw

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def ask(
    ctx: CallContext,
    kind: str,
    prompt: str,
    schema: Mapping[str, object] | None,
    expires: float | None,
    by: Approval | None,
    name: str | None,
    questions: Mapping[str, Question] | None,
) -> object:
    """See ``InvokeContext.suspend``."""
    _check(name, schema, questions)
    if questions is None:
        place = _place(ctx, kind, name)
        answer = _answer_at(ctx, place)
        if answer is not None:
            return answer.take()
        waiting = None
    else:
        placed = {each: replace(one, place=_place(ctx, kind, each)) for each, one in questions.items()}
        answers = {each: _answer_at(ctx, one.place) for each, one in placed.items()}
        waiting = {each: one for each, one in placed.items() if answers[each] is None}
        if not waiting:
            return {each: answer.take() for each, answer in answers.items() if answer is not None}
        place, schema = _place(ctx, kind, f"[{','.join(sorted(questions))}]"), answers_schema(waiting)
    rules = (by or Approval(),) if kind == "approval" or by is not None else ()
    if expires is None and by is not None:
        expires = by.expires
    asked = Suspension(kind, prompt, schema, expires, rules=rules, place=place, name=name, questions=waiting)
    raise ControlSuspend(asked)


def answers_schema(questions: Mapping[str, Question]) -> dict[str, object]:
    """Return the schema of the answers to several questions, for clients that send all of them as one object."""
    fields = {name: {} if one.schema is None else thaw(one.schema) for name, one in questions.items()}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _check(name: str | None, schema: object, questions: Mapping[str, Question] | None) -> None:
    for each in questions or ([] if name is None else [name]):
        if not isinstance(each, str) or not _NAME.fullmatch(each):
            raise ValueError(f"suspend: the name {each!r:.80} is not 1 to 64 letters, digits, '_' and '-'")
    if questions is None:
        return
    if not questions or name is not None or schema is not None:
        raise ValueError('suspend: write questions={"day": Question("Which day?", schema)}, without name= and schema=')
    if any(not isinstance(one, Question) for one in questions.values()):
        raise TypeError('suspend: questions maps names to questions: {"day": Question("Which day?", schema)}')


def _answer_at(ctx: CallContext, place: str) -> GivenAnswer | None:
    resumed = ctx.run.resumed
    return (
        None if resumed is None else resumed.answer_at(place, ctx.input_hash if ctx.run.input_state == FROZEN else None)
    )


def _place(ctx: CallContext, kind: str, name: str | None) -> str:
    """Return the place of the request, which is the same when the call runs again. Named ones are counted by their name."""
    asker = f"{ctx.run.step.stage}/{ctx.run.step.name}/{kind}"
    if name is not None:
        asker = f"{asker}/{name}"
    if ctx.run.asked is None:
        ctx.run.asked = {}
    ctx.run.asked[asker] = number = ctx.run.asked.get(asker, 0) + 1
    return f"{asker}/{number}"


def token_of(ctx: CallContext) -> int | None:
    """See ``ToolContext.fencing_token``."""
    return None if ctx.run.claim is None else ctx.run.claim.token
