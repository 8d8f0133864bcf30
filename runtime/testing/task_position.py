"""The line of user code at which a task waits."""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from callgate import errors
from callgate.runtime.call.leases import step_driven_by

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


def waiting_at(task: asyncio.Task[object]) -> str:
    """The innermost line of user code, as ``"in will_acquire_quota (quota.py:31)"``; "" before any has run."""
    own = [frame for frame in _frames(task.get_coro()) if not frame.f_code.co_filename.startswith(_FOREIGN)]
    if not own:
        return ""
    code = own[-1].f_code
    return f"in {code.co_name} ({Path(code.co_filename).name}:{own[-1].f_lineno})"


def _frames(awaited: object) -> Iterator[FrameType]:
    while awaited is not None:
        if isinstance(awaited, asyncio.Task):
            awaited = awaited.get_coro()
        frame, awaited = _step(awaited)
        if frame is not None:
            yield frame
            awaited = step_driven_by(frame) or awaited  # a shielded step is not on the chain of awaits


def _step(awaited: object) -> tuple[FrameType | None, object]:
    for frame, inner in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
        if hasattr(awaited, frame):
            return getattr(awaited, frame), getattr(awaited, inner)
    return None, None
