"""Execution of a tool's body: argument conversion, dependencies, threads, hard deadlines. One closure per tool."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

import orjson

from callgate.errors import DeadlineExceeded, Invalid, RetryLater
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import PlanParts
from callgate.hooks.tool_view import ToolView
from callgate.providers.foreign_errors import is_pressed
from callgate.providers.registry import MISSING
from callgate.runtime.pipeline.deadlines import begin_in_time
from callgate.runtime.pipeline.failure import counted, crashed
from callgate.runtime.pipeline.leases import defer
from callgate.tools.calls import ToolResult
from callgate.tools.declaring.executor import output_of
from callgate.tools.outputs import PLAIN, Dump, HoldsOutput, Reader, Unread, not_finite
from callgate.tools.record import Style, ToolRecord
from callgate.tools.values import SCALARS, thaw

Body: TypeAlias = Callable[[InvokeContext], Awaitable[object]]
THREADS_BUSY = "threads_busy"
ABANDON_GRACE = 0.25
"""Seconds that a cancelled body may take to end before it is abandoned with outcome ``unknown``."""


def arguments_of(parts: PlanParts) -> Callable[[dict[str, object]], dict[str, object]] | None:
    """Return the conversion of frozen arguments to those of the body; None if the body takes them unchanged.

    Nested values are copied for each attempt, so changes by a tool stay in that attempt.
    """
    convert, flat = parts.record.convert if parts.record.converts else None, parts.builtins.flat
    if flat:
        return convert
    if convert is None:
        return thaw
    return lambda arguments: convert(thaw(arguments))


def make_body(parts: PlanParts) -> Body:
    """Make the general body, for all tools that ``direct_call`` excludes."""
    record = parts.record
    prepare = arguments_of(parts) or thaw
    supply = _supplier(parts)
    start = _starter(record, hard=parts.hard)

    async def body(ctx: InvokeContext) -> object:
        extra = await supply(ctx)
        if ctx.run.deadline_at is not None:
            begin_in_time(ctx)
        if ctx.run.claim is not None:
            ctx.run.claim.begin()
        try:
            return await start(ctx, prepare(ctx.run.input), extra)
        except BaseException as raised:
            if (error := counted(ctx, raised)) is raised:
                raise
            raise error from None

    return body


def runs_in_place(record: ToolRecord, *, hard: bool) -> bool:
    """Return True if the call awaits the body directly, as a coroutine function with keyword arguments."""
    return record.style is Style.KEYWORDS and record.is_async and not record.streams and not hard


def direct_call(record: ToolRecord, *, hard: bool) -> Callable[..., Awaitable[object]] | None:
    """Return the tool's own coroutine function if a call needs no further work around it; else None."""
    plain = runs_in_place(record, hard=hard) and not record.injected and record.context_parameter is None
    return record.execute if plain else None


def supplied_call(parts: PlanParts, *, watched: bool) -> Body:
    """Make the single attempt of a body that runs in place, with its dependencies and context."""
    execute, prepare, supply = parts.record.execute, arguments_of(parts), _supplier(parts)
    running, copied, own = parts.running, parts.builtins.copied, parts.supply
    ready = own.ready if own is not None and parts.record.context_parameter is None else lambda _: None

    async def call(ctx: InvokeContext) -> object:
        ctx.run.step = running
        supplied = ready(ctx)
        if supplied is None:
            supplied = await supply(ctx)
        if ctx.run.deadline_at is not None:
            begin_in_time(ctx)
        if ctx.run.claim is not None:
            ctx.run.claim.begin()
        try:
            output = await execute(**(ctx.run.input if prepare is None else prepare(ctx.run.input)), **supplied)
            if output.__class__ in SCALARS:
                ctx.run.output = output
            elif (made := copied(ctx.run, output)) is not MISSING:
                ctx.run.output = made
            else:
                ctx.run.output = await converted(ctx, output)
        except BaseException as raised:
            ctx.run.step = running  # the end of the body is its own, whatever ran beside it
            if (error := counted(ctx, raised)) is raised:
                raise
            raise error from None
        ctx.run.executed = True
        if watched:
            ctx.run.returned()
        return ctx.run.output

    return call


async def converted(ctx: InvokeContext, output: object, *, ended: bool = True) -> object:
    """Return what an async body returned as JSON; its iterators are read in a thread of the tool."""
    try:
        return _as_json(ctx, output, waits=False, ended=ended)
    except Unread:
        pass
    try:
        return await _in_thread(ctx.run.plan.record, begins=False)(ctx, lambda: output)
    except RetryLater as busy:
        if busy.code == THREADS_BUSY:
            busy.no_effect = False  # the body has run
        raise


