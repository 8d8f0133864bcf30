"""Guards around one hook method: filter, tenants, timeout, ignore, shadow, trace.

A hook that needs no guard is called directly, so only hooks that use a guard pay for it.
"""

from __future__ import annotations

import asyncio
import inspect
import opcode
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from callgate.errors import Control, DeadlineExceeded, InvocationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.instances import instance_made, instance_of
from callgate.hooks.remembered import remembered
from callgate.hooks.selection import Registration, is_async
from callgate.hooks.stages import RECORDS, RELEASE_OF, STAGES, Row, Section, Stage
from callgate.hooks.state.step import ASYNC, ASYNC_LEASE, SYNC, SYNC_LEASE, PlanStep, StepCall, plan_step
from callgate.providers.kinds import truth
from callgate.providers.markers import Injected, find_injected
from callgate.runtime.pipeline.shadow import in_shadow, shadow_of

SKIPPED: object = object()
"""The result of a guarded hook that its filter excluded: no method ran, so there is no lease."""
Call: TypeAlias = Callable[..., Any]


def bind(registration: Registration, stage: Stage) -> tuple[bool, Call]:
    """Return the stage method as ``(is_async, call)``; a hook class becomes its instance of the invocation.

    Marked parameters get their values from ``ctx.run.plan.supplies``.
    """
    method = getattr(registration.hook, stage.value)
    function = getattr(method, "__func__", method)
    coroutine, call = is_async(function), method
    if registration.is_class:
        coroutine, call = _of_instance(registration.hook, stage.value, coroutine)
    return (True, _supplied(function, call)) if marked_parameters(registration, stage) else (coroutine, call)


def marked_parameters(registration: Registration, stage: Stage) -> tuple[Injected, ...]:
    """Return the injected parameters of a stage method; the argument count rules most methods out."""
    method = getattr(registration.hook, stage.value)
    function = getattr(method, "__func__", method)
    own = (function is not method or registration.is_class) + (2 if stage is Stage.AROUND_EXECUTE else 1)
    return _marked(function, own)


@remembered
def _marked(function: Any, own: int) -> tuple[Injected, ...]:
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    return find_injected(plain) if code is not None and code.co_argcount + code.co_kwonlyargcount > own else ()


def _of_instance(cls: type, name: str, is_coroutine: bool) -> tuple[bool, Call]:
    def late(ctx: InvokeContext, *rest: object, **supplied: object) -> object:
        return getattr(instance_of(ctx, cls), name)(ctx, *rest, **supplied)

    async def after_making(ctx: InvokeContext, *rest: object, **supplied: object) -> object:
        answer = getattr(await instance_made(ctx, cls), name)(ctx, *rest, **supplied)
        return await answer if inspect.isawaitable(answer) else answer

    return (True, after_making) if constructor_parameters(cls) else (is_coroutine, late)


def constructor_parameters(cls: Any) -> tuple[Injected, ...]:
    """The injected parameters of a hook class."""
    return () if cls.__init__ is object.__init__ else find_injected(cls)


def _supplied(function: object, call: Call) -> Call:
    async def with_dependencies(ctx: InvokeContext, *rest: object) -> object:
        answer = call(ctx, *rest, **await ctx.run.plan.supplies[function].get(ctx))
        return await answer if inspect.isawaitable(answer) else answer

    return with_dependencies


def needs_guard(registration: Registration) -> bool:
    """Return True if the hook needs a guard around its methods."""
    return bool(
        registration.filter is not None
        or registration.tenants is not None
        or registration.option("timeout")
        or registration.is_shadow
        or registration.option("on_failure", "deny") == "ignore"
    )


