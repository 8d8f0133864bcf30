"""``Cache``: the tool runs once for equal calls, and nobody gets what was made for another."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import (
    Denied,
    Gate,
    Hook,
    InvokeContext,
    Provide,
    Scoped,
    Stage,
    ToolContext,
    ToolDefinition,
    ToolError,
    ToolFailed,
    User,
    tool,
)
from callgate.errors import HookError
from callgate.hooks.stock.capacity.cache import Cache, _bytes
from callgate.providers.principal import ANONYMOUS
from callgate.providers.stores.base import CacheEntry
from callgate.providers.stores.memory.store import MemoryStore
from callgate.testing import FakeClock, LeaseLedger, every_cancel_point
from tests.harness.gate_options import gate_options
from tests.harness.steploop import cost_of, on_virtual_time
from tests.harness.sweeps import swept
from tests.hooks.making import ANYTHING, Watch, at, record
from tests.providers.stores.backends import SHARED, place
from tests.providers.stores.backends import opened as backend_at

ANN, BEN = User("ann", tenant="acme"), User("ben", tenant="acme")


class Tool:
    """Counts its runs; answers what it is told to."""

    def __init__(self, answer: Any = None) -> None:
        self.runs = 0
        self.answer = answer
        self.record = record(self.run, ANYTHING)

    async def started(self, times: int) -> None:
        async with asyncio.timeout(10):
            while self.runs < times:  # noqa: ASYNC110  (what it waits for is counted)
                await asyncio.sleep(0)

    async def run(self, **arguments: Any) -> Any:
        self.runs += 1
        answer = self.answer(self.runs) if callable(self.answer) else self.answer
        return await answer if asyncio.iscoroutine(answer) else answer


def opened(subject: Any, *hooks: Any, **options: Any) -> Gate:
    return Gate(
        [getattr(subject, "record", subject)], hooks, allow_unguarded=True, **gate_options(durable=False, **options)
    )


async def ask(gate: Gate, arguments: Any = None, user: User = ANN, **options: Any) -> Any:
    return await gate.invoke("echo", {} if arguments is None else arguments, user=user, **options)


# ---------------------------------------------------------------------- hits and keys


async def test_an_equal_call_is_answered_without_running_the_tool() -> None:
    """Contract C15, C15b: 2 and 2.0 are one number; the order of members says nothing."""
    subject = Tool({"x": 1})
    async with opened(subject, Cache(60)) as gate:
        for arguments in ({"a": 2, "b": [1, "2"]}, {"b": [1, "2"], "a": 2.0}, '{"b":[1.0,"2"],"a":2}'):
            assert await ask(gate, arguments) == {"x": 1}
    assert subject.runs == 1


async def test_null_is_a_value_like_any_other() -> None:
    """Contract C15b: a null result counts as a hit."""
    subject = Tool(None)
    async with opened(subject, Cache(60)) as gate:
        assert [await ask(gate), await ask(gate)] == [None, None]
    assert subject.runs == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def as_json(value: Any) -> Any:
    """Equality as JSON has it: 1 is 1.0 and is not True."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, int | float):
        whole = isinstance(value, int) or (value.is_integer() and abs(value) < 2**53)
        return ("number", int(value) if whole else value)
    if isinstance(value, dict):
        return ("object", frozenset((key, as_json(item)) for key, item in value.items()))
    return ("array", tuple(map(as_json, value)))


@settings(max_examples=300)
@given(st.dictionaries(st.text(), JSON, max_size=3), st.dictionaries(st.text(), JSON, max_size=3))
def test_keys_are_equal_just_where_arguments_are(one: Any, other: Any) -> None:
    """Contract C15b: ``{"a": "1;b:2"}`` and ``{"a": "1", "b": "2"}`` are two."""
    assert (_bytes("t", "u", None, one) == _bytes("t", "u", None, other)) == (as_json(one) == as_json(other))
    assert _bytes("t", "u", None, one) == _bytes("t", "u", None, dict(reversed(one.items())))


PLACES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"user": ANN}, {"user": BEN}, False),
    ({"user": ANN}, {"user": User("ann", tenant="other")}, False),
    ({"user": ANN, "session_id": "1"}, {"user": ANN, "session_id": "2"}, True),
    ({"user": ANN}, {"user": User("ann", tenant="acme", roles={"boss"})}, True),
]