def _as_json(ctx: InvokeContext, output: object, *, waits: bool = True, ended: bool = True) -> object:
    """Return what a body returned as JSON. Iterators are read here if this may take time (*waits*).

    With *ended* False it is a part, and the body has not ended.

    Raises:
        Invalid: it has no JSON form, or an iterator exceeds the limits.
        DeadlineExceeded: the call ended while an iterator was read.
        Unread: it holds an iterator, and *waits* is False.
    """
    if output.__class__ in SCALARS:
        return output
    run = ctx.run
    made = run.plan.builtins.copied(run, output)
    if made is not MISSING:
        return made
    if isinstance(output, ToolResult):  # or the model would read an error as the output of a success
        return _as_json(ctx, output_of(output), waits=waits, ended=ended)

    def stop() -> None:
        if run.abandoned or ctx.remaining() == 0:
            raise DeadlineExceeded(f"{ctx.tool_id} did not end within its deadline")

    reader = Reader(run.plan.builtins.limits, stop, waits=waits)
    try:
        return run.plan.builtins.dump(output, reader)
    except Invalid as error:
        if error.stage == "output" and run.claim is not None and ended and not reader.ran:
            run.claim.returned()  # the effect took place even if the output is not JSON
        raise


def plain_copy(  # noqa: C901  (the copy is one function without calls: it runs in every call of a tool)
    shallow: int, dump: Dump | None = None, *, bounded: bool = False
) -> Callable[[HoldsOutput, object], object]:
    """Make the function that copies plain JSON; it returns MISSING for other outputs, and for those that *dump* converts.

    An output of *shallow* bytes keeps all limits. An output that is *bounded* by its schema is not measured.
    """
    if dump is not None and not dump.takes_plain:
        return lambda _run, _output: MISSING
    members = None if dump is None else dump.members
    dumps, loads, plain = orjson.dumps, orjson.loads, PLAIN

    def copy(run: HoldsOutput, output: Any) -> object:
        flat = None
        if output.__class__ is dict:
            for name, value in output.items():  # a loop: ``set.issuperset`` costs more for so few
                if value.__class__ not in SCALARS or name.__class__ is not str:
                    break
                if members is not None and name not in members:
                    return MISSING
            else:
                flat = output.copy()
                if bounded:
                    return flat
        if members is not None and flat is None and not (output.__class__ is dict and members >= output.keys()):
            return MISSING
        try:
            data = dumps(output, None, plain)
        except TypeError:
            return MISSING
        if data.find(b"null") >= 0 and not_finite(output) is not None:  # null may stand for such a number
            return MISSING
        made = loads(data) if flat is None else flat
        if len(data) <= shallow:
            run.limited = made
        return made

    return copy


def _supplier(parts: PlanParts) -> Callable[[InvokeContext], Awaitable[dict[str, object]]]:
    """Return the function that resolves the tool's dependencies and its context."""
    wants, supply = parts.record.context_parameter, parts.supply
    if supply is not None and wants is None:
        return supply.get

    async def supplied(ctx: InvokeContext) -> dict[str, object]:
        found: dict[str, object] = {} if supply is None else await supply.get(ctx)
        return found if wants is None else {**found, wants: ToolView(ctx)}

    return supplied


# ---------------------------------------------------------------------- styles


_BOUND: dict[Style, Callable[..., Callable[[], Any]]] = {
    Style.KEYWORDS: lambda execute, _, arguments, extra: functools.partial(execute, **arguments, **extra),
    Style.COMPONENT: lambda execute, _, arguments, extra: execute(arguments, **extra).run,
    Style.RECORD: lambda execute, ctx, arguments, extra: functools.partial(execute, arguments, ToolView(ctx), **extra),
}
"""By style: the body as a function without parameters. The constructor of a class is part of its body."""


def _starter(record: ToolRecord, *, hard: bool) -> Callable[..., Awaitable[object]]:
    run, bound, execute = _runner(record, hard=hard), _BOUND[record.style], record.execute
    streams = record.streams and record.style is not Style.RECORD

    async def start(ctx: InvokeContext, arguments: dict[str, object], extra: dict[str, object]) -> object:
        call = bound(execute, ctx, arguments, extra)
        return await run(ctx, functools.partial(_drain, ctx, call) if streams else call)

    return start


async def _drain(ctx: InvokeContext, call: Callable[[], Any]) -> list[object]:
    """Collect the parts of an async generator as JSON, and send each to the stream; their list is the output.

    The generator is closed at the part with which the list exceeds the limit of the output.
    """
    parts, output = call(), []
    measure, sizes = ctx.run.plan.builtins.measure, (2, 0)  # the brackets of the list
    try:
        async for part in parts:
            shown = await converted(ctx, part, ended=False)
            sizes = measure(shown, sizes)
            output.append(shown)
            await ctx.send(shown)
    finally:
        if hasattr(parts, "aclose"):  # clean up within the call, before garbage collection
            await parts.aclose()
    return output


# ---------------------------------------------------------------------- place of execution


