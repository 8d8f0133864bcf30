"""Where a call asks a person or a client: the first time it ends there, when it is resumed it goes on with the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.errors import ControlSuspend
from callgate.hooks.builtin import FROZEN
from callgate.hooks.facts import Suspension
from callgate.tools.approval import Approval


def ask(
    ctx: Any,
    kind: str,
    prompt: str,
    schema: Mapping[str, Any] | None,
    expires: float | None,
    by: Approval | None,
) -> Any:
    """See ``InvokeContext.suspend``."""
    place = _place(ctx, kind)
    if ctx.resumed is not None:
        answer = ctx.resumed.answer_at(place, ctx.input_hash if ctx._input_state == FROZEN else None)
        if answer is not None:
            return answer.take()
    rules = (by or Approval(),) if kind == "approval" or by is not None else ()
    if expires is None and by is not None:
        expires = by.expires
    raise ControlSuspend(Suspension(kind, prompt, schema, expires, rules=rules, place=place))


def _place(ctx: Any, kind: str) -> str:
    """A name for where somebody is asked that is the same when the call runs again."""
    asker = f"{ctx.step.stage}/{ctx.step.name}/{kind}"
    if ctx.asked is None:
        ctx.asked = {}
    ctx.asked[asker] = number = ctx.asked.get(asker, 0) + 1
    return f"{asker}/{number}"


def token_of(ctx: Any) -> int | None:
    """See ``ToolContext.fencing_token``."""
    return None if ctx.claim is None else ctx.claim.token
