"""Replay: recorded calls against other hooks; which verdicts flip, which cannot be told, and nothing runs."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, Outcome, User, tool
from callgate.hooks.stock.records.audit import Audit
from callgate.hooks.stock.sampling import sampled
from callgate.providers.clock import FakeClock
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.replay.replay import replay
from callgate.runtime.replay.report import ReplayReport
from tests.hooks.stock.records.auditing import USER, Ends, a_gate, rows_of
from tests.world import RAN, asked, crash, fail, look, pay, wait

Play = Callable[..., Awaitable[ReplayReport]]
MANAGER = User("max", tenant="acme", roles={"manager"})


class Managers(Hook):
    def will_authorize(self, ctx: InvokeContext) -> None:
        if "manager" not in ctx.user.roles:
            ctx.abort("no manager", code="role")


class Cap(Hook):
    def __init__(self, most: int = 100, key: str = "cents") -> None:
        self.most, self.key = most, key

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        if ctx.input.get(self.key, 0) > self.most:
            ctx.abort("too much", code="cap")


class Reads(Hook):
    """Reads the arguments in one of many ways."""

    def __init__(self, read: Callable[[Any], Any], stage: str = "will_authorize_input") -> None:
        self.read = read
        self.stage = stage

    def will_authorize(self, ctx: InvokeContext) -> None:
        if self.stage == "will_authorize":
            self.read(ctx)

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        if self.stage == "will_authorize_input":
            self.read(ctx)


async def record(*hooks: Any, store: MemoryStore | None = None, calls: Any = ()) -> MemoryStore:
    """A record of calls through a gate with these hooks: ``(tool, arguments, user)``."""
    store = store or MemoryStore()
    async with Gate(
        [look, pay, fail, crash, wait],
        [*hooks, Audit()],
        allow_unguarded=True,
        store=store,
        effects=Effects(durable=False),
    ) as gate:
        for name, arguments, user in calls:
            await gate.call(asked(name, **arguments), user=user)
    RAN.clear()
    return store


async def played(store: MemoryStore, *hooks: Any, rows: Any = (None, None)) -> ReplayReport:
    async with a_gate(store=store) as gate:
        before = len(await rows_of(store.audit))
        report = await replay(gate, rows, hooks)
        assert len(await rows_of(store.audit)) == before  # nothing is written
    assert RAN == []  # and nothing runs
    return report


async def test_every_verdict_that_flips_is_reported_with_who_decided_then_and_now() -> None:
    """Issue: gate.replay; design 10.15."""
    calls = [("pay", {"cents": n}, MANAGER) for n in (50, 500)] + [("look", {"n": 1}, USER)]
    store = await record(calls=calls)
    report = await played(store, Cap(), Managers())
    assert (report.rows, report.same, len(report.flips), report.undecidable) == (3, 1, 2, [])
    told = {(one.row.body["tool"], str(one.was), str(one.now)) for one in report.flips}
    assert told == {
        ("pay", "allowed", "denied (cap) by Cap at will_authorize_input"),
        ("look", "allowed", "denied (role) by Managers at will_authorize"),
    }


async def test_the_same_hooks_flip_nothing() -> None:
    """A replay of what was: denied, invalid, put off, suspended, answered, broken and failed calls."""
    calls: list[Any] = [("look", {"n": n}, USER) for n in (1, 101, 102, 103, 104)]
    calls += [("look", {"n": "x"}, USER), ("look", {"n": 1}, User("nobody")), ("pay", {"cents": 1}, USER)]
    calls += [("fail", {"n": 1}, USER), ("crash", {"n": 1}, USER), ("no_such", {}, USER)]
    store = await record(Ends(), calls=calls)
    report = await played(store, Ends())
    assert (report.rows, report.same) == (len(calls), len(calls)), str(report)


async def test_a_refusal_that_falls_away_flips_unless_another_may_take_its_place() -> None:
    """Arguments of a call that was refused before they were read are not recorded."""
    store = await record(Managers(), calls=[("pay", {"cents": 5}, USER)])
    (flip,) = (await played(store)).flips
    assert (flip.was.what, str(flip.now)) == ("denied", "allowed, if its arguments are valid")
    (unknown,) = (await played(store, Cap())).undecidable
    assert unknown.why is not None
    assert "Cap at will_authorize_input may refuse" in unknown.why
    store = await record(Cap(), calls=[("pay", {"cents": 500}, USER)])
    (flip,) = (await played(store, Cap(1000))).flips
    assert (flip.was.code, str(flip.now)) == ("cap", "allowed")


READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda ctx: ctx.input["password"],
    "get": lambda ctx: ctx.input.get("password"),
    "items": lambda ctx: list(ctx.input.items()),
    "values": lambda ctx: list(ctx.input.values()),
    "copy": lambda ctx: dict(ctx.input),
    "spread": lambda ctx: {**ctx.input},
    "equal": lambda ctx: ctx.input == {},
    "pop": lambda ctx: ctx.input.pop("password"),
    "repr": lambda ctx: str(ctx.input),
    "encoder": lambda ctx: __import__("orjson").dumps(ctx.input),
    "json": lambda ctx: __import__("json").dumps(ctx.input),
    "raw": lambda ctx: ctx.raw_input,
    "call": lambda ctx: ctx.tool_call.arguments,
    "match": lambda ctx: _matched(ctx.input),
}


def _matched(arguments: Any) -> bool:
    match arguments:
        case {"password": str(text)}:
            return bool(text)
        case _:
            return False


def _swallowing(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def swallows(ctx: Any) -> None:
        try:
            read(ctx)
        except Exception:  # noqa: BLE001  (a policy that takes any failure for a yes)
            return

    return swallows


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("way", READS)
async def test_a_policy_that_reads_what_is_masked_makes_the_verdict_undecidable(way: str, swallows: bool) -> None:
    """Design 10.15."""
    store = await record(calls=[("pay", {"cents": 5, "password": "canary-password"}, USER)])
    read = _swallowing(READS[way]) if swallows and way != "encoder" else READS[way]
    report = await played(store, Reads(read))
    assert (report.flips, len(report.undecidable)) == ([], 1), str(report)
    assert "canary" not in str(report)


@pytest.mark.parametrize(
    "read",
    [
        lambda ctx: ctx.input["cents"],
        lambda ctx: ctx.input.get("cents"),
        lambda ctx: "password" in ctx.input,
        lambda ctx: list(ctx.input),
        lambda ctx: ctx.masked_input["password"],
        lambda ctx: (ctx.input_hash, ctx.tool_call.id, ctx.user.roles, ctx.tenant),
    ],
)
async def test_a_policy_that_reads_what_is_recorded_is_judged(read: Callable[[Any], Any]) -> None:
    """Design 10.15: only what is masked is out of reach."""
    store = await record(calls=[("pay", {"cents": 5, "password": "canary-password"}, USER)])
    report = await played(store, Reads(read))
    assert (report.same, report.undecidable, report.flips) == (1, [], [])


async def test_arguments_that_are_read_before_they_are_parsed_cannot_be_judged() -> None:
    store = await record(calls=[("pay", {"cents": 5}, USER)])
    report = await played(store, Reads(lambda ctx: ctx.input, "will_authorize"))
    assert [one.why for one in report.undecidable] == ["Reads at will_authorize reads arguments before they are parsed"]


@pytest.mark.parametrize(("name", "what"), [("task_id", "the task"), ("context_id", "the task's context")])
async def test_a_policy_that_reads_the_ids_of_a_task_cannot_be_judged(name: str, what: str) -> None:
    """Design 10.15, contract 42: audit rows do not have them."""
    store = await record(calls=[("pay", {"cents": 5}, USER)])
    report = await played(store, Reads(lambda ctx: getattr(ctx, name), "will_authorize"))
    assert [one.why for one in report.undecidable] == [f"Reads at will_authorize reads the id of {what}"]


async def test_masks_below_objects_hide_only_what_they_mask() -> None:
    """Design 10.15."""

    @tool(effect="read")
    async def order(card: dict[str, Any]) -> int:
        """Order."""
        return 1

    store = MemoryStore()
    async with Gate([order], [Audit()], store=store, effects=Effects(durable=False)) as gate:
        await gate.call(asked("order", card={"password": "canary", "kind": "gold"}), user=USER)
        for key, expected in (("kind", 1), ("password", 0)):
            report = await replay(gate, (None, None), [Reads(_below("card", key))])
            assert report.same == expected
            assert len(report.undecidable) == 1 - expected


async def test_a_hook_in_shadow_mode_decides_nothing_here_either() -> None:
    store = await record(calls=[("pay", {"cents": 500, "password": "canary-password"}, USER)])
    shadow: Any = Cap()
    shadow.mode = "shadow"
    reading: Any = Reads(READS["item"])
    reading.mode = "shadow"
    report = await played(store, shadow, reading)
    assert (report.same, report.rows) == (1, 1), str(report)


async def test_a_sampled_hook_draws_as_it_would_have() -> None:
    store = await record(calls=[("look", {"n": 1}, User(f"u{n}")) for n in range(100)])
    first = await played(store, sampled(Managers(), 30))
    assert 10 < len(first.flips) < 50
    again = await played(store, sampled(Managers(), 30))
    assert [one.row.number for one in first.flips] == [one.row.number for one in again.flips]


class Three(Hook):
    """Three calls an hour, counted in the store."""

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        from callgate.providers.stores.base import Limit

        if not (await ctx.run.plan.host.store.quotas.take("", "all", Limit(3, 3600.0))).ok:
            ctx.retry_after(1)

    async def did_release_quota(self, ctx: InvokeContext) -> None: ...


async def test_hooks_see_the_recorded_time_and_an_empty_store_of_their_own() -> None:
    """Quotas count in the windows in which the calls came, and the gate's own counts are left alone."""
    store, clock = MemoryStore(), FakeClock()
    async with a_gate(Audit(), store=store, clock=clock) as gate:
        for _ in range(5):
            await gate.call(asked("look", n=1), user=USER)
        clock.advance(8000)
        await gate.call(asked("look", n=1), user=USER)
        report = await replay(gate, (None, None), [Three()])
    assert [one.now.what for one in report.flips if one.now] == [Outcome.RETRY_LATER] * 2
    assert store.quotas._windows == {}