@pytest.mark.parametrize(("one", "other", "same"), PLACES)
async def test_each_user_of_each_tenant_has_values_of_their_own(one: Any, other: Any, same: bool) -> None:
    """Contract C15b, C26; invariant I8."""
    subject = Tool(lambda run: run)
    async with opened(subject, Cache(60)) as gate:
        assert ((await ask(gate, **one)) == (await ask(gate, **other))) is same


async def test_shared_values_are_shared_within_a_tenant_only() -> None:
    """Contract C15b."""
    subject = Tool(lambda run: run)
    async with opened(subject, Cache(60, shared=True)) as gate:
        users = [ANN, BEN, User("ann", tenant="other"), ANONYMOUS, User("x")]
        assert [await ask(gate, user=user) for user in users] == [1, 1, 2, 3, 3]


async def test_calls_of_nobody_are_kept_apart_by_session_and_not_kept_without_one() -> None:
    """Contract C26."""
    subject = Tool(lambda run: run)
    async with opened(subject, Cache(60)) as gate:
        calls = [{"session_id": "1"}, {"session_id": "1"}, {"session_id": "2"}, {}, {}]
        assert [await ask(gate, user=ANONYMOUS, **options) for options in calls] == [1, 1, 2, 3, 4]


async def test_vary_by_makes_a_difference_where_it_says_so() -> None:
    """Contract C15b."""
    subject = Tool(lambda run: run)
    boss = User("ann", tenant="acme", roles={"boss"}, scopes={"s"})
    hooks = Cache(60, shared=True, vary_by=["session", "roles", "scopes", lambda ctx: ctx.data.get("language")])
    speaks = at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.data.update(language=ctx.raw_input["l"]), name="Speaks")
    async with opened(subject, speaks, hooks) as gate:
        told = [
            await ask(gate, {"l": "en"}),
            await ask(gate, {"l": "en"}, user=BEN),
            await ask(gate, {"l": "en"}, session_id="1"),
            await ask(gate, {"l": "en"}, user=boss),
        ]
    assert told == [1, 1, 2, 3]


async def test_another_version_or_schema_of_the_tool_is_another_tool() -> None:
    """Contract C15b: tool version and schema hash are in the key."""
    store = MemoryStore()
    seen: list[Any] = []
    variants: list[dict[str, Any]] = [
        {},
        {"version": "2"},
        {"parameters": {"type": "object", "properties": {"n": {}}}},
        {},
    ]
    for options in variants:
        subject = Tool(len(seen))
        subject.record = record(subject.run, ToolDefinition(**{**_parts(), **options}))
        async with opened(subject, Cache(60), store=store) as gate:
            seen.append(await ask(gate))
    assert seen == [0, 1, 2, 0]


def _parts() -> dict[str, Any]:
    return {
        "name": ANYTHING.name,
        "description": ANYTHING.description,
        "parameters": {"type": "object"},
        "effect": ANYTHING.effect,
    }


# ---------------------------------------------------------------------- what is kept


async def test_only_tools_that_read_are_cached_unless_forced() -> None:
    """Design 7: only ``read`` is cached freely."""

    @tool(effect="idempotent")
    async def echo() -> int:
        return next(numbers)

    numbers = iter(range(100))
    async with opened(echo, Cache(60)) as gate:
        assert "limited to effects" in str(gate.explain("echo"))
        assert [await ask(gate), await ask(gate)] == [0, 1]
    async with opened(echo, Cache(60, force=True)) as gate:
        assert [await ask(gate), await ask(gate)] == [2, 2]


async def test_the_raw_output_is_kept_and_shaped_anew_for_each_reader() -> None:
    """Contract C15: redaction is per reader; policy changes apply to old entries."""
    subject = Tool({"name": "Ann", "iban": "DE00"})

    def redact(ctx: InvokeContext) -> None:
        if "boss" not in ctx.user.roles:
            ctx.output = {**ctx.output, "iban": "***"}

    boss = User("max", tenant="acme", roles={"boss"})
    async with opened(subject, Cache(60, shared=True), at(Stage.WILL_REDACT_OUTPUT, redact)) as gate:
        told = [await ask(gate, user=user) for user in (ANN, boss, ANN)]
    assert [one["iban"] for one in told] == ["***", "DE00", "***"]
    assert subject.runs == 1