def guard(registration: Registration, step: PlanStep, call: Call) -> Call:
    """Wrap *call* in the guards that its hook needs; the result is always a coroutine function."""
    if registration.option("timeout") and not step.shadow:
        call = limited(call, float(registration.option("timeout")), step)
    applies = applies_to(registration, step)
    shadow, ignores = step.shadow, registration.option("on_failure", "deny") == "ignore"
    reads_cache = step.stage is Stage.WILL_READ_CACHE and not shadow

    async def guarded(ctx: InvokeContext) -> object:
        if shadow and shadow_of(ctx, registration).left:
            return SKIPPED
        try:
            if applies is not None and not await applies(ctx):
                return SKIPPED
            if reads_cache and ctx.run.cache_hit is None:
                ctx.run.cache_hit = False
            answer = call(ctx)
            answer = await answer if inspect.isawaitable(answer) else answer
        except BaseException as error:
            decided = isinstance(error, Exception | Control)
            if not (_is_contained(ctx, error) if shadow else ignores and decided and is_failure(error)):
                raise
            ctx.suppress(error)
            return SKIPPED
        return SKIPPED if shadow and answer is not None else answer

    return guarded


_RAISE = opcode.opmap["RAISE_VARARGS"]
"""The instruction of ``raise``: code raised the error, and nothing threw it in."""


def _is_contained(ctx: InvokeContext, error: BaseException) -> bool:
    """Return True for all that a hook in shadow mode raises itself, and False for a cancellation of its call."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return not closes(error, ctx.run.plan.host.under_way.get(ctx))


def closes(error: BaseException, task: asyncio.Task[object] | None) -> bool:
    """Return True if *error* closes a coroutine that *task* runs: then the coroutine can await no more.

    A ``GeneratorExit`` that a hook or a tool raises itself arrives in that task, as any other error does. Where the task
    is not known, pass None.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        running = asyncio.current_task()
    except RuntimeError:  # no loop runs any more
        return True
    return running is None or (task is not None and task is not running) or not _was_raised(error)


def _was_raised(error: BaseException) -> bool:
    """Return True if code raised the error, and False if ``close()`` threw it into a coroutine that waits."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return where is not None and where.tb_frame.f_code.co_code[where.tb_lasti] == _RAISE


def guarded_step(
    registration: Registration,
    stage: Stage,
    *,
    bare: bool = False,
    trace: bool = False,
    hard: bool = False,
    row: Row | None = None,
) -> StepCall:
    """Return the step of a hook in one stage, with its guards; the step of an acquire has its release.

    *bare* skips the filter and the mode, as releases do. ``around_execute`` applies the filter itself. *hard* is the
    default of ``hard_deadline``. *row* are other rights than those of the stage.
    """
    coroutine, call = bind(registration, stage)
    shadow, limit, stages = registration.is_shadow, registration.option("timeout"), registration.all_stages()
    guards = not bare and stage is not Stage.AROUND_EXECUTE and needs_guard(registration)
    waits = coroutine or shadow or guards or bool(bare and limit)
    paired, release, stays = RELEASE_OF.get(stage), None, None
    if paired is not None and paired in stages:
        release = guarded_step(registration, paired, bare=True, trace=trace, hard=hard)
    if STAGES[stage].gives_back is not None:
        stays = any(one in RECORDS for one in stages)
    # Made before its guards: they keep it, and a shadow that ran out of time calls its release.
    step = plan_step(
        stage, registration.name, registration.hook, shadow=shadow, release=release, waits=waits, stays=stays, row=row
    )
    if shadow:
        call = in_shadow(registration, call, limit, step)
    elif bare and limit:
        call = limited(call, float(limit), step)
    if guards:
        call = guard(registration, step, call)
    if not bare and _is_hard(registration, step, hard):
        from callgate.runtime.pipeline.abandoned import abandonable  # few gates have a hard deadline

        call = abandonable(call)
    if trace:
        if step.row.section in (Section.CLOSING, Section.ERROR):  # the row shows that a value was refused
            call = _valueless_call(step, call)
        waits, call = True, traced(step, call)
    if release is not None:
        return ASYNC_LEASE if waits else SYNC_LEASE, call, step
    return ASYNC if waits else SYNC, call, step


def _is_hard(registration: Registration, step: PlanStep, default: bool) -> bool:
    """Return True if a method is abandoned at the deadline. What has a limit of its own is not: acquires and closing."""
    own = registration.option("hard_deadline")
    bounded = step.shadow or step.stage in RELEASE_OF or step.row.section in (Section.CLOSING, Section.ERROR)
    return bool(default if own is None else own) and not bounded


def is_failure(error: BaseException) -> bool:
    """Return True if a hook failed, and False if it decided; ``on_failure="ignore"`` covers failures only."""
    decided = isinstance(error, InvocationError) and not isinstance(error, DeadlineExceeded)
    return isinstance(error, Exception) and not decided


def applies_to(
    registration: Registration, step: PlanStep | None = None
) -> Callable[[InvokeContext], Awaitable[bool]] | None:
    """Return the check of a hook's filter and tenants, or None if the hook always takes part. *step* is that of a stage."""
    wanted, tenants = registration.filter, registration.tenants
    if wanted is None and tenants is None:
        return None
    cls = registration.hook if registration.is_class else None

    async def applies(ctx: InvokeContext) -> bool:
        is_of_tenant = tenants is None or ctx.user.tenant in tenants
        if wanted is None or not is_of_tenant:
            return is_of_tenant
        answer = (wanted if cls is None else (await instance_made(ctx, cls)).filter)(ctx)
        return truth(registration.name, "filter", await answer if inspect.isawaitable(answer) else answer)

    if step is not None and step.shadow:
        here = plan_step(step.stage, step.name, step.hook, shadow=True)  # a filter takes nothing that is given back
        return in_shadow(registration, applies, registration.option("timeout"), here)
    return applies


