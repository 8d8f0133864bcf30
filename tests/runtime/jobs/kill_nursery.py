"""A process that forks others, with all imported that they need: ``python -m MODULE`` in a few hundredths of a second.

Each leads a group of its own. One that is dead keeps its id, and that of its group, until it is buried. A line of JSON is
a request, another one the answer: ``{"start": [module, *arguments], "environment": {...}, "told": file}`` → its id;
``{"lives": id}`` → whether it does; ``{"bury": id}`` → its status, once it has ended. They end with us.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.runtime.effects.kill_worker import LATER

ROOT = Path(__file__).resolve().parents[3]
NEEDED = (
    *sorted(LATER),
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "procrastinate.contrib",
    "procrastinate.worker",
    "psycopg_pool",
    "redis.asyncio",
    "callgate.runtime.commands.worker",
    "tests.runtime.jobs.kill_app",
)


class Nursery:
    """The way to it. It is asked one thing at a time, and answers at once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.jobs.kill_nursery"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, **what: Any) -> Any:
        """See the module."""
        to, back = self._process.stdin, self._process.stdout
        assert to
        assert back
        to.write(json.dumps(what).encode() + b"\n")
        to.flush()
        line = back.readline()
        assert line, "it has ended"
        return json.loads(line)

    def end(self) -> None:
        """It has ended, and whatever it had started."""
        self._process.communicate()


def run(asked: dict[str, Any], wanted: int) -> None:
    """Be ``python -m`` of what was asked for."""
    os.setsid()
    told = os.open(asked["told"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, nothing), (1, told), (2, told)):
        os.dup2(file, number)
    os.environ.update(asked["environment"])
    sys.argv = asked["start"]
    if os.getppid() == wanted:
        runpy.run_module(asked["start"][0], run_name="__main__", alter_sys=True)


def start(asked: dict[str, Any]) -> int:
    """Fork; its id."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    status = 1
    try:
        run(asked, parent)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:  # noqa: BLE001  (it must not go on as the one that forks)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def lives(pid: int) -> bool:
    """Whether it has not ended."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None


def bury(pid: int) -> int:
    """End whatever is left of its group; its status."""
    with suppress(ProcessLookupError, PermissionError):  # it has no group yet, or all of them have ended
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Answer until nobody asks any more."""
    for name in NEEDED:
        importlib.import_module(name)
    gc.freeze()
    started: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            answer: Any = start(asked)
            started.add(answer)
        elif "lives" in asked:
            answer = lives(asked["lives"])
        else:
            started.discard(asked["bury"])
            answer = bury(asked["bury"])
        os.write(1, json.dumps(answer).encode() + b"\n")
    for pid in started:
        bury(pid)


if __name__ == "__main__":
    main()