NOT_KEPT: dict[str, tuple[Any, list[Any]]] = {
    "a hook answered before the tool": (1, [at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.respond("challenge"))]),
    "a hook answered in the place of the tool": (1, [at(Stage.AROUND_EXECUTE, lambda ctx: "instead")]),
    "a response that nobody checks": (1, [at(Stage.DID_EXECUTE, lambda ctx: ctx.respond("x", validate=False))]),
    "an output that is not finite": (float("nan"), []),
    "an output that a later stage refuses": (1, [at(Stage.WILL_TRANSFORM_OUTPUT, lambda ctx: ctx.abort("no"))]),
    "a number beyond 64 bits": (2**70, []),
}


@pytest.mark.parametrize("case", NOT_KEPT)
async def test_nothing_is_kept_that_did_not_run_or_was_refused_later(case: str) -> None:
    """Contract C15: never a non-executed value, never one that a later validator refuses."""
    answer, hooks = NOT_KEPT[case]
    store = MemoryStore()
    async with opened(Tool(answer), Cache(60), *hooks, store=store) as gate:
        for _ in range(2):
            try:
                await ask(gate)
            except Exception:  # noqa: BLE001  (how it ends is not the matter here)
                continue
    assert len(store.cache) == 0


async def test_an_output_that_breaks_its_schema_is_not_kept() -> None:
    """Contract C15: write_validated_only."""

    @tool(effect="read", output_schema={"type": "string"})
    async def echo() -> Any:
        return 7

    store = MemoryStore()
    async with opened(echo, Cache(60), store=store) as gate:
        with pytest.raises(Exception, match="output schema"):
            await ask(gate)
    assert len(store.cache) == 0


async def test_a_hit_writes_nothing() -> None:
    """Contract C15: the built-in cache must not rewrite on hit."""
    clock = FakeClock()
    subject = Tool(lambda run: run)
    async with opened(subject, Cache(10), clock=clock) as gate:
        for seconds, expected in ((0, 1), (9, 1), (0.9, 1), (0.2, 2)):  # 10.1 s after it was made, and read since
            clock.advance(seconds)
            assert await ask(gate) == expected


async def test_a_hit_is_announced_and_a_miss_too() -> None:
    """Contract 98, C15a."""
    watch = Watch(Stage.DID_CACHE_HIT, Stage.DID_CACHE_MISS)
    async with opened(Tool(1), Cache(60), watch.hook) as gate:
        await ask(gate)
        await ask(gate)
    assert watch.stages == [Stage.DID_CACHE_MISS, Stage.DID_CACHE_HIT]


GATES = [Stage.WILL_AUTHORIZE, Stage.WILL_CHECK_CONSENT, Stage.WILL_ACQUIRE_QUOTA, Stage.WILL_AUTHORIZE_INPUT]


@pytest.mark.parametrize("stage", GATES)
async def test_a_hit_bypasses_no_gate(stage: Stage) -> None:
    """Contract C15c."""
    closed: list[bool] = []

    def decide(ctx: InvokeContext) -> None:
        if closed:
            ctx.abort("no longer")

    async with opened(Tool("kept"), Cache(60, shared=True), at(stage, decide)) as gate:
        assert await ask(gate) == "kept"
        closed.append(True)
        with pytest.raises(Denied):
            await ask(gate)


async def test_what_does_not_conform_in_the_store_is_no_hit() -> None:
    """Invariant I8: what a store gives back is read as JSON, and checked like any output."""
    store, subject = MemoryStore(), Tool(1)
    async with opened(subject, Cache(60), store=store) as gate:
        await ask(gate)
        (place,) = store.cache._entries
        entry = store.cache._entries[place]
        store.cache._entries[place] = entry.__class__(b"{broken", *[getattr(entry, n) for n in _REST])
        assert await ask(gate) == 1
    assert subject.runs == 2


_REST = ("made_at", "fresh_until", "stale_until", "tags")


async def test_a_store_that_is_down_is_a_cache_without_the_value() -> None:
    """Design 6: a cache is no gate."""

    class Down:
        async def get(self, tenant: str, key: str) -> Any:
            raise ConnectionError

        async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
            raise ConnectionError

    subject, down = Tool("fine"), cast("Any", Down())
    async with opened(subject, Cache(60, store=down)) as gate:
        assert [await ask(gate), await ask(gate)] == ["fine", "fine"]
    assert subject.runs == 2


