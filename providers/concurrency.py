"""Refusal of event loops other than that of asyncio and of a store, and of threads that gevent or eventlet have replaced."""

from __future__ import annotations

import asyncio
import sys

from callgate.errors import RegistrationError, StoreError

_TRIO = (
    "Callgate runs on the event loop of asyncio, and this is trio: deadlines, stores and database drivers need asyncio. "
    "Run it in asyncio.run(...); or open gate.sync() at start, and call it in a thread: "
    "await trio.to_thread.run_sync(functools.partial(gate.sync().call, tool, arguments))"
)

_OTHER_LOOP = (
    "the store was opened in another event loop or before a fork, and its connections belong to that loop: use it there, "
    "or open another store of the same address here"
)


def is_trio() -> bool:
    """Return True in a task of trio. Where trio is not imported, this is one look at a dict."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except (RuntimeError, AttributeError):
        return False
    return True


def refuse_trio() -> None:
    """Refuse the event loop of trio.

    Raises:
        RuntimeError: trio runs in this thread; the message says why it cannot work, and what to do.
    """
    if is_trio():
        raise RuntimeError(_TRIO)


def loop_error(error: RuntimeError) -> RuntimeError:
    """Return the error that says why there is no event loop of asyncio: in trio another one, else the same."""
    return RuntimeError(_TRIO) if is_trio() else error


def refuse_other_loop(home: asyncio.AbstractEventLoop | None) -> None:
    """Refuse the running event loop where a store belongs to another one. A thread without a loop is not refused.

    A request to a connection of another loop would wait for ever. A *home* that was closed does not count.

    Raises:
        StoreError: *home* is open, and is not the running loop.
    """
    if home is None or home.is_closed():
        return
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        return
    if here is not home:
        raise StoreError(_OTHER_LOOP)


def refuse_green_threads() -> None:
    """Refuse a process whose threads are green threads: they share one event loop and one set of locks.

    Raises:
        RegistrationError: gevent or eventlet has replaced ``threading``; the message has the name of the patch.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        patch, keep = "gevent.monkey.patch_all()", "gevent.monkey.patch_all(thread=False)"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        patch, keep = "eventlet.monkey_patch()", ""
    else:
        return
    raise RegistrationError(
        f"a gate needs threads of the operating system, and {patch} has replaced them by green threads, which would share "
        "one event loop. Use workers with processes or threads: gunicorn --worker-class gthread, celery --pool prefork or "
        f"threads{f'; or keep the threads with {keep}, and a call then blocks all green threads' if keep else ''}"
    )