async def test_wrappers_and_will_execute_hooks_are_asked_and_the_tool_is_not_run() -> None:
    """I7: no body, whatever the wrappers do."""
    asked_for: list[str] = []

    class Wraps(Hook):
        repeats = True

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            asked_for.append("around")
            return await next()

        def will_execute(self, ctx: InvokeContext) -> None:
            asked_for.append("will_execute")
            if ctx.user.id == "u":
                ctx.abort("late", code="late")

    store = await record(calls=[("pay", {"cents": 1}, MANAGER), ("pay", {"cents": 1}, USER)])
    report = await played(store, Wraps())
    assert asked_for == ["around", "will_execute"] * 2
    assert [str(one.now) for one in report.flips] == ["denied (late) by Wraps at will_execute"]


async def test_observers_and_secrets_are_left_out() -> None:
    """Nothing is written, told or fetched by a replay."""
    told: list[str] = []

    class Watches(Hook):
        def will_inject_secrets(self, ctx: InvokeContext) -> None:
            told.append("secrets")

        def on_error(self, ctx: InvokeContext) -> None:
            told.append("error")

        def will_audit(self, ctx: InvokeContext) -> None:
            told.append("audit")

        def on_metrics(self, ctx: InvokeContext) -> None:
            told.append("metrics")

    store = await record(calls=[("pay", {"cents": 1}, USER), ("look", {"n": 1}, USER)])
    await played(store, Watches(), Audit(), Managers())
    assert told == []