# ---------------------------------------------------------------------- time and tags


async def test_a_stale_value_is_served_while_one_caller_renews_it() -> None:
    """Issue 4: stale-while-revalidate; the one who renews is a caller who was authorised, never the background."""
    clock, release = FakeClock(), asyncio.Event()

    async def slowly(run: int) -> int:
        if run > 1:
            await release.wait()
        return run

    subject = Tool(slowly)
    async with opened(subject, Cache(10, stale=20), clock=clock) as gate:
        assert await ask(gate) == 1
        clock.advance(15)
        renewing = asyncio.ensure_future(ask(gate))
        await subject.started(2)
        assert [await ask(gate) for _ in range(3)] == [1, 1, 1]
        release.set()
        assert await renewing == 2
        assert await ask(gate) == 2
        clock.advance(31)  # past stale, too
        assert await ask(gate) == 3


async def test_entries_are_dropped_by_tag_within_a_tenant() -> None:
    """Issue 4: tags."""
    subject = Tool(lambda run: run)
    cache = Cache(60, entry_tags=lambda ctx: [f"n:{ctx.input['n']}", "all"])
    other = User("ann", tenant="other")
    async with opened(subject, cache) as gate:
        first = [await ask(gate, {"n": n}, user=user) for user in (ANN, other) for n in (1, 2)]
        assert await cache.drop_tags("acme", ["n:1"]) == 1
        again = [await ask(gate, {"n": n}, user=user) for user in (ANN, other) for n in (1, 2)]
    assert (first, again) == ([1, 2, 3, 4], [5, 2, 3, 4])


async def test_a_text_in_place_of_the_tags_of_an_entry_is_refused() -> None:
    """Its characters were the tags, so dropping the tag dropped nothing. The call succeeds, and is not stored."""
    async with opened(Tool(lambda run: run), Cache(60, entry_tags=lambda ctx: "n:1")) as gate:
        assert [await ask(gate), await ask(gate)] == [1, 2]


async def test_what_was_under_way_when_tags_were_dropped_is_not_kept_nor_joined() -> None:
    """A value that was read before the change must not outlive the drop."""
    release = asyncio.Event()

    async def slowly(run: int) -> int:
        await release.wait()
        return run

    subject, cache = Tool(slowly), Cache(60, entry_tags=["all"])
    async with opened(subject, cache) as gate:
        before = asyncio.ensure_future(ask(gate))
        await subject.started(1)
        await cache.drop_tags("acme", ["all"])
        after = asyncio.ensure_future(ask(gate))
        await subject.started(2)
        release.set()
        assert [await before, await after, await ask(gate)] == [1, 2, 2]


async def test_a_cache_that_knows_no_store_says_so() -> None:
    with pytest.raises(HookError, match=r"Cache\(..., store=...\)"):
        await Cache(1).drop_tags("acme", ["x"])


# ---------------------------------------------------------------------- single flight


@on_virtual_time
async def test_ten_concurrent_misses_run_the_tool_once(loop: Any) -> None:
    """Issue 4: single-flight."""

    async def slowly(run: int) -> int:
        await asyncio.sleep(1)
        return run

    subject = Tool(slowly)
    async with opened(subject, Cache(60)) as gate:
        assert await asyncio.gather(*(ask(gate) for _ in range(10))) == [1] * 10
    assert subject.runs == 1


@on_virtual_time
async def test_a_cancelled_leader_hands_over_to_one_waiter(loop: Any) -> None:
    """Issue 4: per-waiter cancellation."""

    async def slowly(run: int) -> int:
        await asyncio.sleep(1)
        return run

    subject = Tool(slowly)
    async with opened(subject, cache := Cache(60)) as gate:
        calls = [asyncio.ensure_future(ask(gate)) for _ in range(10)]
        await asyncio.sleep(0.5)
        for one in (calls[0], calls[3], calls[1]):
            one.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in answers].count(asyncio.CancelledError) == 3
    assert [one for one in answers if one == 2] == [2] * 7
    assert subject.runs == 2
    assert cache.single_flight.in_flight == {}


