"""Audit sinks other than a store: the log, and functions of the application."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from callgate.errors import HookError
from callgate.providers.logs import IDS, LogEvent, emit
from callgate.providers.stores.base import AuditRow


async def to_log(_tenant: str, rows: Sequence[AuditRow]) -> None:
    """Log rows as events. Ids and hashes are at the top level, where the redaction of logs does not mask them."""
    for row in rows:
        top = {name: row.body.get(name) for name in (*IDS, "input_hash", "output_hash")}
        emit(
            LogEvent.AUDIT_ROW,
            **top,
            kind=row.body["kind"],
            segment=row.segment,
            number=row.number,
            hash=row.hash,
            previous=row.previous,
            call={name: value for name, value in row.body.items() if name not in top},
        )


def is_async(sink: object) -> bool:
    """Return True for an async function, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(sink) or inspect.iscoroutinefunction(getattr(sink, "__call__", None))  # noqa: B004


def to_function(sink: Any) -> Callable[[str, Sequence[AuditRow]], Awaitable[None]]:
    """Make a function that passes rows to a function of the application, one by one."""
    if is_async(sink):

        async def put(_tenant: str, rows: Sequence[AuditRow]) -> None:
            for row in rows:
                await sink(row)

        return put

    async def put_at_once(_tenant: str, rows: Sequence[AuditRow]) -> None:
        for row in rows:
            answer = sink(row)
            if inspect.iscoroutine(answer):  # without await, rows would be written out of order
                answer.close()
                raise HookError("Audit: the sink returned a coroutine; declare it with async def")

    return put_at_once
