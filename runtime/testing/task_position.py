"""The line of user code at which a task waits."""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from weakref import WeakKeyDictionary

from callgate import errors
from callgate.runtime.pipeline.shield import Shielded, Wait

_ROOT = Path(errors.__file__).parent
_FOREIGN = tuple(
    f"{folder}/"
    for folder in {
        str(_ROOT),
        *(str((_ROOT / name).resolve()) for name in ("runtime", "hooks", "tools", "providers")),
        sysconfig.get_paths()["stdlib"],
        sysconfig.get_paths()["purelib"],
        sysconfig.get_paths()["platlib"],
    }
)


_WAITING: WeakKeyDictionary[asyncio.Task[object], list[Shielded[object]]] = WeakKeyDictionary()
Shielded.waiting = _WAITING


def waiting_at(task: asyncio.Task[object]) -> str:
    """The innermost line of user code, as ``"in will_acquire_quota (rate_limit.py:31)"``; "" before any has run."""
    own = [frame for frame in _frames(task) if not frame.f_code.co_filename.startswith(_FOREIGN)]
    if not own:
        return ""
    code = own[-1].f_code
    return f"in {code.co_name} ({Path(code.co_filename).name}:{own[-1].f_lineno})"


def _frames(task: asyncio.Task[object]) -> Iterator[FrameType]:
    shielded = sorted(_WAITING.get(task, ()), key=_beneath, reverse=True)  # they are not on the chain of awaits
    for awaiting in (task.get_coro(), *(one.coroutine for one in shielded)):
        awaited: object = awaiting
        while awaited is not None:
            if isinstance(awaited, asyncio.Task):
                yield from _frames(awaited)
                break
            frame, awaited = _step(awaited)
            if frame is not None:
                yield frame


def _beneath(step: Shielded[object]) -> int:
    """Return how many shielded steps run within a step."""
    number = 0
    while isinstance(step.pending, Wait) and isinstance(step.pending.work, Shielded):
        number, step = number + 1, step.pending.work
    return number


def _step(awaited: object) -> tuple[FrameType | None, object]:
    for frame, inner in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
        if hasattr(awaited, frame):
            return getattr(awaited, frame), getattr(awaited, inner)
    return None, None
