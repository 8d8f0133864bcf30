"""The log of a group of errors, of which one counts."""

from __future__ import annotations

from callgate.providers.faults import fault_of
from callgate.providers.foreign_errors import members_of, understood
from callgate.providers.log_events import LogEvent, LoggedCall
from callgate.providers.logs import emit


def counted_in(ctx: LoggedCall, group: BaseException) -> BaseException:
    """Return the error that counts in a group of errors, and log the group if it has faults beside it."""
    found = understood(group)
    if found is not group and any(fault_of(understood(one)) is not None for one in members_of(group)):
        emit(LogEvent.ATTEMPT_FAILED, ctx, stage=ctx.run.step.stage, hook=ctx.run.step.name, error=group)
    return found
