"""A hook that records the context at each stage and does not influence the call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from callgate.errors import HookError
from callgate.hooks.base import Hook, Next, as_stage
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import RELEASE_OF, Stage
from callgate.tools.calls import Outcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """One record of a ``RecordingHook``.

    Attributes:
        call: the number of the call, from 1.
        step: the hook's name and the stage, to distinguish two hooks.
        input, output: copies of the values at that time.
        verdict: ``"ok"``, or the name of the error that ended the call.
        outcome: the outcome, or None if it is not decided yet.
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
    """Records the context at each of *stages*; it decides and changes nothing.

    ``moments`` has the records in order; ``around_execute`` makes two, before and after the tool.

    Args:
        stages: the stages to record, by default all. A stage that acquires includes its release.
        name: the hook's name in plans and moments.
        priority: the hook's priority, to run before or after the hooks under test.

    Raises:
        HookError: an unknown stage, or a text in the place of the collection.
    """

    guards = False  # does not count as a hook that authorises
    _recorded: frozenset[Stage]

    def __new__(  # the parameters of __init__
        cls,
        stages: Iterable[Stage | str] | None = None,
        *,
        name: str = "RecordingHook",  # noqa: ARG004
        priority: float = 0,  # noqa: ARG004
    ) -> Self:
        """Make an object of a class that has the methods for *stages*: hooks are compiled from their class."""
        if isinstance(stages, str):
            raise HookError(f"RecordingHook takes a collection of stages; write RecordingHook([{str(stages)!r}])")
        wanted = frozenset(Stage) if stages is None else frozenset(map(as_stage, stages))
        kind: object = cls
        wanted |= {RELEASE_OF[stage] for stage in wanted & RELEASE_OF.keys()}
        made: Any = object.__new__(_watching(kind, wanted))
        made._recorded = wanted
        return made  # type: ignore[no-any-return]

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
        """The recorded stages, in order."""
        return tuple(moment.stage for moment in self.moments)

    def at(self, stage: Stage | str) -> list[Moment]:
        """The moments of one stage.

        Raises:
            HookError: this hook does not record the stage, so an empty list would say nothing.
        """
        if (known := as_stage(stage)) not in self._recorded:
            raise HookError(f"this RecordingHook does not record {known}; write RecordingHook([..., {str(known)!r}])")
        return [moment for moment in self.moments if moment.stage == known]

    def clear(self) -> None:
        """Delete all records."""
        self.moments.clear()
        self._calls.clear()
        self._count = 0

    def _see(self, ctx: InvokeContext, stage: Stage, failed: BaseException | None = None) -> None:
        call = self._calls.get(ctx)
        if call is None:
            self._count += 1
            call = self._calls[ctx] = self._count
        error = failed if failed is not None else ctx.run.error
        self.moments.append(
            Moment(
                call,
                ctx.tool_id,
                stage,
                f"{self.__name__}.{stage}",
                _copy(_input_of(ctx)),
                _copy(ctx.output),
                "ok" if error is None else type(error).__name__,
                ctx.run.outcome,
            )
        )


@lru_cache(maxsize=256)
def _watching(cls: Any, stages: frozenset[Stage]) -> type[RecordingHook]:
    methods: dict[str, object] = {stage.value: _method(stage) for stage in stages}
    if Stage.AROUND_EXECUTE in stages:
        methods[Stage.AROUND_EXECUTE.value] = _around
    if Stage.WILL_READ_CACHE in stages:  # a hook in this stage would count as a cache miss; its filter does not
        methods["filter"] = _see_the_cache_pass
    return type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **methods})


def _method(stage: Stage) -> Callable[[RecordingHook, InvokeContext], None]:
    def see(self: RecordingHook, ctx: InvokeContext) -> None:
        self._see(ctx, stage)

    see.__name__ = stage.value
    return see


async def _around(self: RecordingHook, ctx: InvokeContext, next: Next) -> object:
    self._see(ctx, Stage.AROUND_EXECUTE)
    try:
        output = await next()
    except BaseException as error:
        self._see(ctx, Stage.AROUND_EXECUTE, error)
        raise
    self._see(ctx, Stage.AROUND_EXECUTE)
    return output


def _see_the_cache_pass(self: RecordingHook, ctx: InvokeContext) -> bool:
    if ctx.run.step.stage is not Stage.WILL_READ_CACHE:
        return True
    self._see(ctx, Stage.WILL_READ_CACHE)
    return False


def _input_of(ctx: InvokeContext) -> object:
    """The input as it is now; reading ``ctx.input`` would convert it."""
    value = ctx.run.input
    return ctx.raw_input if value is ctx.run.hydration or value is ctx.run.tool_call else value


def _copy(value: T) -> T:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a tool may return a value that cannot be copied)
        return value
