"""What makes a call a repeat of another: the key of its effect (design 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from callgate.errors import Invalid
from callgate.tools.record import ToolRecord
from callgate.tools.values import hash_of

Identify: TypeAlias = Callable[[Any], str | None]
"""From a context to the key of its effect; None for a call that is like no other."""

LONGEST = 255
"""Characters of a key that a caller gives."""


def identifier(record: ToolRecord) -> Identify:
    """The rule of one tool.

    First is the caller's key, then the declared fields, then the arguments where a tool asks for that, then session,
    request and call id. What has none of them is like no other call. A key is a hash over tenant, user, tool and all
    that, so that nobody's key is another's, also where a tool hands it on to a service that knows no tenants.
    """
    tool, fields, by_arguments = record.id, tuple(record.definition.key), record.dedupe == "arguments"

    def identify(ctx: Any) -> str | None:
        if ctx.idempotency_key is not None:
            what: list[Any] = ["given", _checked(ctx.idempotency_key)]
        elif fields:
            what = ["declared", [ctx._input.get(name) for name in fields]]
        elif by_arguments:
            what = ["arguments", ctx.input_hash]
        elif ctx.outer is not None and ctx.outer.claim is not None:
            what = ["nested", ctx.outer.claim.effect.key, ctx.nth]
        elif ctx._call is not None and ctx._request_id is not None and not ctx._call.synthetic_id:
            what = ["call", ctx.session_id, ctx._request_id, ctx._call.id]
        elif ctx.resumed is not None:
            what = ["resumed", ctx.resumed.id]
        else:
            return None
        return hash_of([ctx.user.tenant or "", ctx.user.id, tool, *what])

    return identify


def _checked(given: Any) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST:
        raise Invalid(
            f"an idempotency key is a text of 1 to {LONGEST} characters",
            code="idempotency_key",
            public=f"An idempotency key is a text of 1 to {LONGEST} characters.",
        )
    return given
