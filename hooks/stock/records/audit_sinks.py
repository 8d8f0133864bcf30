"""Where audit rows go that are not kept in a store: the log, or a function of the application."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from callgate.errors import HookError
from callgate.providers.logs import IDS, Event, emit
from callgate.providers.stores.base import AuditRow


async def to_log(_tenant: str, rows: Sequence[AuditRow]) -> None:
    """Rows as events: ids and hashes stand at the top, where the redaction knows that they are long by nature."""
    for row in rows:
        top = {name: row.body.get(name) for name in (*IDS, "input_hash", "output_hash")}
        emit(
            Event.AUDIT_ROW,
            **top,
            kind=row.body["kind"],
            segment=row.segment,
            number=row.number,
            hash=row.hash,
            previous=row.previous,
            call={name: value for name, value in row.body.items() if name not in top},
        )


def is_async(sink: Any) -> bool:
    """Whether a function of a row waits."""
    return inspect.iscoroutinefunction(sink) or inspect.iscoroutinefunction(getattr(sink, "__call__", None))  # noqa: B004


def to_function(sink: Any) -> Callable[[str, Sequence[AuditRow]], Awaitable[None]]:
    """What hands rows to a function of the application, one by one."""
    if is_async(sink):

        async def put(_tenant: str, rows: Sequence[AuditRow]) -> None:
            for row in rows:
                await sink(row)

        return put

    async def put_at_once(_tenant: str, rows: Sequence[AuditRow]) -> None:
        for row in rows:
            answer = sink(row)
            if inspect.iscoroutine(answer):  # rows would overtake each other
                answer.close()
                raise HookError("Audit: a sink that waits is an async function, not one that returns a coroutine")

    return put_at_once
