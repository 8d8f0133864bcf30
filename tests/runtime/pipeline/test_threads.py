"""Worker threads belong to their process: none survives a fork in name only, and none keeps a process alive."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import wait
from pathlib import Path

import pytest

from callgate.runtime.pipeline.threads import Threads

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 30.0


def run(program: str) -> str:
    """Run a program in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_calls_run_in_the_order_in_which_they_came() -> None:
    threads, door, ran = Threads("t", 1), threading.Event(), list[int]()
    first = threads.submit(door.wait)
    rest = [threads.submit(lambda n=n: ran.append(n)) for n in range(5)]  # type: ignore[misc]
    door.set()
    wait([first, *rest], LIMIT)
    assert ran == list(range(5))


def test_an_error_of_any_kind_reaches_the_caller_and_the_thread_goes_on() -> None:
    threads = Threads("t", 1)

    def fails() -> None:
        raise SystemExit

    assert isinstance(threads.submit(fails).exception(LIMIT), SystemExit)
    assert threads.submit(lambda: 7).result(LIMIT) == 7


def test_an_idle_thread_ends_and_another_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.runtime.pipeline.threads.IDLE", 0.0)
    threads = Threads("t", 1)
    first = threads.submit(threading.current_thread).result(LIMIT)
    first.join(LIMIT)
    assert not first.is_alive()
    assert threads.submit(threading.current_thread).result(LIMIT) is not first


FORK = """
    import asyncio, os
    from callgate import Gate, tool

    @tool(effect="read")
    def double(n: int) -> int:
        return 2 * n

    gate = Gate([double])

    async def use():
        async with gate:
            return await gate.invoke("double", {"n": 2}, deadline=10.0)

    assert asyncio.run(use()) == 4
    child = os.fork()
    if not child:
        print(asyncio.run(use()), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    """


def test_a_plain_function_runs_after_a_fork() -> None:
    assert run(FORK) == "4"


def test_the_fork_would_find_threads_that_stayed_with_the_parent() -> None:
    """The control: without a fresh start, the call in the child waits for a thread that is not there."""
    sabotage = """from callgate.runtime.pipeline.threads import Threads, threads_of
    pool = threads_of(gate.registry.get("double"))
    [os.sched_yield() for _ in iter(lambda: pool._idle, 1)]
    Threads.reset = lambda self: None
    child = os.fork()"""
    program = FORK.replace("deadline=10.0", "deadline=0.5").replace("child = os.fork()", sabotage)
    assert run(program) == ""


def test_a_thread_that_hangs_does_not_keep_its_process_alive() -> None:
    program = """
        import asyncio, threading
        from callgate import Gate, Options, tool
        from callgate.runtime.pipeline import threads

        threads.EXIT_GRACE = 0.1

        @tool(effect="read")
        def hangs() -> None:
            threading.Event().wait()

        async def use():
            async with Gate([hangs], options=Options(closing=0.2)) as gate:
                print((await gate.call("hangs", deadline=0.3)).outcome)

        asyncio.run(use())
        """
    assert run(program) == "unknown"


def test_a_process_that_exits_waits_for_a_call_that_ends_in_time() -> None:
    program = """
        import atexit, threading
        from callgate import ToolRecord
        from callgate.runtime.pipeline.threads import threads_of

        record = ToolRecord(id="ends", execute=lambda *_: None, input_schema={"type": "object"})
        inside, door = threading.Event(), threading.Event()

        def ends():
            inside.set()
            door.wait()
            print("ended", flush=True)

        threads_of(record).submit(ends)
        inside.wait()
        atexit.register(door.set)  # as the process exits, before the threads are waited for
        """
    assert run(program) == "ended"