@on_virtual_time
async def test_a_waiter_waits_no_longer_than_its_own_deadline(loop: Any) -> None:
    """Issue 4: followers never wait longer than their deadline."""

    async def slowly(run: int) -> int:
        await asyncio.sleep(100)
        return run

    subject = Tool(slowly)
    async with opened(subject, Cache(600)) as gate:
        leader = asyncio.ensure_future(ask(gate))
        await asyncio.sleep(1)
        began = loop.time()
        with pytest.raises(TimeoutError):
            await ask(gate, deadline=2)
        assert loop.time() - began == pytest.approx(2, abs=0.01)
        assert await leader == 1


@on_virtual_time
async def test_a_leader_whose_deadline_comes_hands_over(loop: Any) -> None:
    async def slowly(run: int) -> int:
        await asyncio.sleep(10)
        return run

    subject = Tool(slowly)
    async with opened(subject, Cache(600)) as gate:
        leader = asyncio.ensure_future(ask(gate, deadline=5))
        await asyncio.sleep(1)
        assert list(await asyncio.gather(ask(gate), ask(gate))) == [2, 2]
        with pytest.raises(TimeoutError):
            await leader
    assert subject.runs == 2


@on_virtual_time
async def test_a_tool_that_fails_leaves_each_waiter_to_ask_for_itself(loop: Any) -> None:
    """A failure is nobody else's answer."""

    async def slowly(run: int) -> int:
        await asyncio.sleep(1)
        if run == 1:
            raise ToolError("no")
        return run

    subject, began = Tool(slowly), loop.time()
    async with opened(subject, Cache(60)) as gate:
        answers = await asyncio.gather(*(ask(gate) for _ in range(4)), return_exceptions=True)
    assert isinstance(answers[0], ToolFailed)
    assert answers[1:] == [2, 3, 4]
    assert loop.time() - began < 3  # at the same time, not one after the other


@on_virtual_time
async def test_a_nested_call_never_waits_for_its_own_caller(loop: Any) -> None:
    """Else a tool that calls itself with its own arguments would wait for itself."""

    runs: list[str] = []

    async def echo(ctx: Any, **_: Any) -> Any:
        runs.append(ctx.request_id)
        return "inner" if len(runs) == 2 else await ctx.call("echo", {})

    subject = record(echo, ANYTHING, context_parameter="ctx")
    async with opened(subject, Cache(60)) as gate:
        assert await asyncio.wait_for(ask(gate), 10) == "inner"
    assert len(runs) == 2


@swept
def test_no_cancellation_leaves_a_flight_behind(sweep: dict[str, Any]) -> None:
    """Invariant I1: a flight is a lease."""
    left: list[Any] = []

    async def scenario(ledger: LeaseLedger) -> Any:
        async def slowly(run: int) -> int:
            await asyncio.sleep(1)
            return 7

        async with opened(Tool(slowly), cache := Cache(60)) as gate:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(3):
                        group.create_task(ask(gate))
                return await ask(gate)
            finally:
                left.append(dict(cache.single_flight.in_flight))

    assert every_cancel_point(scenario, **sweep).points > 100
    assert left
    assert all(one == {} for one in left)


@on_virtual_time
async def test_whoever_is_cancelled_whenever_the_others_get_the_value(loop: Any) -> None:
    """Issue 4: per-waiter cancellation; invariant I11: a cancelled waiter frees its place."""

    async def slowly(run: int) -> int:
        await asyncio.sleep(1)
        return 7

    for victims in ({0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}):
        for seconds in (0.0, 0.5, 1.0):
            for ticks in range(12):
                async with opened(Tool(slowly), cache := Cache(60)) as gate:
                    calls = [asyncio.ensure_future(ask(gate)) for _ in range(4)]
                    await asyncio.sleep(seconds)
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                    for index in victims:
                        calls[index].cancel()
                    async with asyncio.timeout(30):
                        answers = await asyncio.gather(*calls, return_exceptions=True)
                    assert [answers[index] for index in range(4) if index not in victims] == [7] * (4 - len(victims))
                    assert cache.single_flight.in_flight == {}


def test_a_hit_makes_no_task_and_does_not_wait() -> None:
    """Design 10: with the memory store nothing suspends."""
    subject = Tool(1)
    cache, store = Cache(60), MemoryStore()

    async def scenario() -> None:
        async with opened(subject, cache, store=store) as gate:
            for _ in range(5):
                await ask(gate)

    async def nothing() -> None:
        async with opened(subject, store=store) as gate:
            for _ in range(5):
                await ask(gate)

    assert cost_of(scenario) == cost_of(nothing)


# ---------------------------------------------------------------------- no foreign value


