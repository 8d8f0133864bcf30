"""Promises of a call hold against random programs of misbehaving hooks and tools; a runtime that breaks one is found.

A violation prints the program, as small as it could be made, with its seed: ``drawn(seed)`` makes it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from itertools import chain
from typing import Any

import pytest

from callgate import InvokeContext, Stage
from callgate.hooks import context
from callgate.hooks.effects import Claim
from callgate.hooks.selection import Registration
from callgate.hooks.stages import May
from callgate.hooks.state import run
from callgate.hooks.state.facts import FROZEN
from callgate.providers.scope import ProviderScope
from callgate.runtime.pipeline import (
    around,
    bodies,
    builtin,
    closing,
    deadlines,
    failure,
    guards,
    leases,
    partials,
    results,
    shield,
    streams,
)
from callgate.runtime.pipeline import (
    run as pipeline_run,
)
from callgate.runtime.pipeline.failure import error_info as error_info_of
from callgate.runtime.pipeline.shadow import PartialContext
from callgate.runtime.pipeline.under_way import UnderWay
from callgate.runtime.testing.virtual_time import StepLoop, close_loop
from callgate.tools.values import thaw
from tests.runtime.pipeline.misbehaving import EFFECTS, FORMS, KINDS, WITNESSES, Program, drawn
from tests.runtime.pipeline.misbehaving_deeds import BODY_DEEDS, DEEDS, NEXT_DEEDS
from tests.runtime.pipeline.misbehaving_known import KNOWN
from tests.runtime.pipeline.misbehaving_promises import broken_by, first_found, seen_in
from tests.runtime.pipeline.misbehaving_world import World

# A program may make the coroutine of `next()` and not await it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Patch = Callable[[pytest.MonkeyPatch], None]
USUAL, SOAK = 300, 10_000


@pytest.fixture
def loop() -> Generator[StepLoop]:
    """A loop on virtual time."""
    made = StepLoop()
    yield made
    close_loop(made)


@pytest.fixture(autouse=True)
def _quiet() -> Generator[None]:
    """Most programs fail in many ways, and each failure would be logged."""
    logger = logging.getLogger("callgate")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


def none_is_found(programs: Iterable[Program], loop: StepLoop) -> None:
    found = first_found(programs, loop)
    assert found is None, str(found)


def test_no_program_of_misbehaving_hooks_and_tools_breaks_a_promise(loop: StepLoop) -> None:
    """I1, I2, I3, I4, I10, I12, I13, I16, contract 90, C12, C16."""
    none_is_found(map(drawn, range(USUAL)), loop)


@pytest.mark.parametrize("how", KNOWN)
def test_no_program_that_once_broke_a_promise_breaks_one(how: str, loop: StepLoop) -> None:
    """Each was found by drawing."""
    none_is_found([KNOWN[how]], loop)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_none_of_ten_thousand_programs_breaks_a_promise(loop: StepLoop, part: int) -> None:
    """The same, with other seeds."""
    size = SOAK // 10
    none_is_found(map(drawn, range(part * size, (part + 1) * size)), loop)


def test_a_program_is_the_same_each_time_that_its_seed_is_drawn(loop: StepLoop) -> None:
    """A violation can be run again."""
    for seed in range(0, USUAL, 20):
        program = drawn(seed)
        assert program == drawn(seed)
        assert str(program) == str(drawn(seed))
        first, second = seen_in(program, loop), seen_in(program, loop)
        assert [vars(one)["parts"] for one in first.calls] == [vars(one)["parts"] for one in second.calls]
        assert bodies_of(first) == bodies_of(second)


def bodies_of(world: World) -> list[str]:
    """What each body got, and whether it ended; calls at once may begin in any order."""
    return sorted(f"{one.got} {one.ended}" for one in world.bodies)


def test_the_programs_do_everything_everywhere() -> None:
    """Each deed, each stage, each form of a tool and each kind of call is drawn, and many programs succeed."""
    programs = [drawn(seed) for seed in range(6 * USUAL)]
    acts = [(stage, deed) for one in programs for hook in one.hooks for stage, deeds in hook.acts for deed in deeds]
    assert {stage for stage, _ in acts} == set(Stage)
    assert {deed for _, deed in acts} == {*DEEDS, *NEXT_DEEDS}
    assert {deed for one in programs for deed in one.body.deeds} == set(BODY_DEEDS)
    assert {one.body.form for one in programs} == set(FORMS)
    assert {one.body.effect for one in programs} == set(EFFECTS)
    assert {one.kind for one in programs} == set(KINDS)
    assert {one.witness for one in programs} == set(WITNESSES)
    assert any(one.cancel for one in programs)
    assert any(one.deadline for one in programs)
    assert sum(one.is_steady and one != one.without_shadows() for one in programs) > USUAL / 2


def test_programs_reach_the_tool_and_their_calls_end_in_every_way(loop: StepLoop) -> None:
    """The promises are held against something."""
    ran, outcomes = 0, set[str]()
    for seed in range(100):
        world = seen_in(drawn(seed), loop)
        ran += bool(world.bodies)
        outcomes |= {one.result.outcome.value for one in world.calls if one.result is not None}
    assert ran > 40
    assert {"success", "error", "denied", "retry_later", "invalid", "unknown", "suspended"} <= outcomes


# ---------------------------------------------------------------------- controls: each mend taken away


def views_can_be_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "input_view", lambda value: value)
    patch.setattr(run, "output_view", lambda value: value)


def raw_input_is_no_view(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "raw_view", lambda value: value)


def masked_input_is_no_view(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(context, "masked_view", thaw)


def values_that_are_set_stay_with_the_hook(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "thaw", lambda value: value)


def a_tool_gets_the_frozen_arguments_themselves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bodies, "thaw", lambda value: value)


def the_user_can_be_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        InvokeContext, "user", property(lambda self: self.run.user, lambda self, user: setattr(self.run, "user", user))
    )


def the_table_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InvokeContext, "_need", lambda self, power, deed: None)


def frozen_input_can_be_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        InvokeContext, "input", property(InvokeContext.input.fget, lambda self, value: self.run.put_input(value))
    )


def what_was_set_after_validation_is_not_validated(patch: pytest.MonkeyPatch) -> None:
    def freeze(self: Any, ctx: Any) -> None:
        ctx.run.input_state = FROZEN

    patch.setattr(builtin.BuiltIns, "freeze", freeze)


def a_shadow_has_the_context_of_the_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards, "in_shadow", lambda _hook, call, *_: call)


def a_shadow_may_fail_a_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards, "_is_contained", lambda ctx, error: False)


class _NoLock:
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *_: object) -> None: ...


def parts_share_the_context_of_the_call(patch: pytest.MonkeyPatch) -> None:
    class Shared:
        def __init__(self, ctx: InvokeContext) -> None:
            self.__dict__["ctx"] = ctx

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["ctx"], name)

    patch.setattr(partials, "PartialContext", Shared)
    patch.setattr("callgate.runtime.pipeline.streams.asyncio.Lock", _NoLock)


def parts_come_as_they_are_shaped(patch: pytest.MonkeyPatch) -> None:
    real, turn = streams.Events.partial, [0]

    async def partial(self: Any, ctx: Any, value: Any) -> None:
        turn[0] += 1
        for _ in range(turn[0] % 3 * 4):
            await asyncio.sleep(0)
        await real(self, ctx, value)

    patch.setattr(streams.Events, "partial", partial)
    patch.setattr("callgate.runtime.pipeline.streams.asyncio.Lock", _NoLock)


def parts_are_not_shaped(patch: pytest.MonkeyPatch) -> None:
    async def shaped(_: Any, partial: Any) -> Any:
        return partial

    patch.setattr("callgate.runtime.pipeline.partials.shaped", shaped)


def a_view_outlives_its_output(patch: pytest.MonkeyPatch) -> None:
    def returned(self: Any) -> None:
        self.returned_at, self.output_log = self.plan.now(), None

    patch.setattr(run.Run, "returned", returned)


def releases_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(closing, "releases_of", lambda held: [])


def releases_run_twice(patch: pytest.MonkeyPatch) -> None:
    real = leases.releases_of
    patch.setattr(closing, "releases_of", lambda held: [*real(held), *real(held)])


def leases_are_taken_after_the_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "_is_over", lambda ctx: False)


def an_acquire_is_not_shielded(patch: pytest.MonkeyPatch) -> None:
    async def finish(ctx: Any, coroutine: Any, pending: Any, step: Any) -> Any:
        return await shield.Shielded(coroutine, grace=0.0).finish(pending)

    patch.setattr(pipeline_run, "finish_acquire", finish)


def a_nested_step_does_not_know_its_own_timeout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shield.Shielded, "_is_inside", lambda self: shield.INSIDE.get() is self.mark)


def a_deadline_that_was_suppressed_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = deadlines.disarm

    async def disarm(ctx: Any) -> bool:
        await real(ctx)
        return False

    patch.setattr(pipeline_run, "disarm", disarm)


def crashes_are_not_contained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failure, "contain", lambda ctx, error: error)


def every_generator_exit_closes_the_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failure, "closes", lambda error, task: isinstance(error, GeneratorExit))


def values_that_decide_nothing_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline_run, "refuse_value", lambda step, answer: None)


def every_failed_policy_is_ignored(patch: pytest.MonkeyPatch) -> None:
    real = Registration.option

    def option(self: Any, name: str, default: Any = None) -> Any:
        return "ignore" if name == "on_failure" else real(self, name, default)

    patch.setattr(Registration, "option", option)


def the_ledger_asks_where_the_call_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claim, "watch", lambda self, body: body)


async def _shaped_without_care(ctx: Any, partial: Any) -> Any:
    part = PartialContext(ctx)
    part.run.put_output(partial)
    await partials._shape(part)
    return part.run.output


def a_refused_part_says_that_nothing_happened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("callgate.runtime.pipeline.partials.shaped", _shaped_without_care)


def a_wrapper_may_leave_its_next_behind(patch: pytest.MonkeyPatch) -> None:
    async def end(self: Any) -> None: ...

    patch.setattr(around._NextCall, "end", end)


def every_claim_wins(patch: pytest.MonkeyPatch) -> None:
    def claim(self: Any, tenant: str, effect: Any, retry: bool = False) -> Any:
        self._write((tenant, effect.key), effect)
        return True, effect

    patch.setattr("callgate.providers.stores.memory.effects.MemoryEffects.claim_now", claim)


def instances_close_in_the_order_in_which_they_were_made(patch: pytest.MonkeyPatch) -> None:
    real = ProviderScope.end
    patch.setattr(ProviderScope, "end", lambda self: real(self)[::-1])


def instances_are_not_closed(patch: pytest.MonkeyPatch) -> None:
    real = ProviderScope.end
    patch.setattr(ProviderScope, "end", lambda self: real(self)[:0])


def calls_stay_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnderWay, "__delitem__", lambda self, ctx: None, raising=False)


def ended_calls_bind(patch: pytest.MonkeyPatch) -> None:
    def bind_providers(self: Any, bindings: Any, scope: str = "request") -> None:
        self._need(May.BIND, "bind providers")
        bound = self.session if scope == "session" else self.run.request_scope().bindings
        bound.update(self.run.plan.host.registry.keyed(bindings))

    patch.setattr(InvokeContext, "bind_providers", bind_providers)


def calls_share_their_data(patch: pytest.MonkeyPatch) -> None:
    shared: dict[Any, Any] = {}
    patch.setattr(InvokeContext, "data", property(lambda _: shared, lambda _, __: None))


def the_model_reads_the_text_of_errors(patch: pytest.MonkeyPatch) -> None:
    real = error_info_of

    def error_info(error: BaseException) -> Any:
        cause: Any = error.__cause__ or error
        error.public = str(cause)  # type: ignore[attr-defined]
        return real(error)

    patch.setattr(results, "error_info", error_info)


def closing_steps_end_at_a_failure(patch: pytest.MonkeyPatch) -> None:
    real = InvokeContext.suppress

    def suppress(self: Any, error: BaseException) -> None:
        real(self, error)
        if self.run.finished is not None:
            raise error

    patch.setattr(InvokeContext, "suppress", suppress)


VIEWS, TABLE, SHADOW = "what is refused shows nowhere", "the table decides", "a shadow changes nothing"
LEASES, ENDS, LEDGER = "leases are released once", "a call ends with a result", "the ledger is true"
SABOTAGES: dict[Patch, set[str]] = {
    views_can_be_changed: {VIEWS},
    raw_input_is_no_view: {VIEWS},
    masked_input_is_no_view: {VIEWS},
    values_that_are_set_stay_with_the_hook: {VIEWS},
    a_tool_gets_the_frozen_arguments_themselves: {"what was authorised runs", VIEWS},
    the_user_can_be_set: {"the user is fixed"},
    the_table_is_not_asked: {TABLE},
    frozen_input_can_be_set: {TABLE},
    what_was_set_after_validation_is_not_validated: {"what was authorised runs"},
    a_shadow_has_the_context_of_the_call: {TABLE, VIEWS, SHADOW},
    a_shadow_may_fail_a_call: {SHADOW},
    parts_share_the_context_of_the_call: {"outputs are redacted", "parts come in order"},
    parts_come_as_they_are_shaped: {"parts come in order"},
    parts_are_not_shaped: {"outputs are redacted"},
    a_view_outlives_its_output: {"outputs are redacted"},
    releases_are_forgotten: {LEASES},
    releases_run_twice: {LEASES},
    leases_are_taken_after_the_call: {LEASES},
    an_acquire_is_not_shielded: {LEASES},
    a_nested_step_does_not_know_its_own_timeout: {ENDS},
    a_deadline_that_was_suppressed_is_forgotten: {"a deadline ends a call"},
    crashes_are_not_contained: {ENDS},
    every_generator_exit_closes_the_call: {ENDS, "closing stages run once"},
    values_that_decide_nothing_pass: {"a refusal holds"},
    every_failed_policy_is_ignored: {"a refusal holds"},
    the_ledger_asks_where_the_call_failed: {LEDGER},
    a_refused_part_says_that_nothing_happened: {LEDGER},
    a_wrapper_may_leave_its_next_behind: {LEDGER, "outputs are redacted"},
    every_claim_wins: {"an effect happens once"},
    instances_close_in_the_order_in_which_they_were_made: {"instances close once, in reverse"},
    instances_are_not_closed: {"instances close once, in reverse"},
    calls_stay_under_way: {"nothing is left"},
    ended_calls_bind: {"nothing is left", "no value of another call shows"},
    calls_share_their_data: {"no value of another call shows"},
    the_model_reads_the_text_of_errors: {"errors tell no internals"},
    closing_steps_end_at_a_failure: {ENDS, LEASES, "closing stages run once"},
}
"""Each with the promises that it breaks, of which the first that is found must be one."""


SOON = (102, 138)
"""Seeds of programs that find what no known program does."""


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_a_runtime_that_lacks_a_mend_is_found(sabotage: Patch, loop: StepLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of each promise."""
    sabotage(monkeypatch)
    wanted = SABOTAGES[sabotage]
    for program in chain(KNOWN.values(), map(drawn, SOON), map(drawn, range(2 * USUAL))):
        if wanted & {promise for promise, _ in broken_by(program, loop)}:
            return
    raise AssertionError(f"{sabotage.__name__} was not found")
