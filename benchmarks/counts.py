"""Deterministic counts for one call: function calls, tasks, loop callbacks. They do not depend on the machine."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import callgate
from benchmarks.floors import floor2s
from benchmarks.overhead import idle_gate
from benchmarks.timing import EXPECTED, Call, Effort
from benchmarks.twelve import call_of, make_tool, twelve
from callgate import Gate, Hook

_FACE = Path(callgate.__file__).parent
LIBRARY = (str(_FACE), *(str(_FACE.parents[1] / name) for name in ("runtime", "hooks", "providers", "tools")))


def methods_of(hooks: Sequence[Hook]) -> list[FunctionType]:
    """The methods that hooks define."""
    return [item for hook in hooks for item in vars(type(hook)).values() if isinstance(item, FunctionType)]


async def count_calls(call: Call, hooks: Sequence[Hook] = ()) -> Counter[str]:
    """Function calls of one call: ``python`` and ``native`` ones, and apart from them ``hooks``.

    The hooks' own are their methods, what these call directly, and what foreign code calls on their behalf.
    """
    own = {id(method.__code__) for method in methods_of(hooks)}  # equal code need not be the same
    found, this = Counter[str](), sys._getframe().f_code

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        code, back = frame.f_code, frame.f_back
        if event == "call":
            for_hook = back is not None and id(back.f_code) in own
            if for_hook and not code.co_filename.startswith(LIBRARY):
                own.add(id(code))
            if for_hook or id(code) in own:
                found["hooks"] += 1
            else:
                found["python"] += 1
        elif event == "c_call" and code is not this:
            found["hooks" if id(code) in own else "native"] += 1

    await call()  # what is made once is made now
    collects = gc.isenabled()
    gc.disable()  # what it finalises is nobody's call
    sys.setprofile(watch)
    try:
        result = await call()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    if result != EXPECTED:
        raise SystemExit(f"the benchmark is broken: {result!r}")
    found["python"] -= 1  # *call* itself, the harness's lambda
    return found


@contextmanager
def loop_work() -> Iterator[Counter[str]]:
    """Tasks and callbacks that anybody gives to the running loop."""
    loop: Any = asyncio.get_running_loop()
    found = Counter[str]()

    def make_task(loop: Any, coroutine: Any, **options: Any) -> Any:
        found["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    def counting(plain: Any) -> Any:
        def schedule(*args: Any, **options: Any) -> Any:
            found["callbacks"] += 1
            return plain(*args, **options)

        return schedule

    names = ("call_soon", "call_soon_threadsafe", "call_at")
    before = loop.get_task_factory()
    loop.set_task_factory(make_task)
    for name in names:
        setattr(loop, name, counting(getattr(loop, name)))
    try:
        yield found
    finally:
        for name in names:
            delattr(loop, name)
        loop.set_task_factory(before)


async def count_loop_work(call: Call) -> Counter[str]:
    """Tasks and loop callbacks of one call."""
    await call()
    with loop_work() as found:
        await call()
    return found


async def measure(effort: Effort) -> dict[str, float]:
    hooks, _ = twelve()
    busy, bare, idle = Gate([make_tool(output=False)], hooks), Gate([make_tool()]), idle_gate()
    async with busy, bare, idle:
        twelve_calls, zero_calls = await count_calls(call_of(busy), hooks), await count_calls(call_of(bare))
        idle_calls = await count_calls(call_of(idle))
        twelve_work, zero_work = await count_loop_work(call_of(busy)), await count_loop_work(call_of(bare))
    floor = await count_calls(floor2s())
    return {
        "calls_twelve_hooks": twelve_calls["python"] + twelve_calls["native"],
        "calls_twelve_hooks_python": twelve_calls["python"],
        "calls_twelve_hooks_by_hooks": twelve_calls["hooks"],
        "calls_zero_hooks": zero_calls.total(),
        "calls_floor2s": floor.total(),
        "calls_idle_hooks": idle_calls.total() - zero_calls.total(),
        "tasks_twelve_hooks": twelve_work["tasks"],
        "tasks_zero_hooks": zero_work["tasks"],
        "callbacks_twelve_hooks": twelve_work["callbacks"],
        "callbacks_zero_hooks": zero_work["callbacks"],
    }