async def sessions_and_calls(cache: Cache) -> tuple[Counter[str], int, int]:
    """1,000 sessions of as many users in 50 tenants, 100 calls each, mixed; how many answers were foreign, hits, calls."""
    users = [User(f"u{number % 20}", tenant=f"t{number // 20}") for number in range(1000)]
    found: Counter[str] = Counter()
    runs = 0

    async def own(ctx: Any, n: int) -> Any:
        nonlocal runs
        runs += 1
        return {"canary": f"{ctx.user.tenant}/{ctx.user.id}", "n": n}

    subject = record(own, ANYTHING, context_parameter="ctx")
    choose = random.Random(4)
    async with opened(subject, cache, store=MemoryStore(cache_size=100_000)) as gate:
        order = [index for index in range(1000) for _ in range(100)]
        choose.shuffle(order)
        for index in order:
            user = users[index]
            answer = await ask(gate, {"n": choose.randrange(20)}, user=user, session_id=f"s{index}")
            found["foreign" if answer["canary"] != f"{user.tenant}/{user.id}" else "own"] += 1
    return found, len(order) - runs, len(order)


async def test_no_session_gets_what_was_made_for_another() -> None:
    """Invariant I8; issue 4: 1,000 sessions x 100 calls with cache on, hit rate >= 50 %: 0 foreign canaries."""
    found, hits, calls = await sessions_and_calls(Cache(600))
    assert calls == 100_000
    assert hits / calls >= 0.5
    assert found["foreign"] == 0


async def test_the_same_search_finds_a_cache_that_forgets_the_tenant() -> None:
    """The control: the tenant dropped from the key."""

    class Forgetful(Cache):
        def key(self, ctx: InvokeContext) -> tuple[str, str] | None:
            known = ctx.user
            try:
                ctx.run.user = User(known.id)
                return super().key(ctx)
            finally:
                ctx.run.user = known

    found, hits, calls = await sessions_and_calls(Forgetful(600))
    assert hits / calls >= 0.5
    assert found["foreign"] > 10_000


async def test_a_slow_lookup_that_missed_looks_again_when_a_flight_ended_meanwhile() -> None:
    """Issue 4: concurrent misses are a single flight, in whatever order a shared store answers their lookups."""

    class Shared:
        """The first lookup reads at once and answers late."""

        def __init__(self) -> None:
            self.kept, self.asked, self.release = MemoryStore().cache, 0, asyncio.Event()

        async def get(self, tenant: str, key: str) -> Any:
            self.asked += 1
            entry = await self.kept.get(tenant, key)
            if self.asked == 1:
                await self.release.wait()
            return entry

        async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
            await self.kept.put(tenant, key, entry)

    for broken in (False, True):
        shared, subject = Shared(), Tool(lambda run: {"run": run})
        cache = Cache(60, store=cast("Any", shared))
        async with opened(subject, cache) as gate:
            slow = asyncio.ensure_future(ask(gate))
            await asyncio.sleep(0)
            assert await ask(gate) == {"run": 1}
            if broken:  # an entry that cannot be read is a miss
                ((place, entry),) = shared.kept._entries.items()
                shared.kept._entries[place] = entry.__class__(b"{broken", *[getattr(entry, n) for n in _REST])
            shared.release.set()
            assert await slow == {"run": 2 if broken else 1}
            assert not cache.single_flight.in_flight


# ---------------------------------------------------------------------- stores that others share


@pytest.mark.parametrize("kind", SHARED)
async def test_services_that_share_a_store_share_its_values(kind: str, tmp_path: Path) -> None:
    """Issue 4: each hook works on one machine and on many."""
    with place(kind, tmp_path) as at_place:
        async with backend_at(kind, at_place) as one, backend_at(kind, at_place) as other:
            subject = Tool(lambda run: {"run": run, "text": "ü"})
            caches = [Cache(60, entry_tags=["all"], store=other.store), Cache(60, entry_tags=["all"])]
            user = User("ann", tenant=one.tenant)
            async with (
                opened(subject, caches[0]) as first,
                opened(subject, caches[1], store=one.store) as second,
            ):
                told = await asyncio.gather(*(ask(first, user=user) for _ in range(10)))
                assert [one["run"] for one in told] == [1] * 10
                assert await ask(second, user=user) == told[0]
                assert (await ask(second, user=User("ann", tenant=other.tenant)))["run"] == 2
                assert await caches[1].drop_tags(one.tenant, ["all"]) == 1
                assert (await ask(first, user=user))["run"] == 3


