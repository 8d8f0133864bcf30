"""The cache stages: what is a hit, what is written, and what a hit never goes around."""

from __future__ import annotations

from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Outcome, Stage, ToolCall, User
from callgate.hooks.stages import STAGES, Section
from tests.hooks.making import USER, Act, Watch, acting, at, call, echoing, record, refusing

HIT_OR_MISS = (Stage.DID_CACHE_HIT, Stage.DID_CACHE_MISS)
GATES = [s for s in Stage if STAGES[s].phase in {"policy", "capacity"} and STAGES[s].section is Section.BEFORE]


class Cache(Hook):
    """What a cache hook looks like: keyed by tenant and arguments; stores only what was executed."""

    concern = "cache"

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.asked = 0

    def key(self, ctx: InvokeContext) -> Any:
        return ctx.tenant, ctx.input_hash

    def will_read_cache(self, ctx: InvokeContext) -> None:
        self.asked += 1
        if self.key(ctx) in self.kept:
            ctx.respond(self.kept[self.key(ctx)])

    def will_write_cache(self, ctx: InvokeContext) -> None:
        if ctx.executed:
            self.kept[self.key(ctx)] = ctx.output


async def test_a_second_call_is_a_hit_and_does_not_run_the_tool() -> None:
    """Contract C15, C15a."""
    runs: list[int] = []

    async def execute(n: int) -> int:
        runs.append(n)
        return 2 * n

    cache, watch = Cache(), Watch(*HIT_OR_MISS)
    states: list[Any] = []
    write = at(Stage.WILL_WRITE_CACHE, lambda ctx: states.append((ctx.cache_hit, ctx.executed)))
    async with Gate([record(execute)], [cache, watch.hook, write]) as gate:
        outputs = [await gate.invoke("double", {"n": n}, user=USER) for n in (2, 2, 3, 2)]
        other = await gate.invoke("double", {"n": 2}, user=User("v", tenant="beta"))
    assert outputs == [4, 4, 6, 4]
    assert other == 4
    assert runs == [2, 3, 2]
    hit, miss = HIT_OR_MISS
    assert watch.stages == [miss, hit, miss, hit, miss]
    assert states == [(False, True), (True, False), (False, True), (True, False), (False, True)]


async def test_what_is_cached_is_raw_and_is_shaped_for_each_reader() -> None:
    """Contract C15, I8."""

    def redact(ctx: InvokeContext) -> None:
        if "doctor" not in ctx.user.roles:
            ctx.output = {**ctx.output, "diagnosis": "***"}

    cache = Cache()
    async with Gate([echoing()], [cache, at(Stage.WILL_REDACT_OUTPUT, redact)]) as gate:
        users = [
            User("d", tenant="t", roles={"doctor"}),
            User("n", tenant="t"),
            User("d", tenant="t", roles={"doctor"}),
        ]
        seen = [(await gate.invoke("echo", {"diagnosis": "flu"}, user=user))["diagnosis"] for user in users]
    assert seen == ["flu", "***", "flu"]
    assert [value["diagnosis"] for value in cache.kept.values()] == ["flu"]


@pytest.mark.parametrize("act", [lambda ctx: ctx.abort("no"), lambda ctx: ctx.retry_after(5), refusing(KeyError())])
@pytest.mark.parametrize("stage", GATES)
async def test_a_hit_never_goes_around_a_policy_or_a_limit(stage: Stage, act: Act) -> None:
    """Contract C15c, I6."""
    closed: list[bool] = []
    cache, watch = Cache(), Watch(*HIT_OR_MISS)

    def gate_keeper(ctx: InvokeContext) -> None:
        if closed:
            act(ctx)

    async with Gate([record()], [cache, watch.hook, at(stage, gate_keeper)]) as gate:
        assert await gate.invoke("double", {"n": 2}, user=USER) == 4
        assert await gate.invoke("double", {"n": 2}, user=USER) == 4
        closed.append(True)
        result = await gate.call(ToolCall(id="c", name="double", arguments={"n": 2}), user=USER)
    assert not result.ok
    assert cache.asked == 2
    assert len(watch.stages) == 2


async def test_a_hit_takes_its_quota() -> None:
    """Contract C15c."""
    log: list[str] = []
    quota = acting(
        {
            Stage.WILL_ACQUIRE_QUOTA: lambda ctx: log.append("+"),
            Stage.DID_RELEASE_QUOTA: lambda ctx: log.append("-"),
        }
    )()
    async with Gate([record()], [Cache(), quota]) as gate:
        for _ in range(2):
            await gate.invoke("double", {"n": 2}, user=USER)
    assert log == ["+", "-", "+", "-"]


