"""Suspension of a call for a person or a client: the first run ends here; a resumed run continues with the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from callgate.errors import ControlSuspend
from callgate.hooks.facts import FROZEN, Suspension
from callgate.hooks.run import CallContext
from callgate.tools.approval import Approval

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def ask(
    ctx: CallContext,
    kind: str,
    prompt: str,
    schema: Mapping[str, object] | None,
    expires: float | None,
    by: Approval | None,
    name: str | None,
) -> object:
    """See ``InvokeContext.suspend``."""
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(f"suspend: the name {name!r:.80} is not 1 to 64 letters, digits, '_' and '-'")
    place = _place(ctx, kind, name)
    if ctx.run.resumed is not None:
        answer = ctx.run.resumed.answer_at(place, ctx.input_hash if ctx.run.input_state == FROZEN else None)
        if answer is not None:
            return answer.take()
    rules = (by or Approval(),) if kind == "approval" or by is not None else ()
    if expires is None and by is not None:
        expires = by.expires
    raise ControlSuspend(Suspension(kind, prompt, schema, expires, rules=rules, place=place, name=name))


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
