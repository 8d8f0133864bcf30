"""SQLSTATE codes: what an error of PostgreSQL says about its session and its transaction, and which work runs again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from callgate.errors import StoreError
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.group_commit import RolledBack
from callgate.providers.stores.server_answers import shut_socket, time_left, waiting_for_locks

if TYPE_CHECKING:
    from psycopg import AsyncConnection


READ_ONLY = "25006"
_ENDED_BY_OTHERS = frozenset({"40001", "40P01"})
"""Serialization failures and deadlocks: the same transaction may succeed when it runs again."""
_LOST_SESSIONS = frozenset({READ_ONLY, "25P03", "25P04", "57P01", "57P02", "57P03", "57P04", "57P05"})
"""A session that was opened in a read-only phase stays read-only; the server has ended, or does not accept, the others."""
_CONNECTION = "08"
"""The class of errors of the connection."""
_QUOTES_NO_VALUE = frozenset({"08", "0A", "23", "25", "26", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58"})
"""Classes of errors whose primary message names objects and limits at most. Class 22 quotes the values."""
TOO_MANY = "53300"
_TOO_MANY_TEXTS = ("too many clients", "too many connections", "remaining connection slots")
TURN_LIMIT = 10.0
"""Seconds that a caller waits for a connection."""
_SLOT_PAUSE = 0.1
"""Seconds between two attempts to open a connection of a server that has too many, on average."""
_ATTEMPTS = 5
_PAUSE = 0.01
"""Seconds before the third attempt, at most; each later pause is twice as long."""

_CANCEL_LIMIT = 2.0
"""Seconds to ask a server to cancel a statement."""
_CANCELLING = set[asyncio.Task[None]]()
"""The requests to cancel that are under way: the event loop keeps no reference to a task."""

T = TypeVar("T")


class SessionLost(StoreError):
    """The session of the server cannot be used, and nothing was written: another connection may succeed."""


class CommitLost(StoreError):
    """The session was lost in a COMMIT, and it is unknown whether the transaction was committed."""


def is_read_only(connection: AsyncConnection) -> bool:
    """Return True if the session of a connection of psycopg is read-only. Asks nothing: PostgreSQL reports it since 14.

    The setting is that of the time at which the session was opened, so a new session may be able to write.
    """
    status = connection.pgconn.parameter_status
    return b"on" in {status(b"default_transaction_read_only"), status(b"in_hot_standby")}


def is_cut(connection: AsyncConnection) -> bool:
    """Return True if the server has closed a connection of psycopg that was idle, as after a restart. Sends nothing."""
    import psycopg

    try:
        connection.pgconn.consume_input()
        connection.pgconn.consume_input()  # the first reads the last words of the server, and not that it has gone
    except psycopg.OperationalError:
        return True
    return bool(connection.closed)


def give_up(connection: AsyncConnection) -> None:
    """End the request of a connection of psycopg: its caller sees the end of the connection at once.

    The server is asked to cancel the statement, on a connection of its own. A statement that waits for a lock would go on
    waiting, and each attempt of a caller would hold one more session of the server.
    """
    from psycopg import capabilities

    if connection.closed:
        return
    loop = asyncio.get_running_loop()
    if capabilities.has_cancel_safe():  # else it would block a thread, and a silent server for long
        task = loop.create_task(connection.cancel_safe(timeout=_CANCEL_LIMIT), name="cancel statement")
        _CANCELLING.add(task)
        task.add_done_callback(_note_cancelled)
    loop.call_soon(_shut, connection)  # after the first step of the task, which needs the connection


def _shut(connection: AsyncConnection) -> None:
    if not connection.closed:
        shut_socket(connection.fileno())


def _note_cancelled(task: asyncio.Task[None]) -> None:
    _CANCELLING.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio logs no warning


def is_session_lost(error: BaseException | None) -> bool:
    """Return True if an error of psycopg says that its session is of no further use."""
    code = getattr(error, "sqlstate", None) or ""
    return code in _LOST_SESSIONS or code.startswith(_CONNECTION)


def server_error(error: Exception) -> Exception:
    """Return the error of the server that an error of psycopg hides, or *error* itself.

    When the server ends a session within a pipeline, psycopg only says that it cannot leave the pipeline while it is busy.
    """
    import psycopg

    hidden: BaseException | None = error if isinstance(error, psycopg.OperationalError) else None
    while hidden is not None:
        if isinstance(hidden, psycopg.Error) and hidden.sqlstate is not None:
            return hidden
        hidden = hidden.__cause__ or hidden.__context__
    return error


def wrote_nothing(code: str | None, *, sent: bool, alone: bool = False) -> bool:
    """Return True if a lost session is known to have written nothing.

    Args:
        code: the SQLSTATE, or None if the connection broke without one.
        sent: the server may have received the COMMIT, or a statement that is committed by itself.
        alone: it was one statement, which the server commits after all that can raise this error. A pooler raises errors
            of its own, so through a pooler nothing is known.
    """
    return not sent or code == READ_ONLY or (alone and code == "57P01")


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of *work*, a transaction.

    It runs again when the server ended it because of other transactions, with growing pauses, and once when the session
    was lost before anything was written. While the server has too many connections to open another, it waits as long as
    for a connection of the pool: until then one may become free.

    Raises:
        RolledBack: *work*, a batch, was rolled back, and was not or too often ended so.
        StoreError: *work* failed, or was ended so too often.
    """
    lost, pause, tries, until = False, 0.0, 1, 0.0
    while tries < _ATTEMPTS:
        try:
            return await work()
        except SessionLost:
            if lost:
                raise
            lost = True
        except (StoreError, RolledBack) as error:
            code = (error.error if isinstance(error, RolledBack) else error).sqlstate
            if code == TOO_MANY:  # the connection was not opened, so nothing was written
                until = await _wait_for_slot(until, error)
                continue
            if code not in _ENDED_BY_OTHERS:
                raise
            if pause:  # those that meet again must not run again in step
                await asyncio.sleep(pause * random.random())  # noqa: S311
            pause = 2 * pause or _PAUSE
        tries += 1
    return await work()