@pytest.mark.parametrize(
    "hooked", [(), *((stage,) for stage in Stage)], ids=lambda stages: "".join(stages) or "nothing"
)
async def test_hit_and_miss_are_told_whatever_other_hooks_there_are(hooked: tuple[Stage, ...]) -> None:
    """Contract C15a."""
    for act, stage, output in (
        (lambda ctx: ctx.respond(50), *HIT_OR_MISS[:1], 50),
        (lambda ctx: None, *HIT_OR_MISS[1:], 4),
    ):
        watch = Watch(*HIT_OR_MISS)
        others = [at(other, lambda ctx: None, priority=1) for other in hooked]
        assert (await call(record(), at(Stage.WILL_READ_CACHE, act), watch.hook, *others)).output == output
        assert watch.stages == [stage]


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False])
async def test_any_response_is_a_hit(value: Any) -> None:
    """Contract C15a."""
    watch = Watch(*HIT_OR_MISS)
    result = await call(echoing(), at(Stage.WILL_READ_CACHE, lambda ctx: ctx.respond(value)), watch.hook, arguments={})
    assert (result.outcome, result.output) == (Outcome.SUCCESS, value)
    assert watch.stages == [Stage.DID_CACHE_HIT]


async def test_the_first_hit_is_the_hit() -> None:
    """Contract C15a."""
    asked: list[int] = []

    def cache(number: int, hit: bool) -> Hook:
        def act(ctx: InvokeContext) -> None:
            asked.append(number)
            if hit:
                ctx.respond(number)

        return at(Stage.WILL_READ_CACHE, act)

    watch = Watch(*HIT_OR_MISS)
    assert (await call(record(), cache(1, False), cache(2, True), cache(3, True), watch.hook)).output == 2
    assert asked == [1, 2]
    assert watch.stages == [Stage.DID_CACHE_HIT]


@pytest.mark.parametrize("limit", [{"filter": lambda self, ctx: False}, {"tenants": {"beta"}}])
async def test_a_cache_that_did_not_look_has_missed_nothing(limit: dict[str, Any]) -> None:
    """Contract 92, C15a."""
    watch = Watch(*HIT_OR_MISS)
    out = at(Stage.WILL_READ_CACHE, lambda ctx: None, **limit)
    assert (await call(record(), out, watch.hook)).output == 4
    assert watch.stages == []
    assert watch._ctx is None
    both = at(Stage.WILL_READ_CACHE, lambda ctx: None)
    assert (await call(record(), out, both, watch.hook)).output == 4
    assert watch.stages == [Stage.DID_CACHE_MISS]


async def test_a_hit_hook_may_respond_with_something_else() -> None:
    """Contract C15a."""
    for flagged in (False, True):

        def look(ctx: InvokeContext) -> None:
            ctx.cache_hit = True
            if not flagged:  # noqa: B023
                ctx.respond(50)

        first, second = Watch(*HIT_OR_MISS, priority=2), Watch(*HIT_OR_MISS, priority=-2)
        refresh = at(Stage.DID_CACHE_HIT, lambda ctx: ctx.respond(60))
        assert (await call(record(), at(Stage.WILL_READ_CACHE, look), refresh, first.hook, second.hook)).output == 60
        assert (first.stages, second.stages) == ([], [Stage.DID_CACHE_HIT])  # did_*: low priority first


async def test_a_hit_that_no_longer_fits_the_schema_is_not_served() -> None:
    """Contract C15, C17, I15."""
    result = await call(record(), at(Stage.WILL_READ_CACHE, lambda ctx: ctx.respond("old form")))
    assert result.outcome is Outcome.ERROR
    assert result.output is None


async def test_only_one_of_hit_and_miss_and_only_once() -> None:
    """Contract C15a, C1."""
    watch = Watch()

    class Again(Hook):
        repeats = True

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            await next()
            return await next()

    await call(record(), Again(), watch.hook)
    assert watch.stages.count(Stage.DID_CACHE_MISS) == 1
    assert watch.stages.count(Stage.WILL_WRITE_CACHE) == 1
    assert Stage.DID_CACHE_HIT not in watch.stages
