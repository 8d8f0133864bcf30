"""Where a task waits, for people: the innermost line of their own code."""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from callgate import errors
from callgate.runtime.call.leases import Carried

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


def waits_in(task: asyncio.Task[Any]) -> str:
    """``"in will_acquire_quota (quota.py:31)"``: the innermost line that is the user's own; empty before any ran."""
    own = [frame for frame in _frames(task.get_coro()) if not frame.f_code.co_filename.startswith(_FOREIGN)]
    if not own:
        return ""
    code = own[-1].f_code
    return f"in {code.co_name} ({Path(code.co_filename).name}:{own[-1].f_lineno})"


def _frames(awaited: Any) -> Iterator[FrameType]:
    while awaited is not None:
        if isinstance(awaited, asyncio.Task):
            awaited = awaited.get_coro()
        frame, awaited = _step(awaited)
        if frame is not None:
            yield frame
            if frame.f_code is Carried._drive.__code__:  # a step that is carried through hangs on no chain of awaits
                awaited = frame.f_locals["self"].coroutine


def _step(awaited: Any) -> tuple[FrameType | None, Any]:
    for frame, inner in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
        if hasattr(awaited, frame):
            return getattr(awaited, frame), getattr(awaited, inner)
    return None, None