# ---------------------------------------------------------------------- shadow, options


async def test_in_shadow_it_answers_nothing_and_tells_what_it_would_have() -> None:
    """Issue 4: shadow decides, records, changes nothing."""
    subject, told, store = Tool(lambda run: run), list[str](), MemoryStore()
    watch = at(Stage.WILL_FINALIZE_INVOKE, lambda ctx: told.extend(type(one.error).__name__ for one in ctx.suppressed))
    async with opened(subject, Cache(60, mode="shadow"), watch, store=store) as gate:
        assert [await ask(gate) for _ in range(3)] == [1, 2, 3]
        assert told == ["ControlRespond"] * 2
        assert [entry.value for entry in store.cache._entries.values()] == [b"null"]
        gate.use(Cache(60))
        assert await ask(gate) == 4  # what the shadow noted answers nobody


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ttl": 0}, "above 0"),
    ({"ttl": 1, "stale": -1}, "at least 0"),
    ({"ttl": 1, "vary_by": "roles"}, "takes a collection"),
    ({"ttl": 1, "entry_tags": "x"}, "takes a collection"),
    ({"ttl": 1, "vary_by": len}, r"write vary_by=\[len\]"),
    ({"ttl": 1, "vary_by": ["role"]}, "did you mean 'roles'"),
    ({"ttl": 1, "vary_by": [7]}, "plain functions"),
    ({"ttl": 1, "tags": lambda ctx: ["x"]}, "write entry_tags="),
    ({"ttl": 1, "effects": ["keyed"]}, "force=True"),
    ({"ttl": timedelta(minutes=1)}, "write ttl=60"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_wrong_options_are_refused_with_what_to_do(options: Any, says: str) -> None:
    with pytest.raises(HookError, match=says):
        Cache(**options)


# ---------------------------------------------------------------------- what a session feeds


class Locale:
    """What a provider gives a tool."""


class Inner:
    """What the provider of an execution needs."""


def needs_inner(inner: Annotated[Inner, Provide[Inner]]) -> Locale:
    return Locale()


class Feeding(Hook):
    """A hook that takes a provider."""

    async def will_execute(self, ctx: Any, *, locale: Annotated[Locale, Provide[Locale]] = ...) -> None:  # type: ignore[assignment]  # the gate gives it
        assert isinstance(locale, Locale)


def providers(scope: str) -> dict[Any, Any]:
    """Return the providers by the scope of what feeds the tool; *through* is of an execution and needs a session."""
    if scope == "through":
        return {Locale: Scoped("execution", needs_inner), Inner: Scoped("session", Inner)}
    return {Locale: Scoped(cast("Any", scope), Locale)}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("fed", ["the tool", "a hook", "the context", "nothing"])
@pytest.mark.parametrize("scope", ["request", "session", "through", "execution", "global"])
async def test_values_are_those_of_one_session_where_a_session_feeds_them(scope: str, fed: str, shared: bool) -> None:
    """Contract 54; I9."""
    ran: list[int] = []

    async def plain() -> int:
        ran.append(1)
        return len(ran)

    async def taking(locale: Annotated[Locale, Provide[Locale]]) -> int:
        return await plain()

    async def knowing(ctx: ToolContext) -> int:
        return await plain()

    body: Any = {"the tool": taking, "the context": knowing}.get(fed, plain)
    hooks = [Cache(60, shared=shared), *([Feeding()] if fed == "a hook" else [])]
    own = fed != "nothing" and scope in {"request", "session", "through"}
    bob = User("bob", tenant="acme")
    tools = [tool(name="echo", effect="read")(body)]
    async with Gate(tools, hooks, provide=providers(scope), allow_unguarded=True) as gate:
        for _ in range(2):
            await ask(gate, session_id="s")
        assert len(ran) == 1
        await ask(gate, session_id="t")
        assert len(ran) == (2 if own else 1)
        before = len(ran)
        await ask(gate, user=bob, session_id="u")
        assert len(ran) - before == (1 if own or not shared else 0)
        before = len(ran)
        for _ in range(2):
            await ask(gate, user=ANONYMOUS)
        assert len(ran) - before == (2 if own or not shared else 1)  # without a tenant they are a group of their own
