"""Green threads and the event loop of trio: a gate refuses them as it opens, with the reason and what to use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from callgate import Gate, RegistrationError, invoke_tool, tool
from callgate.jobs import CeleryJobs
from callgate.runtime.hosts.celery import register
from callgate.stores import store_at


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def made(**options: Any) -> Gate:
    return Gate([add], allow_unguarded=True, **options)


def driven(running: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine up to its first wait, without the event loop of asyncio."""
    try:
        running.send(None)
    except StopIteration as ended:
        return ended.value
    finally:
        running.close()
    raise AssertionError("it waits")


def patched(monkeypatch: pytest.MonkeyPatch, library: str, module: str, *, threads: bool = True) -> None:
    """Pretend that a library has replaced a module of the standard library."""
    asked = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}[library]
    known = SimpleNamespace(**{asked: lambda name: threads and name == module})
    monkeypatch.setitem(sys.modules, library, known)


PATCHES = {
    "gevent": ("gevent.monkey", "threading", "gevent.monkey.patch_all()"),
    "eventlet": ("eventlet.patcher", "thread", "eventlet.monkey_patch()"),
}


def open_in_thread(gate: Gate) -> None:
    with gate.sync():
        pass


WAYS: dict[str, Callable[[Gate], Any]] = {
    "gate.open()": lambda gate: driven(gate.open()),
    "gate.sync()": open_in_thread,
}


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("way", WAYS)
def test_green_threads_are_refused_with_the_patch_and_what_to_use(
    way: str, patch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, module, named = PATCHES[patch]
    patched(monkeypatch, library, module)
    gate = made()
    with pytest.raises(RegistrationError) as refused:
        WAYS[way](gate)
    assert named in str(refused.value)
    assert "gthread" in str(refused.value)
    assert not gate.is_open
    monkeypatch.undo()
    open_in_thread(gate)  # nothing is left of the attempt


@pytest.mark.parametrize("patch", PATCHES)
def test_a_library_that_left_the_threads_alone_is_accepted(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    library, module, _ = PATCHES[patch]
    patched(monkeypatch, library, module, threads=False)
    open_in_thread(made())


@pytest.mark.parametrize("patch", PATCHES)
def test_a_celery_worker_with_green_threads_does_not_start(
    patch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """``celery --pool gevent`` has replaced the threads before it imports the application."""
    app = Celery("green", broker="memory://", set_as_current=False)
    app.conf.update(accept_content=["json"], result_accept_content=["json"])
    gate = made(store=f"sqlite:///{tmp_path}/jobs.db", signing_keys=["k" * 32], jobs=CeleryJobs(app))
    library, module, _ = PATCHES[patch]
    patched(monkeypatch, library, module)
    with pytest.raises(RegistrationError, match="celery --pool prefork"):
        register(app, gate)
    monkeypatch.undo()
    register(app, gate)


def in_trio(monkeypatch: pytest.MonkeyPatch, *, running: bool = True) -> None:
    """Pretend that trio is imported, and runs in this thread."""

    def current_task() -> object:
        if not running:
            raise RuntimeError("must be called from async context")
        return object()

    monkeypatch.setitem(sys.modules, "trio", SimpleNamespace(lowlevel=SimpleNamespace(current_task=current_task)))


IN_TRIO: dict[str, Callable[[], Any]] = {
    "invoke_tool": lambda: driven(invoke_tool(add, {"a": 1, "b": 2})),
    "gate.open()": lambda: driven(made().open()),
    "gate.call()": lambda: driven(made().call(add, {"a": 1, "b": 2})),
    "gate.invoke()": lambda: driven(made().invoke(add, {"a": 1, "b": 2})),
    "gate.sync()": lambda: open_in_thread(made()),
    **{
        address: lambda address=address: driven(store_at(address).open())  # type: ignore[misc]
        for address in ("memory://", "sqlite://", "postgresql://127.0.0.1/db", "redis://127.0.0.1")
    },
}


@pytest.mark.parametrize("what", IN_TRIO)
def test_trio_is_refused_with_the_reason(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_trio(monkeypatch)
    with pytest.raises(RuntimeError, match=r"this is trio: deadlines, stores and database drivers need asyncio"):
        IN_TRIO[what]()


@pytest.mark.parametrize("what", ["invoke_tool", "gate.call()"])
def test_without_any_event_loop_the_error_is_that_of_asyncio(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: trio is imported, and runs elsewhere."""
    in_trio(monkeypatch, running=False)
    with pytest.raises(RuntimeError, match="no running event loop"):
        IN_TRIO[what]()
    open_in_thread(made())
    driven(store_at("memory://").open())