def only_where_it_applies(registration: Registration, asks: Call) -> Call:
    """Wrap ``approval_for`` of a hook: it runs where the hook takes part, within its ``timeout``. A shadow is not asked."""
    if (seconds := registration.option("timeout")) is not None:
        asks = limited(asks, seconds, plan_step(Stage.WILL_AUTHORIZE_INPUT, registration.name))
    applies = applies_to(registration)
    if applies is None:
        return asks

    async def asked(ctx: InvokeContext) -> object:
        if not await applies(ctx):
            return None
        answer = asks(ctx)
        return await answer if inspect.isawaitable(answer) else answer

    return asked


def limited(call: Call, seconds: float, step: PlanStep) -> Call:
    """Wrap *call* in a timeout that raises ``DeadlineExceeded``."""

    async def in_time(ctx: InvokeContext, *rest: object) -> object:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                answer = call(ctx, *rest)  # a plain method may return an awaitable, too
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"{step.name}.{step.stage} took longer than {seconds} s") from error

    return in_time


def traced(step: PlanStep, call: Call) -> Call:
    """Wrap *call* so that it adds a row to ``ctx.run.trace``."""

    async def recorded(ctx: InvokeContext, *rest: object) -> object:
        began = time.perf_counter()
        verdict = "ok"
        row = [step.stage, step.name, verdict, 0.0]
        assert ctx.run.trace is not None
        ctx.run.trace.append(row)
        try:
            answer = call(ctx, *rest)
            answer = await answer if inspect.isawaitable(answer) else answer
            if answer is SKIPPED:
                row[2] = "skipped"
            return answer
        except BaseException as error:
            row[2] = type(error).__name__
            raise
        finally:
            row[3] = time.perf_counter() - began

    return recorded


def refuse_value(step: PlanStep, answer: object) -> None:
    """Refuse a value that a hook returned in a stage where a value decides nothing.

    Raises:
        TypeError: always. A hook that returns False meant to deny; the call must not pass.
    """
    raise TypeError(
        f"{step.name}.{step.stage} returned {type(answer).__name__}, which decides nothing; "
        "call ctx.abort(), ctx.respond() or ctx.retry_after(), or return None to go on"
    )


async def valueless(step: PlanStep, answer: object) -> None:
    """Await what a hook returned, if it can be awaited; refuse a value."""
    answer = await answer if inspect.isawaitable(answer) else answer
    if answer is not None and answer is not SKIPPED:
        refuse_value(step, answer)


def _valueless_call(step: PlanStep, call: Call) -> Call:
    async def checked(ctx: InvokeContext) -> object:
        answer = call(ctx)
        answer = await answer if inspect.isawaitable(answer) else answer
        await valueless(step, answer)
        return answer  # a trace tells steps that were skipped

    return checked
