"""The options of one call."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from callgate.errors import Invalid
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import Consumer, IdleLimit
from callgate.providers.ids import checked_key, flaw_of
from callgate.providers.kinds import annotations_of, fault_of_kind
from callgate.tools.execution import TaskIds
from callgate.tools.limits import fault_of_seconds
from callgate.tools.naming import did_you_mean


class BadCall(TypeError):
    """A call was written wrongly. The message has the line to write, and no values, so that a result may have it."""


def checked_id(name: str, text: object) -> None:
    """Refuse an id of a caller or a model that is no text, or that a database cannot keep.

    Raises:
        BadCall: it is no text.
        Invalid: it is no idempotency key, is an empty request id, or has a NUL character, half of a surrogate
            pair, or too many bytes.
    """
    if not isinstance(text, str | None):
        if name in _KEYS:
            checked_key(text)
        raise BadCall(f"the {name} is of type {type(text).__name__}; ids are texts, so write str(...)")
    if text == "" and name == "request_id":  # such as of a header that is missing: its calls would repeat each other
        problem = f"the {name} is empty; leave it out"
        raise Invalid(problem, stage="call", code="bad_id", public=f"The call is not valid: {problem}.", no_effect=True)
    if (flaw := flaw_of(text)) is not None:
        problem = f"the {name} {flaw}; a database cannot keep it"
        raise Invalid(problem, stage="call", code="bad_id", public=f"The call is not valid: {problem}.", no_effect=True)
    if name in _KEYS and text is not None:
        checked_key(text)


def checked_ids(**ids: object) -> None:
    """Refuse ids that a database cannot keep; see ``checked_id``."""
    for name, text in ids.items():
        checked_id(name, text)


class CallOptions(TypedDict, total=False):
    """Options of one call.

    ``deadline`` is in seconds and wins over the deadlines of the tool and the gate. ``idle`` are the seconds for which the
    call may report no progress, and wins alike: ``ctx.progress`` and ``ctx.send`` start them anew, also in the calls that
    the tool makes; a deadline holds in any case. ``request_id`` is also the correlation id. ``events`` receives progress
    and partial outputs; ``gate.stream`` sets it. ``task`` has the ids of the task that the call belongs to; the A2A host
    sets it. With ``joins_waiting``, a call that waits for a decision and later ones of the same user, tool and arguments
    share one suspension. Hosts whose model repeats a call to learn its outcome set it; anonymous users share none.
    """

    session_id: str | None
    request_id: str | None
    deadline: float | None
    idle: float | None
    idempotency_key: str | None
    events: Consumer[InvokeContext] | None
    task: TaskIds | None
    joins_waiting: bool


_INSTEAD = {
    "idempotency": "idempotency_key=...",
    "roles": "user=User(id, roles={...})",
    "tenant": "user=User(id, tenant=...)",
    "timeout": "deadline=seconds",
    "user_id": "user=User(id)",
}
"""The option to write for names of other frameworks."""
IDS = ("session_id", "request_id", "idempotency_key")
_KEYS = ("idempotency_key", "key")


def check_limits(deadline: object, idle: object) -> None:
    """Refuse limits of a call that are no times in seconds; a deadline may be 0.

    Raises:
        BadCall: one is of another type, too small, infinite or not a number.
    """
    if (fault := fault_of_seconds(deadline, least=0.0)) is not None:
        raise BadCall(f"deadline {fault}")
    if (fault := fault_of_seconds(idle)) is not None:
        raise BadCall(f"idle {fault}")


def no_option(name: str, known: Collection[str], method: str = "call") -> BadCall:
    """Return the error for an option that a call, or ``submit``, does not have."""
    if name in _INSTEAD:
        return BadCall(f"{method} has no option {name!r}; write gate.{method}(tool, arguments, {_INSTEAD[name]})")
    return BadCall(
        f"a call has no option {name!r}{did_you_mean(name, known)}. Arguments of the tool go into a mapping: "
        f"gate.{method}(tool, {{{name!r}: ...}}, user=user)"
    )


def apply_options(ctx: InvokeContext, options: CallOptions) -> None:
    """Set the options of a call, its deadline and its idle limit, on its context.

    Raises:
        BadCall: an option is unknown, or a limit is no time in seconds.
        Invalid: an id cannot be stored; see ``checked_id``.
    """
    for name, value in options.items():
        if name not in CallOptions.__annotations__:
            raise no_option(name, CallOptions.__annotations__)
        if value is not None and name not in ("deadline", "idle"):
            if name in IDS:
                checked_id(name, value)
            elif (fault := fault_of_kind(value, annotations_of(CallOptions)[name])) is not None:
                raise BadCall(f"{name} {fault}")
            setattr(ctx.run, name, value)
    run, plan = ctx.run, ctx.run.plan
    limit, idle = options.get("deadline"), options.get("idle")
    if limit is not None or idle is not None:
        check_limits(limit, idle)
    limit, idle = plan.limit if limit is None else limit, plan.idle if idle is None else idle
    if limit is not None:
        run.deadline_at, run.off_fast_path = run.started + limit, True
    if idle is not None:
        run.idle, run.off_fast_path = IdleLimit(idle, plan.now, run.started), True