def _below(outer: str, key: str) -> Callable[[Any], Any]:
    return lambda ctx: ctx.input[outer][key]


class Rules:
    limit = 10


async def test_hooks_have_their_dependencies() -> None:
    class Asks(Hook):
        def will_authorize_input(self, ctx: InvokeContext) -> None:
            if ctx.input["n"] > ctx.get(Rules).limit:
                ctx.abort("over", code="over")

    store = MemoryStore()
    async with Gate([look], [Audit()], store=store, provide={Rules: Rules}, effects=Effects(durable=False)) as gate:
        await gate.call(asked("look", n=11), user=USER, session_id="s")
        report = await replay(gate, (None, None), [Asks()])
        assert [one.now.code for one in report.flips if one.now] == ["over"]
        assert len(gate.providers.sessions) <= 1


async def test_what_was_cancelled_early_or_names_no_tool_of_today_cannot_be_told() -> None:
    began = asyncio.Event()

    class Hangs(Hook):
        async def will_authorize(self, ctx: InvokeContext) -> None:
            began.set()
            await asyncio.sleep(1e6)

    store = MemoryStore()
    async with Gate([look], [Hangs(), Audit()], store=store, effects=Effects(durable=False)) as gate:
        task = asyncio.create_task(gate.call(asked("look", n=1), user=USER))
        await began.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with Gate([look], [Audit()], store=store, effects=Effects(durable=False)) as gate:
        await gate.call(asked("look", n=1), user=USER)
    async with Gate([pay], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        report = await replay(gate, await rows_of(store.audit), [])
    assert [one.why for one in report.undecidable] == [
        "it was cancelled before any verdict",
        "there is no such tool any more",
    ]


async def test_a_range_of_time_or_any_rows_can_be_given() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with a_gate(Audit(), store=store, clock=clock) as gate:
        for _ in range(4):
            await gate.call(asked("look", n=1), user=USER)
            clock.advance(10)
        since = datetime.fromtimestamp(1_000_010.0, UTC)
        assert (await replay(gate, (since, 1_000_030.0), [])).rows == 2
        assert (await replay(gate, (None, None), [])).rows == 4
        rows: list[AuditRow] = await rows_of(store.audit)
        assert (await replay(gate, rows[:1], [])).rows == 1
        assert (await replay(gate, store.audit.read("acme"), [])).rows == 4


async def test_a_report_is_readable_as_text_and_as_a_table() -> None:
    from rich.console import Console

    store = await record(calls=[("pay", {"cents": 500}, USER), ("pay", {"cents": 5}, USER)])
    report = await played(store, Cap())
    assert str(report).splitlines()[0] == "replayed 2 calls: 1 verdicts flip, 1 stay, 0 undecidable"
    out = io.StringIO()
    Console(file=out, width=200).print(report)
    assert "denied (cap) by Cap at will_authorize_input" in out.getvalue()
