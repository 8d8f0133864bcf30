"""A call that a tool makes through ``ctx.call``, and the identity of its effect.

The body of the outer tool may run several times: a hook retries it, or a caller repeats the call. Each run calls the same
tools again. So each attempt counts its own calls, and each tool is counted by itself: the second call of a tool in one
attempt is its second call in the next one, whatever else the body calls in between.

Only calls that the body makes in its own task have a fixed order. A call from another task, such as a branch of
``asyncio.gather``, is identified by its arguments. Equal calls are counted, and their order does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from callgate.errors import Denied, InvocationError, StageError
from callgate.hooks.context import InvokeContext
from callgate.hooks.effects import Claim
from callgate.hooks.plan import Plan
from callgate.hooks.state.facts import IdleLimit
from callgate.hooks.state.run import Run
from callgate.providers.ids import new_id
from callgate.runtime.pipeline.leases import call_is_over
from callgate.runtime.pipeline.run import run
from callgate.runtime.pipeline.shield import ENCLOSING, INSIDE, set_mark
from callgate.tools.definition import Effect

MAX_DEPTH = 8
"""Maximum depth of nested calls (``ctx.call`` inside ``ctx.call``)."""


def nested_call(
    ctx: InvokeContext,
    tool: object,
    arguments: object,
    attempt: int,
    plan_of: Callable[[object], Plan],
) -> Coroutine[object, None, object]:
    """Return the coroutine of a call made by a tool, with the same user, session, request providers and deadline.

    It is numbered now: the order in which tasks later run the coroutines may vary.
    """
    if ctx.run.depth >= MAX_DEPTH:
        return _refused(Denied(f"calls nest deeper than {MAX_DEPTH}", code="too_deep"))
    try:
        plan = plan_of(tool)
    except Exception as error:  # noqa: BLE001  (raised where the tool awaits the call)
        return _refused(error)
    outer = ctx.run
    if plan.definition.effect is not Effect.READ:
        _note_effect(outer, plan.tool_id)
    if outer.nested is None:
        outer.nested = {}
    beside = outer.nested.setdefault(attempt, {})
    return _run(ctx, plan, arguments, beside, _counted(beside, plan.tool_id) if _is_ordered(ctx) else None)


def _note_effect(outer: Run[InvokeContext], called: str) -> None:
    """Note for the linter that a ``read`` tool calls an effect, and so do the ``read`` tools around it."""
    caller: Run[InvokeContext] | None = outer
    while caller is not None and caller.plan.record.definition.effect is Effect.READ:
        caller.plan.host.nested_effects.setdefault(caller.plan.tool_id, set()).add(called)
        caller = caller.outer


async def _refused(error: Exception) -> object:
    raise error


async def _run(
    ctx: InvokeContext, plan: Plan, arguments: object, beside: dict[tuple[str, ...], int], place: list[object] | None
) -> object:
    if call_is_over(ctx):  # its outcome, such as one without an effect, is known to its caller
        raise StageError("the call is over, or its body was abandoned: it calls no more tools; await ctx.call in it")
    host, outer = plan.host, ctx.run
    call = InvokeContext(plan, arguments, ctx.user, host.monotonic())
    inner = call.run
    inner.session_id, inner.task = outer.session_id, outer.task
    inner.depth = outer.depth + 1
    inner.outer, inner.beside, inner.place = outer, beside, place
    inner.scope, inner.ends_scope, inner.request_id = outer.request_scope(), False, ctx.request_id
    inner.events, inner.deadline_at, inner.scrubber = outer.events, outer.deadline_at, outer.scrubber
    inner.idle = outer.idle
    if plan.record.deadline is not None:
        own = inner.started + plan.record.deadline
        inner.deadline_at = own if inner.deadline_at is None else min(own, inner.deadline_at)
        inner.off_fast_path = True
    if plan.record.idle is not None:
        inner.idle, inner.off_fast_path = IdleLimit(plan.record.idle, plan.now, inner.started, outer.idle), True
    mark, enclosing = INSIDE.get(), ENCLOSING.get()
    ENCLOSING.set((*enclosing, mark))
    try:
        return await run(plan, call)
    except InvocationError as error:
        error.no_effect = False  # the outer call may have had an effect
        raise
    finally:
        set_mark(mark)  # the outer call's steps continue
        ENCLOSING.set(enclosing)
        inner.finished = host.monotonic()
        inner.events = inner.idle = None  # a task that its body left behind sends and reports nothing more
        if not inner.body_left:
            inner.scope = plan.ended  # as at the end of the caller's call
        host.under_way.pop(call, None)  # it is still there if an acquire was left behind in the middle of it


# ---------------------------------------------------------------------- identity


def _is_ordered(ctx: InvokeContext) -> bool:
    """Return True in the task of the body, and in the thread of a plain one: its calls have a fixed order."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is (ctx.run.body_task or ctx.run.plan.host.under_way.get(ctx))


def _counted(beside: dict[tuple[str, ...], int], *what: str) -> list[object]:
    """Return *what* with the number of such calls in the attempt so far, this one included."""
    number = beside[what] = beside.get(what, 0) + 1
    return [*what, number]


def place_in_outer(inner: Run[InvokeContext]) -> tuple[Claim | None, list[object]]:
    """Return the nearest outer effect of a nested one, and the way to it; without one, the way to the caller's call."""
    way: list[object] = []
    while inner.outer is not None:
        if inner.place is None:
            inner.place = _counted(inner.beside, inner.plan.tool_id, inner.hash_of_input())
        way.append(inner.place)
        inner = inner.outer
        if inner.claim is not None:
            return inner.claim, way
    return None, [_identity(inner), *way]


def tenant_of_outer(inner: Run[InvokeContext]) -> str:
    """Return the tenant of a nested effect: that of the nearest outer one, which all tenants may share."""
    outer = inner.outer
    while outer is not None and outer.claim is None:
        outer = outer.outer
    return inner.user.tenant or "" if outer is None or outer.claim is None else outer.claim.tenant


def _identity(root: Run[InvokeContext]) -> list[object]:
    """Return the identity of a caller's call that claims no effect itself, such as that of a ``read`` tool."""
    if root.idempotency_key is not None:
        return ["given", root.plan.tool_id, root.idempotency_key]
    call = root.tool_call
    if call is not None and root.request_id is not None and not call.synthetic_id:
        return ["call", root.session_id, root.request_id, call.id]
    if root.anchor is None:  # no caller can repeat the call; its attempts are one call
        root.anchor = new_id() if root.resumed is None else root.resumed.id
    return ["here", root.anchor]