async def _wait_for_slot(until: float, error: Exception) -> float:
    """Pause before the next attempt to open a connection. Return the end of the attempts; *until* is 0.0 at first.

    Raises:
        StoreError: *error*, when the time is over.
    """
    now = asyncio.get_running_loop().time()
    until = until or now + time_left(TURN_LIMIT)
    pause = _SLOT_PAUSE * (0.5 + random.random())  # noqa: S311
    if now + pause >= until:
        raise error
    await asyncio.sleep(pause)
    return until


def code_in(text: str) -> str | None:
    """Return the SQLSTATE that the text of an error of psycopg stands for, which has no code where no connection was opened."""
    return TOO_MANY if any(part in text for part in _TOO_MANY_TEXTS) else None


async def in_transaction(
    store: Store, work: Callable[[Transaction], Awaitable[T]], *, lock_wait: int | None = None
) -> T:
    """Return the result of *work* in a transaction of a store; it runs again as ``retried`` says.

    So *work* may begin several times, and changes nothing but the transaction. *lock_wait* limits the milliseconds that a
    statement waits for a locked row.
    """

    async def once() -> T:
        async with store.transaction() as within:
            return await work(within)

    with waiting_for_locks(lock_wait):
        return await retried(once)


def shown_message(error: object) -> str:
    """Return the server's primary message, or an empty text if the message may quote a value.

    Details, hints and the statement are never in it, nor is a text that a trigger of the database raises.
    """
    diag, code = getattr(error, "diag", None), getattr(error, "sqlstate", None) or ""
    if diag is None or code[:2] not in _QUOTES_NO_VALUE or diag.source_function == "exec_stmt_raise":
        return ""
    return str(diag.message_primary or "")
