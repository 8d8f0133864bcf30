"""A hook that watches: what the context held at each stage, without a say in what happens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from callgate.hooks.base import Hook, Next, as_stage
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import RELEASE_OF, Stage
from callgate.tools.calls import Outcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """What a ``RecordingHook`` saw once.

    ``call`` counts the calls it saw, from 1. ``step`` is its own name and the stage, so that two hooks can be told
    apart. ``input`` and ``output`` are copies of what they were then. ``verdict`` is ``"ok"``, or the name of what
    ended the call; ``outcome`` is None until it is decided.
    """

    call: int
    tool: str
    stage: Stage
    step: str
    input: Any
    output: Any
    verdict: str
    outcome: Outcome | None


class RecordingHook(Hook):
    """Records what the context holds at each of *stages*, all 33 by default; decides nothing and changes nothing.

    ``moments`` are in order; ``around_execute`` makes two, before and after. A stage that acquires brings its release
    along. It is as free as any hook where it is not registered, and implements no stage but those asked for.
    *priority* puts it before or after the hooks under test; *name* is how plans and moments call it.

    Raises:
        HookError: there is no such stage.
    """

    guards = False  # a gate that wants a hook to authorise does not take this one for it

    def __new__(  # what __init__ takes, which uses the rest
        cls,
        stages: Iterable[Stage | str] | None = None,
        *,
        name: str = "RecordingHook",  # noqa: ARG004
        priority: float = 0,  # noqa: ARG004
    ) -> Self:
        """An object of a class that has the methods asked for: hooks are read by their class."""
        asked = frozenset(Stage) if stages is None else frozenset(map(as_stage, stages))
        kind: Any = cls
        made: Any = _watching(kind, asked | {RELEASE_OF[stage] for stage in asked & RELEASE_OF.keys()})
        return object.__new__(made)  # type: ignore[no-any-return]

    def __init__(
        self, stages: Iterable[Stage | str] | None = None, *, name: str = "RecordingHook", priority: float = 0
    ) -> None:
        self.__name__ = name
        self.priority = priority
        self.moments: list[Moment] = []
        self._calls: WeakKeyDictionary[InvokeContext, int] = WeakKeyDictionary()
        self._count = 0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that it saw, in order."""
        return tuple(moment.stage for moment in self.moments)

    def at(self, stage: Stage | str) -> list[Moment]:
        """The moments of one stage."""
        return [moment for moment in self.moments if moment.stage == as_stage(stage)]

    def clear(self) -> None:
        """Forget everything."""
        self.moments.clear()
        self._calls.clear()
        self._count = 0

    def _see(self, ctx: InvokeContext, stage: Stage, failed: BaseException | None = None) -> None:
        call = self._calls.get(ctx)
        if call is None:
            self._count += 1
            call = self._calls[ctx] = self._count
        error = failed if failed is not None else ctx.error
        self.moments.append(
            Moment(
                call,
                ctx.tool_id,
                stage,
                f"{self.__name__}.{stage}",
                _copy(_input_of(ctx)),
                _copy(ctx.output),
                "ok" if error is None else type(error).__name__,
                ctx.outcome,
            )
        )


@lru_cache(maxsize=256)
def _watching(cls: Any, stages: frozenset[Stage]) -> type[RecordingHook]:
    methods: dict[str, Any] = {stage.value: _method(stage) for stage in stages}
    if Stage.AROUND_EXECUTE in stages:
        methods[Stage.AROUND_EXECUTE.value] = _around
    if Stage.WILL_READ_CACHE in stages:  # a hook that looks there makes a miss; one that its filter keeps out does not
        methods["filter"] = _see_the_cache_pass
    return type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **methods})


def _method(stage: Stage) -> Callable[[RecordingHook, InvokeContext], None]:
    def see(self: RecordingHook, ctx: InvokeContext) -> None:
        self._see(ctx, stage)

    see.__name__ = stage.value
    return see


async def _around(self: RecordingHook, ctx: InvokeContext, next: Next) -> Any:
    self._see(ctx, Stage.AROUND_EXECUTE)
    try:
        output = await next()
    except BaseException as error:
        self._see(ctx, Stage.AROUND_EXECUTE, error)
        raise
    self._see(ctx, Stage.AROUND_EXECUTE)
    return output


def _see_the_cache_pass(self: RecordingHook, ctx: InvokeContext) -> bool:
    if ctx.step.stage is not Stage.WILL_READ_CACHE:
        return True
    self._see(ctx, Stage.WILL_READ_CACHE)
    return False


def _input_of(ctx: InvokeContext) -> Any:
    """``ctx.input`` without what reading it does to the context."""
    value = ctx._input
    return ctx.raw_input if value is ctx.hydration or value is ctx._call else value


def _copy(value: T) -> T:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a tool may return what cannot be copied)
        return value
