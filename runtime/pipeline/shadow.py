"""Contexts that lie over the context of a call: of a hook in shadow mode, and of a part of an output.

Reads fall through to the call. Writes stay in the layer, so the call does not change.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import ChainMap
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import Any, cast

from callgate.errors import CallgateError, DeadlineExceeded, ProviderError, StageError
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import May
from callgate.hooks.state.facts import RAW
from callgate.hooks.state.frozen_views import ProvidersView, input_view, output_view, stages_that_may
from callgate.hooks.state.run import Run
from callgate.hooks.state.step import PlanStep
from callgate.providers.registry import MISSING, ScopeName
from callgate.tools.values import freeze


class Layer:
    """The state of a run as a layer sees it: its own attributes, else those of the run beneath."""

    frozen_hash: str | None = None  # the arguments of a layer may be its own
    shown_input = shown_output = MISSING  # so are its views

    def __init__(self, beneath: object, **own: object) -> None:
        vars(self).update(own, beneath=beneath)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)

    def show_input(self) -> object:
        """See ``Run``."""
        own = vars(self)
        return input_view(own["input"]) if "input" in own and self.input_state == RAW else self.beneath.show_input()

    def show_output(self) -> object:
        """See ``Run``: each read makes its view."""
        own = vars(self)
        return output_view(own["output"]) if "output" in own else self.beneath.show_output()

    @property
    def leases(self) -> object:
        """The leases of the call: what a layer takes, the call releases."""
        return self.beneath.leases

    @leases.setter
    def leases(self, value: object) -> None:
        self.beneath.leases = value

    def put_output(self, value: object, *, is_own: bool = False) -> None:
        """See ``Run``: the output of this layer alone."""
        Run.put_output(cast("Run[InvokeContext]", self), value, is_own=is_own)

    def put_input(self, value: object) -> None:
        """See ``Run``: the input of this layer alone."""
        Run.put_input(cast("Run[InvokeContext]", self), value)

    def masked_view(self) -> object:
        """See ``Run``."""
        return Run.masked_view(cast("Run[InvokeContext]", self))

    def latest_input(self) -> object:
        """See ``Run``."""
        return Run.latest_input(cast("Run[InvokeContext]", self))

    def hash_of_input(self) -> str:
        """See ``Run``."""
        return Run.hash_of_input(cast("Run[InvokeContext]", self))


class PartialContext(InvokeContext):
    """The context in which the hooks of the output stages shape one part of an output; they send no further parts."""

    __slots__ = ()

    def __init__(self, ctx: InvokeContext) -> None:
        layer = Layer(ctx.run, output=None, output_log=[], events=None)
        self.run, self.data = cast("Run[InvokeContext]", layer), ctx.data


_REMOVED: object = object()
"""Stands in a layer for a key that is removed there alone."""


class _Over(ChainMap[object, object]):
    """A mapping of a shadow: its own writes and removals over a mapping of the call, which does not change."""

    def __getitem__(self, key: object) -> object:
        own, beneath = self.maps
        value = own[key] if key in own else beneath[key]
        if value is _REMOVED:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        own, beneath = self.maps
        return own[key] is not _REMOVED if key in own else key in beneath

    def __iter__(self) -> Iterator[object]:
        own, beneath = self.maps
        return iter([key for key in {**beneath, **own} if own.get(key) is not _REMOVED])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __delitem__(self, key: object) -> None:
        if key not in self:
            raise KeyError(key)
        self.maps[0][key] = _REMOVED

    def pop(self, key: object, default: object = _REMOVED) -> object:
        """Remove a key here alone."""
        return MutableMapping.pop(self, key) if default is _REMOVED else MutableMapping.pop(self, key, default)

    def popitem(self) -> tuple[object, object]:
        """Remove a key here alone."""
        return MutableMapping.popitem(self)

    def clear(self) -> None:
        """Remove every key here alone."""
        MutableMapping.clear(self)


class _ShadowData(_Over):
    """``ctx.data`` of a shadow, which reads the containers of the call frozen."""

    def __getitem__(self, key: object) -> object:
        value = super().__getitem__(key)
        return value if key in self.maps[0] else freeze(value)


class ShadowContext(InvokeContext):
    """The context of one hook in shadow mode, for all its stages in one call.

    The hook sees the call, and its own writes. Each write is recorded in ``ctx.suppressed`` and changes nothing.
    """

    __slots__ = ("_bound", "_session", "call_context", "context", "left")

    def __init__(self, ctx: InvokeContext) -> None:
        self.run = cast("Run[InvokeContext]", Layer(ctx.run))
        self.data = _ShadowData({}, getattr(ctx, "data", {}))  # a replayed call has none
        self.call_context = ctx
        self.context = copy_context()  # what the hook sets in context variables is its own
        self.left = False  # a stage of it was left behind, so the others do not run
        self._bound: dict[object, object] = {}
        self._session: MutableMapping[object, object] | None = None

    def _need(self, power: May, deed: str) -> None:
        step: PlanStep = self.run.step
        if power in (May.LEASE, May.SUSPEND):
            raise StageError(f"{step.name} runs in shadow mode and may not {deed}")
        if power not in step.row.may:
            raise StageError(f"{step.stage} may not {deed}; stages that may: {stages_that_may(power)}")
        self._record(deed)

    def _record(self, deed: str) -> None:
        self.suppress(CallgateError(f"{self.run.step.name} would {deed}", code="shadow"))

    def suppress(self, error: BaseException) -> None:
        """Record a failure with the call."""
        self.call_context.suppress(error)

    @property
    def cache_hit(self) -> bool | None:
        """See ``InvokeContext``."""
        return self.run.cache_hit

    @cache_hit.setter
    def cache_hit(self, value: bool | None) -> None:
        InvokeContext.cache_hit.fset(self, value)  # type: ignore[attr-defined]
        self._record("set ctx.cache_hit")

    @property
    def session(self) -> MutableMapping[object, object]:
        """The bindings of the session under those of this hook."""
        if self._session is None:
            self._session = _Over({}, self.call_context.session)
        return self._session

    @property
    def providers(self) -> Mapping[object, object]:
        """The providers of the call under those that this hook has bound."""
        return ProvidersView(self, self.run.request_scope(), self.run.plan.host.registry, self._bound)

    def get(self, token: object) -> object:
        """Return the provider that this hook has bound for a token, else the call's."""
        found = self._bound.get(self._recipe(token).key, MISSING)
        return super().get(token) if found is MISSING else found

    def try_get(self, token: object, default: object = None) -> object:
        """See ``get``."""
        found = self._bound.get(self._recipe(token).key, MISSING)
        return super().try_get(token, default) if found is MISSING else found

    async def resolve(self, token: object) -> object:
        """See ``get``."""
        found = self._bound.get(self._recipe(token).key, MISSING)
        return await super().resolve(token) if found is MISSING else found

    def bind_providers(self, bindings: Iterable[tuple[object, object]], scope: ScopeName = "request") -> None:
        """Bind for this hook alone."""
        if scope not in ("request", "session"):
            raise ProviderError(f"a call cannot bind in scope {scope!r}; scopes: request, session")
        self._need(May.BIND, "bind providers")
        self._bound.update(self.run.plan.host.registry.keyed(bindings))

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Record that the hook would report progress."""
        self._record("report progress")

    async def send(self, partial: object) -> None:
        """Record that the hook would send a part of an output."""
        self._record("send a part of the output")

    async def call(self, tool: object, arguments: object = None) -> object:
        """Refuse: a nested call may have an effect.

        Raises:
            StageError: always.
        """
        raise StageError(f"{self.run.step.name} runs in shadow mode and may not call tools")

    async def lease(self, manager: AbstractAsyncContextManager[object]) -> None:
        """Refuse: see ``_need``."""
        self._need(May.LEASE, "take a lease")


def shadow_of(ctx: InvokeContext, hook: object) -> ShadowContext:
    """Return the context of a hook in shadow mode in this call, and make it on first use."""
    shadows = ctx.run.shadows
    if shadows is None:
        shadows = ctx.run.shadows = {}
    if hook not in shadows:
        shadows[hook] = ShadowContext(ctx)
    return cast("ShadowContext", shadows[hook])


# ---------------------------------------------------------------------- time limits of shadows

SHADOW_LIMIT = 0.25
"""Seconds for one stage of a hook in shadow mode that has no ``timeout``; then it is left behind."""

_LEFT: set[asyncio.Task[object]] = set()  # the loop itself keeps no task alive


def in_shadow(
    hook: object, call: Callable[..., object], seconds: float | None, step: PlanStep
) -> Callable[..., Awaitable[Any]]:
    """Wrap a method of a hook in shadow mode: it gets the hook's own context, and its time counts for nothing.

    The deadlines of the call stand still while it runs. What it awaits runs in a task of its own. If that does not end
    within *seconds*, it is cancelled and left behind. *hook* is the hook's registration.

    Raises (the wrapper):
        DeadlineExceeded: the method was left behind.
    """
    limit = SHADOW_LIMIT if seconds is None else float(seconds)

    async def shadowed(ctx: InvokeContext, *rest: object) -> object:
        shadow = shadow_of(ctx, hook)
        clock, loop = ctx.run.plan.host.monotonic, asyncio.get_running_loop()
        began, began_in_loop = clock(), loop.time()
        runs = _of_this_task(ctx.run)
        held = [run.alarm for run in runs if run.alarm is not None and run.alarm.pause()]
        try:
            answer = shadow.context.run(call, shadow, *rest)
            return await _bounded(shadow, answer, limit, step) if inspect.isawaitable(answer) else answer
        finally:
            took, took_in_loop = clock() - began, loop.time() - began_in_loop
            for run in runs:
                if run.deadline_at is not None:
                    run.deadline_at += took
            for idle in {run.idle for run in runs if run.idle is not None}:
                idle.last += took
            for alarm in held:
                alarm.resume(took_in_loop)

    return shadowed


def _of_this_task(run: Run[InvokeContext]) -> list[Run[InvokeContext]]:
    """Return the run of a call, and those of the calls around it that wait for it: their time stands still, too."""
    found, task = [run], asyncio.current_task()
    while (outer := found[-1].outer) is not None and (outer.alarm is None or outer.alarm.task is task):
        found.append(outer)
    return found


async def _bounded(shadow: ShadowContext, answer: Awaitable[object], limit: float, step: PlanStep) -> object:
    """Await what a shadow does in a task of its own, at most *limit* seconds."""

    async def work() -> tuple[object, BaseException | None]:
        try:
            return await answer, None
        except BaseException as error:  # noqa: BLE001  (a task that exits would stop the loop)
            return None, error

    def ended(task: asyncio.Task[tuple[object, BaseException | None]]) -> None:
        _LEFT.discard(task)
        if inspect.iscoroutine(answer):
            answer.close()  # the task may have been cancelled before it began
        if step.release is not None and not task.cancelled() and task.result() == (None, None):
            _in_background(_give_back(shadow, step))  # it took capacity after all

    # asyncio: it may swallow its cancellation; an anyio task group would wait for it
    task = asyncio.get_running_loop().create_task(work(), context=shadow.context)
    try:
        await asyncio.wait([task], timeout=limit)
    finally:
        if not task.done():
            shadow.left = True
            task.cancel()
            _LEFT.add(task)
            task.add_done_callback(ended)
    if not task.done():
        raise DeadlineExceeded(
            f"{step.name}.{step.stage} took longer than {limit:g} s in shadow mode and was left behind"
        )
    made, error = task.result()
    if error is not None:
        raise error
    return made


async def _give_back(shadow: ShadowContext, step: PlanStep) -> None:
    assert step.release is not None
    answer = step.release[1](shadow.call_context)
    try:
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:  # noqa: BLE001  (as any failure of a shadow)
        shadow.suppress(error)


def _in_background(work: Coroutine[object, None, None]) -> None:
    # asyncio: what a shadow left behind outlives its call, which an anyio task group would hold
    task = asyncio.ensure_future(work)
    _LEFT.add(task)
    task.add_done_callback(_LEFT.discard)
