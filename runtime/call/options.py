"""The options of one call."""

from __future__ import annotations

from typing import TypedDict

from callgate.errors import Invalid
from callgate.hooks.context import InvokeContext
from callgate.providers.ids import flaw_of
from callgate.tools.execution import TaskIds
from callgate.tools.limits import fault_of_seconds
from callgate.tools.naming import did_you_mean


class BadCall(TypeError):
    """A call was written wrongly. The message has the line to write, and no values, so that a result may have it."""


def checked_id(name: str, text: object) -> None:
    """Refuse an id of a caller or a model that a database cannot keep.

    Raises:
        Invalid: the id has a NUL character, half of a surrogate pair, or too many bytes.
    """
    if (flaw := flaw_of(text)) is not None:
        problem = f"the {name} {flaw}; a database cannot keep it"
        raise Invalid(problem, stage="call", code="bad_id", public=f"The call is not valid: {problem}.", no_effect=True)


def checked_ids(**ids: object) -> None:
    """Refuse ids that a database cannot keep; see ``checked_id``."""
    for name, text in ids.items():
        checked_id(name, text)


class CallOptions(TypedDict, total=False):
    """Options of one call.

    ``deadline`` is in seconds and wins over the deadlines of the tool and the gate. ``request_id`` is also the
    correlation id. ``events`` receives progress and partial outputs; ``gate.stream`` sets it. ``task`` has the ids of the
    task that the call belongs to; the A2A host sets it.
    """

    session_id: str | None
    request_id: str | None
    deadline: float | None
    idempotency_key: str | None
    events: object
    task: TaskIds | None


def check_deadline(value: object) -> None:
    """Refuse a deadline of a call that is not None or a number of seconds from 0.

    Raises:
        BadCall: it is of another type, negative, infinite or not a number.
    """
    if (fault := fault_of_seconds(value, least=0.0)) is not None:
        raise BadCall(f"deadline {fault}")


def apply_options(ctx: InvokeContext, options: CallOptions) -> None:
    """Set the options of a call, and its deadline, on its context.

    Raises:
        BadCall: an option is unknown, or the deadline is no time in seconds.
        Invalid: an id cannot be stored; see ``checked_id``.
    """
    for name, value in options.items():
        if name not in CallOptions.__annotations__:
            known = did_you_mean(name, CallOptions.__annotations__)
            raise BadCall(
                f"a call has no option {name!r}{known}. Arguments of the tool go into a mapping: "
                f"gate.call(tool, {{{name!r}: ...}}, user=user)"
            )
        if value is not None and name != "deadline":
            if value.__class__ is str:
                checked_id(name, value)
            setattr(ctx.run, name, value)
    limit = options.get("deadline")
    if limit is None:
        limit = ctx.run.plan.limit
    else:
        check_deadline(limit)
    if limit is not None:
        ctx.run.deadline_at, ctx.run.special = ctx.run.started + limit, True
