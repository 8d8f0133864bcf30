"""Closing: records, releases, finals and provider exits. They run on every path, each once, despite failures.

All closing steps of a call, and its hooks of ``on_error`` and ``on_give_up``, share a budget: the seconds of
``Options.closing``. It begins when one of them waits for the first time. A step may wait for half of what is left, so
a step that hangs leaves time for those after it. Steps that do not wait always run.

The order is that of the stage table. Records that wait have ``PATIENCE`` together; then the releases run beside them
(see ``beside.py``), because a record that hangs must hold no capacity. The lease of a hook that has records itself
comes after all records, which may use it, and so do the leases taken before. The outcome of an effect is settled after
``will_audit``, which prepares the audit row of its transaction, and before later records that may wait.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Awaitable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from itertools import chain, takewhile
from sys import modules

from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import RECORDS, Stage
from callgate.hooks.state.host import CallPlan
from callgate.hooks.state.step import ASYNC, PlanStep, StepCall, plan_step
from callgate.providers.exits import Exit
from callgate.providers.ranks import Rank
from callgate.runtime.pipeline.guards import valueless
from callgate.runtime.pipeline.leases import defer, releases_of, share
from callgate.runtime.pipeline.shield import (
    ANYIO,
    ENDED,
    Shielded,
    awaited,
    enter_shield,
    leave_shield,
    set_mark,
)
from callgate.tools.calls import Outcome

PATIENCE = 0.1
"""Seconds for which records that wait may hold the leases of a call; then the releases run beside them."""


def closing_steps(plan: CallPlan[InvokeContext], ctx: InvokeContext) -> tuple[StepCall, ...]:
    """Return the steps for records, releases in reverse, and finals. Clear the ledger, so each release runs once."""
    state = ctx.run
    state.finished = plan.now()
    if state.error is None:
        state.outcome = Outcome.SUCCESS
    held, state.leases = state.leases, None
    if held is None:
        return plan.closing
    if held[1] is None and (not plan.late or held[0][2].stays is False):
        return (*plan.records, held[0], *plan.finals)
    releases = releases_of(held)
    for one in releases:
        if one[2].stays is not False:  # the outcome of an effect, or a lease that its hook's records may use
            return (*plan.early, *in_order(releases, plan.late), *plan.finals)
    return (*plan.records, *releases, *plan.finals)


def in_order(releases: Iterable[StepCall], late: Iterable[StepCall]) -> list[StepCall]:
    """Order releases, the last acquired first, and *late* records, which may wait."""
    inner: list[StepCall] = []
    free: list[StepCall] = []
    staying: list[StepCall] = []
    for one in releases:
        if _is_outcome(one[2]):
            inner, free = [*free, one], []  # what the body has taken is released before the outcome is settled
        else:
            (staying if staying or one[2].stays else free).append(one)
    records: tuple[list[StepCall], list[StepCall]] = ([], [])
    for one in late:
        records[one[2].stage is not Stage.WILL_AUDIT].append(one)
    return [*records[0], *inner, *records[1], *free, *staying]


def _is_outcome(step: PlanStep) -> bool:
    """Return True for the release of the claim of an effect, which settles its outcome."""
    return step.stage is Stage.DID_AUDIT and step.hook is None


def _postponed(step: PlanStep, answer: object, rest: Iterable[StepCall]) -> list[StepCall]:
    """Return *rest* with the *answer* of a plain function, which is to be awaited.

    After a record, the outcome of an effect waits for no other records.
    """
    late: list[StepCall] = [(ASYNC, lambda _: valueless(step, answer), step)]
    if step.stage not in RECORDS:
        return [*late, *rest]
    releases: list[StepCall] = []
    finals: list[StepCall] = []
    for one in rest:
        is_release = one[2].stays is not None or _is_outcome(one[2])
        (releases if is_release else late if one[2].stage in RECORDS else finals).append(one)
    return [*in_order(releases, late), *finals]


def close(ctx: InvokeContext, steps: Iterable[StepCall]) -> Coroutine[object, None, None] | None:
    """Run closing steps, each under a shield; failures here are recorded and do not change the outcome.

    Return None if no step waited; otherwise await the result, which finishes from the first step that waits.
    Cancellations from earlier parts of the call (a hook's timer, a cancelled scope) now count as external.
    """
    state, rest = ctx.run, iter(steps)
    if state.off_fast_path and state.closes_at is not None:  # a step has waited before: the budget runs
        return ClosingSteps(ctx, list(rest)).run()
    for one in rest:
        kind, call, state.step = one
        if kind:
            rest = chain((one,), rest)
            break
        try:
            if (answer := call(ctx)) is not None:
                rest = iter(_postponed(state.step, answer, rest))
                break
        except BaseException as error:  # noqa: BLE001  (a lease is released even after SystemExit)
            _record_failure(ctx, error, one)
    else:
        if state.plan.finals:  # finals may take time, and the duration includes them
            state.finished = state.plan.now()
        return None
    # One coroutine runs all steps up to the first that waits: one for each would cost more than most steps.
    set_mark(running := _run_steps(ctx, rest))
    shield = enter_shield() if ANYIO in modules else None
    if (pending := next(running.__await__(), ENDED)) is not ENDED:
        state.shield = shield
        # The list empties the iterator, so the coroutine ends with the step that waits.
        return ClosingSteps(ctx, list(rest), running, pending).finish()
    if shield is not None:
        leave_shield(shield)
    if state.plan.finals:
        state.finished = state.plan.now()
    return None


async def _run_steps(ctx: InvokeContext, steps: Iterable[StepCall]) -> None:
    """Run steps and record their failures. Once one has waited, raise them: time limits are errors, too."""
    state = ctx.run
    for kind, call, step in steps:
        state.step = step
        try:
            try:
                answer = await call(ctx) if kind else call(ctx)
            except KeyboardInterrupt as pressed:
                if not needs_repeat(ctx, pressed, step):
                    raise
                answer = await call(ctx) if kind else call(ctx)
            if answer is not None:
                await valueless(step, answer)  # a plain function returned an awaitable, or a hook a value
        except BaseException as error:
            if state.closes_at is not None:
                raise
            ctx.suppress(error)


class ClosingSteps:
    """The closing steps of a call from the first that waits: each has a coroutine and its share of the time.

    ``running`` is the coroutine of the step that waits, for ``pending``; ``steps`` are those after it. The *mark* tells
    cancellations that descend from these steps from all others. Releases beside a record have one of their own, and
    the shield is not theirs to leave.
    """

    __slots__ = ("are_beside", "ctx", "mark", "patience_ends", "pending", "running", "steps")

    def __init__(
        self,
        ctx: InvokeContext,
        steps: list[StepCall],
        running: Coroutine[object, None, None] | None = None,
        pending: object = None,
        mark: object = None,
    ) -> None:
        self.ctx, self.steps = ctx, steps
        self.running, self.pending = running, pending
        self.mark, self.are_beside = mark or running or self, mark is not None
        self.patience_ends: float | None = None

    async def run(self) -> None:
        """Run the steps of a call of which a closing step has waited before."""
        if ANYIO in modules:
            self.ctx.run.shield = enter_shield()
        await self.finish()

    async def finish(self) -> None:
        """Finish the step that waits; then run each of the others, and leave the shield."""
        ctx, one = self.ctx, None
        while self.running is not None or self.steps:
            try:
                if self.running is None:
                    one, *self.steps = self.steps
                    kind, call, step = one
                    ctx.run.step = step
                    if not kind:
                        if (answer := call(ctx)) is not None:
                            self.steps = _postponed(step, answer, self.steps)
                        continue
                    set_mark(self.mark)
                    self.running = _run_steps(ctx, (one,))
                    self.pending = next(self.running.__await__(), ENDED)
                if self.pending is not ENDED:
                    shielded = self._with_releases(Shielded(self.running, self.mark, limit=share(ctx)))
                    if self.pending is not ENDED:
                        try:
                            await shielded.finish(self.pending)
                        finally:
                            defer(ctx, shielded.deferred)
                            step = ctx.run.step  # one without a hook settles an effect or closes an instance
                            if shielded.timed_out and (step.stays is not None or step.hook is None):
                                ctx.run.pending_release = True
            except BaseException as error:  # noqa: BLE001  (as in ``close``)
                _record_failure(ctx, error, one if self.running is None else None)
            self.running = None
        if not self.are_beside:
            self._end()

    def _end(self) -> None:
        state = self.ctx.run
        if state.shield is not None:
            leave_shield(state.shield)
            state.shield = None
        if state.plan.finals:
            state.finished = state.plan.now()

    def _with_releases(self, shielded: Shielded[None]) -> Shielded[object]:
        """Let the releases run beside a record that waits, when the patience with it ends."""
        step, clock = self.ctx.run.step, get_running_loop().time
        if self.patience_ends is None:
            self.patience_ends = clock() + PATIENCE
        if step.stage not in RECORDS or step.hook is None or not _free(self.steps):
            return shielded
        from callgate.runtime.pipeline.beside import Beside  # few calls have a record that waits, and a lease

        delay = min(self.patience_ends - clock(), share(self.ctx) / 2)
        both = awaited(Beside(self.ctx, shielded, self.pending, self._releases, delay))
        self.pending = next(both.__await__(), ENDED)
        return Shielded(both, shielded.mark)

    def _releases(self, mark: object) -> Coroutine[object, None, None]:
        """Take the releases that need not wait for the records, and return the coroutine that runs them."""
        free = _free(self.steps)
        self.steps = [one for one in self.steps if one not in free]
        return ClosingSteps(self.ctx, free, mark=mark).finish()


def _free(steps: Iterable[StepCall]) -> list[StepCall]:
    """Return the releases that may run before the records have ended: those of leases that no record uses."""
    return [one for one in takewhile(lambda one: not one[2].stays, steps) if one[2].stays is False]


def needs_repeat(ctx: InvokeContext, pressed: KeyboardInterrupt, step: PlanStep) -> bool:
    """Keep a Ctrl-C until the end of the call. Return True if its step has to run again, because it may be half done.

    Python raises a Ctrl-C anywhere, and without arguments; an error with arguments is that of the hook itself. A release
    runs again if its hook says that this is harmless.
    """
    if pressed.args:
        return False
    ctx.run.defer(pressed)
    return bool(getattr(step.hook, "releases_by_token", False))


def _record_failure(ctx: InvokeContext, error: BaseException, one: StepCall | None) -> None:
    """Record the failure of a closing step. After Ctrl-C, *one* that does not wait runs again if it has to."""
    ctx.suppress(error)
    if one is None or type(error) is not KeyboardInterrupt:  # isinstance would ask the error, which may fail
        return
    if needs_repeat(ctx, error, one[2]):
        try:
            one[1](ctx)
        except BaseException as other:  # noqa: BLE001  (as in ``close``)
            ctx.suppress(other)


# ---------------------------------------------------------------------- providers


async def end_scope(ctx: InvokeContext) -> None:
    """Close the invocation's provided instances, the last first, unless an abandoned body still holds them."""
    scope = ctx.run.request_scope()
    scope.holds -= 1
    exits = () if scope.holds else scope.leave()
    if exits and (closing := close(ctx, map(exit_step, exits))) is not None:
        await closing


def exit_step(one: Exit) -> StepCall:
    """Return the step that closes one provided instance; it sees the error that ended the invocation."""

    def leave(ctx: InvokeContext) -> Awaitable[None]:
        return one.leave(ctx.run.error)

    return ASYNC, leave, step_of(one)


def step_of(one: Exit) -> PlanStep:
    """Return the position of the closing of one provided instance in the lifecycle."""
    recipe = one.recipe
    if recipe.step is None:
        stage = Stage.AROUND_EXECUTE if recipe.rank is Rank.EXECUTION else Stage.WILL_FINALIZE_INVOKE
        recipe.step = plan_step(stage, f"close {recipe.name}")
    step: PlanStep = recipe.step
    return step


# ---------------------------------------------------------------------- context variables


def restore_context(outside: Context) -> None:
    """Give each context variable the value that it had before the call; *outside* is the context of that time.

    A call has no task of its own, so the next call of the same task would see the tenant that a hook of this one has set.
    """
    set_mark(None)  # most calls have set nothing else, and their contexts are equal
    now = copy_context()
    try:
        if now == outside:
            return
    except Exception:  # noqa: BLE001, S110  (values that cannot be compared are told apart by identity)
        pass
    for variable, value in now.items():
        before = outside.get(variable, now)
        if before is not value:
            variable.set(_default_of(variable) if before is now else before)
    for variable, value in outside.items():
        if variable not in now:
            variable.set(value)


def _default_of(variable: ContextVar[object]) -> object:
    """Return the value of a variable that is not set. Python cannot unset one, so None stands for no default."""
    try:
        return Context().run(variable.get)
    except LookupError:
        return None
