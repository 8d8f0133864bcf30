"""``RecordingHook``: it records the stages given to it, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, RegistrationError, Stage, User, on, tool
from callgate.errors import HookError, InvocationError
from callgate.hooks.stages import STAGES
from callgate.runtime.testing import recording
from callgate.testing import RecordingHook, trace
from tests.runtime.testing.making import Again, Connected, Places, Quota, double

USER = User("u1")


async def test_by_default_it_sees_every_stage_of_a_call_in_order(recording_hook: RecordingHook) -> None:
    """Contract 97."""
    async with Gate([double], [recording_hook], effects=Effects(durable=False)) as gate:
        assert await gate.invoke(double, {"n": 2}, user=USER) == 4
    seen = recording_hook.stages
    never = {Stage.DID_CACHE_HIT, Stage.DID_CACHE_MISS, Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR}
    assert set(seen) == set(Stage) - never
    outer = [stage for stage in seen if stage is not Stage.AROUND_EXECUTE]
    assert outer == sorted(outer, key=lambda stage: STAGES[stage].position)
    assert seen.count(Stage.AROUND_EXECUTE) == 2
    before, after = recording_hook.at("around_execute")
    assert (before.output, after.output) == (None, 4)
    assert {moment.verdict for moment in recording_hook.moments} == {"ok"}
    assert recording_hook.at(Stage.WILL_FINALIZE_INVOKE)[0].outcome == "success"


async def test_it_keeps_copies_of_input_and_output_as_they_were() -> None:
    """Contract C27."""

    class Changes(Hook):
        def will_normalize_input(self, ctx: InvokeContext) -> None:
            ctx.input = {**ctx.input, "n": 30}

        def will_transform_output(self, ctx: InvokeContext) -> None:
            ctx.output = {**ctx.output, "m": 1}

    @tool(effect="read")
    async def echo(n: int) -> dict[str, int]:
        return {"n": n}

    first = RecordingHook(["will_normalize_input", "will_transform_output"], name="first", priority=5)
    last = RecordingHook(["will_normalize_input", "will_transform_output"], name="last", priority=-5)
    async with Gate([echo], [first, Changes(), last], effects=Effects(durable=False)) as gate:
        await gate.invoke(echo, {"n": 3}, user=USER)
    assert [(m.step, m.input, m.output) for m in (*first.moments, *last.moments)] == [
        ("first.will_normalize_input", {"n": 3}, None),
        ("first.will_transform_output", {"n": 30}, {"n": 30}),
        ("last.will_normalize_input", {"n": 30}, None),
        ("last.will_transform_output", {"n": 30}, {"n": 30, "m": 1}),
    ]


async def test_calls_are_counted_and_failures_named(recording_hook: RecordingHook) -> None:
    """Contract 104."""
    async with Gate([double], [recording_hook], effects=Effects(durable=False)) as gate:
        await gate.invoke(double, {"n": 2}, user=USER)
        with pytest.raises(InvocationError):
            await gate.invoke(double, {"n": "two"}, user=USER)
    assert {moment.call for moment in recording_hook.moments} == {1, 2}
    (failed,) = recording_hook.at(Stage.ON_ERROR)
    assert (failed.call, failed.verdict, failed.outcome) == (2, "Invalid", "invalid")
    recording_hook.clear()
    assert recording_hook.moments == []


def test_it_implements_no_stage_but_those_asked_for_and_the_release_of_an_acquire() -> None:
    """Contract C1e; a stage that no hook implements costs nothing."""
    audit = RecordingHook([Stage.WILL_AUDIT])
    plan = Gate([double], [audit], effects=Effects(durable=False))._plans.of("double")
    assert [step.stage for _, _, step in plan.steps() if step.hook is not None] == [Stage.WILL_AUDIT]
    assert plan.fast_path is not None  # the short way is still taken
    pair = RecordingHook(["will_acquire_quota"])
    plan = Gate([double], [pair], effects=Effects(durable=False))._plans.of("double")
    assert [step.stage for _, _, step in plan.steps() if step.hook is pair] == [
        Stage.WILL_ACQUIRE_QUOTA,
        Stage.DID_RELEASE_QUOTA,
    ]
    assert isinstance(pair, RecordingHook)
    assert pair.at("did_release_quota") == []
    with pytest.raises(
        HookError, match=r"does not record will_execute; write RecordingHook\(\[..., 'will_execute'\]\)"
    ):
        pair.at("will_execute")  # an empty list would say that the stage did not run
    with pytest.raises(HookError, match="will_audit"):
        RecordingHook(["will_audits"])


async def test_its_acquires_hold_and_are_given_back(recording_hook: RecordingHook) -> None:
    """Contract C1a: an acquire without a decision is one."""
    async with Gate([double], [recording_hook], effects=Effects(durable=False)) as gate:
        seen = await trace(gate, double, {"n": 1})
    assert [lease.step for lease in seen.leases] == [
        "RecordingHook.will_acquire_quota",
        "RecordingHook.will_acquire_semaphore",
    ]
    assert seen.given_back_in_reverse
    assert len(recording_hook.at(Stage.DID_RELEASE_QUOTA)) == len(recording_hook.at(Stage.DID_RELEASE_SEMAPHORE)) == 1


# ---------------------------------------------------------------------- it changes nothing


class Cache(Hook):
    """Says what it saw of the cache."""

    def __init__(self) -> None:
        self.missed = 0
        self.state: list[Any] = []

    def did_cache_miss(self, ctx: InvokeContext) -> None:
        self.missed += 1

    def will_write_cache(self, ctx: InvokeContext) -> None:
        self.state.append(ctx.cache_hit)


class Looking(Cache):
    def will_read_cache(self, ctx: InvokeContext) -> None:
        pass


async def ends(hooks: list[Any], arguments: Any) -> tuple[Any, ...]:
    async with Gate([double], hooks, effects=Effects(durable=False)) as gate:
        seen = await trace(gate, double, arguments)
    others = {name: verdict for name, verdict in seen.verdicts.items() if "Recording" not in name and "[" not in name}
    return seen.result.outcome, seen.output, type(seen.error), others, seen.given_back_in_reverse


@pytest.mark.parametrize("arguments", [{"n": 2}, '{"n": 2}', {"n": "two"}, {}, "["])
@pytest.mark.parametrize("cache", [Cache, Looking])
async def test_a_call_ends_the_same_with_it_and_without(cache: type[Cache], arguments: Any) -> None:
    """Contract 97-99: the same outcome, output, error and steps of other hooks; a miss is not made by watching."""

    def hooks() -> list[Any]:
        return [Quota(), Places(), Connected(), Again(), cache()]

    plain, watched, hook = hooks(), hooks(), RecordingHook()
    assert await ends(plain, arguments) == await ends([*watched, hook], arguments)
    assert (plain[-1].missed, plain[-1].state) == (watched[-1].missed, watched[-1].state)
    assert len(hook.moments) > 10


async def test_watching_the_cache_as_other_hooks_do_would_make_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: of the filter that keeps it out of will_read_cache."""
    monkeypatch.setattr(recording, "_see_the_cache_pass", lambda self, ctx: True)
    recording._watching.cache_clear()
    try:
        plain, watched = Cache(), Cache()
        await ends([plain], {"n": 2})
        await ends([watched, RecordingHook()], {"n": 2})
        assert (plain.missed, watched.missed) == (0, 1)
    finally:
        recording._watching.cache_clear()


async def test_a_gate_that_nobody_guards_is_refused_with_it_as_without() -> None:
    """Design 5: a gate that fails to authorise denies."""

    @tool(effect="irreversible", key=("n",))
    async def pay(n: int) -> int:
        return n

    with pytest.raises(RegistrationError, match="authorises"):
        await Gate([pay], [RecordingHook()], effects=Effects(durable=False)).__aenter__()

    @on(Stage.WILL_AUTHORIZE)
    def anybody(ctx: InvokeContext) -> None:
        pass

    async with Gate([pay], [RecordingHook(), anybody], effects=Effects(durable=False)) as gate:
        assert await gate.invoke(pay, {"n": 1}) == 1