def _runner(record: ToolRecord, *, hard: bool) -> Callable[[InvokeContext, Callable[[], Any]], Awaitable[object]]:
    if not record.is_async and record.inline:
        return _inline
    if not record.is_async:
        return _in_thread(record)
    if hard:
        return _abandonable
    return _streamed if record.streams else _awaited


async def _awaited(ctx: InvokeContext, call: Callable[[], Awaitable[object]]) -> object:
    return await converted(ctx, await call())


async def _streamed(_ctx: InvokeContext, call: Callable[[], Awaitable[object]]) -> object:
    return await call()  # ``_drain`` has converted each part


async def _inline(ctx: InvokeContext, call: Callable[[], object]) -> object:
    answer = call()
    if not inspect.isawaitable(answer):
        return _as_json(ctx, answer)
    if ctx.run.plan.hard:
        return await _abandonable(ctx, lambda: answer)
    return _as_json(ctx, await answer)


def _in_thread(
    record: ToolRecord, *, begins: bool = True
) -> Callable[[InvokeContext, Callable[[], object]], Awaitable[object]]:
    """Make the runner of a plain function: worker threads, at most ``max_threads``.

    While all are busy, a call waits for one within its deadline. A thread cannot be cancelled, so it stays busy until
    the function returns. With *begins* False, the body has begun before.
    """
    # a service of coroutines needs no threads
    from callgate.runtime.pipeline.thread_settings import around_threads, surrounded_call
    from callgate.runtime.pipeline.threads import threads_of

    threads = threads_of(record)

    async def run(ctx: InvokeContext, call: Callable[[], object]) -> object:
        def work() -> object:
            try:
                answer = call()
                return answer if inspect.isawaitable(answer) else _as_json(ctx, answer)
            except StopIteration as error:  # a future cannot hold StopIteration: the call would never end
                raise RuntimeError("the tool raised StopIteration") from error

        lease = None if ctx.run.unit is None else ctx.run.unit.threads
        if lease is None:
            if (around := around_threads(ctx.run.plan.host.around_threads)) is not None:
                work = surrounded_call(around, work)
            working = threads.submit(functools.partial(contextvars.copy_context().run, work))
        else:  # the thread and the context of its providers
            working = lease.submit(work)

        def take_back() -> None:
            if working.cancel() and begins and ctx.run.claim is not None:
                ctx.run.claim.take_back()

        output = await _outlive(ctx, asyncio.wrap_future(working), take_back)
        if inspect.isawaitable(output):  # of an async function in a plain wrapper
            with threads.lent() if lease is not None else nullcontext():
                if ctx.run.plan.hard:
                    return await _abandonable(ctx, lambda: output)
                output = await output
            return await converted(ctx, output)
        return output

    return run


async def _abandonable(ctx: InvokeContext, call: Callable[[], Any]) -> object:
    """Run a coroutine in its own task, so that it can be abandoned."""
    finish = _streamed if ctx.run.plan.record.streams else _awaited

    async def work() -> object:
        ctx.run.body_task = asyncio.current_task()
        try:
            return await finish(ctx, call)
        except (KeyboardInterrupt, SystemExit) as error:  # in its own task it would stop the loop
            raise crashed(ctx, error) from error

    # asyncio: a body may be left behind at its deadline; an anyio task group would wait for it
    running = asyncio.ensure_future(work())
    try:
        return await _outlive(ctx, running, running.cancel)
    except Exception as error:
        if is_pressed(error.__cause__):  # no wrapper retries or answers that
            raise error.__cause__ from None
        raise


async def _outlive(ctx: InvokeContext, body: asyncio.Future[object], stop: Callable[[], object]) -> object:
    """Wait for the body; when cancelled, *stop* it. If it outlives that by the grace period, abandon it with its leases.

    The leases are released when the body ends; until then, ``ctx.run.pending_release`` is True. If a body overruns its
    deadline but ends within the grace period, its own result or error counts, and the rest of the call has another such
    period.
    """
    try:
        await asyncio.wait([body])
    except asyncio.CancelledError:
        stop()
        alarm = ctx.run.alarm
        if alarm is not None and not alarm.fired:  # a cancellation from elsewhere takes precedence
            ctx.run.alarm = alarm.later(ABANDON_GRACE)
        until = asyncio.get_running_loop().time() + ABANDON_GRACE
        while not body.done() and (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.wait([body], timeout=left)
            except asyncio.CancelledError as again:
                defer(ctx, again)
        if not body.done():
            ctx.run.plan.host.abandon(ctx, body)
            raise
        if ctx.run.alarm is None or not ctx.run.alarm.alone:
            if not body.cancelled():
                body.exception()  # mark as retrieved: the cancellation is raised instead
            raise
        if not body.cancelled():
            ctx.run.alarm.forget()  # the own result or error of the body counts
            ctx.run.alarm = ctx.run.alarm.later(ABANDON_GRACE)  # the rest of the call has as long again
    return body.result()
