"""A declared key and the key of a caller are two identities of one effect, in every store and on every way to the tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

import callgate
from callgate import Approve, Effects, Gate, Hook, InvokeContext, Outcome, ToolCall, ToolContext, ToolError, User, tool
from callgate.errors import Conflict
from callgate.hooks import Committed, NoEffect
from callgate.jobs import EmbeddedJobs, JobState
from callgate.providers.stores.effects import Alias, EffectRecord, EffectState
from callgate.providers.stores.memory.effects import MemoryEffects
from callgate.providers.stores.sql import ledger as sql_ledger
from callgate.providers.stores.sql.effects import SqlEffects
from callgate.runtime.effects.idempotency_keys import Identifier
from tests.providers.stores.backends import Backend, place
from tests.providers.stores.conftest import Places, at
from tests.providers.stores.ledger import effect

KINDS = ("memory", "sqlite-file", "postgresql")
WAYS = ("call", "http", "submit", "resume")
LEAD = callgate.Approval(roles={"lead"})
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
NEW = count(1)
Told: TypeAlias = tuple[str, Any, bool]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Places, ExitStack, Path]]:
    with ExitStack() as stack:
        yield {}, stack, tmp_path_factory.mktemp("stores")


@pytest.fixture(params=("memory", "sqlite-file", "postgresql"))
async def durable(request: pytest.FixtureRequest, places: tuple[Places, ExitStack, Path]) -> AsyncGenerator[Backend]:
    async for each in at(request.param, places):
        yield each


class Bank:
    """Tools that note each refund, and their gate; each bank has a tenant of its own."""

    def __init__(self) -> None:
        self.tenant = f"t{next(NEW)}"
        self.ann, self.bob = User("ann", self.tenant), User("bob", self.tenant)
        self.lead = User("lead", self.tenant, {"lead"})
        self.ran: list[int] = []
        self.keys: list[str | None] = []
        self.running, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    def tools(self) -> list[Any]:
        async def refund(order: int, ctx: ToolContext, cents: int = 5) -> str:
            self.ran.append(order)
            self.keys.append(ctx.idempotency_key)
            self.running.set()
            await self.go_on.wait()
            if cents == 0:
                self.ran.pop()
                raise ToolError("Nothing to refund.", no_effect=True)
            if cents < 0:
                raise RuntimeError("the line is dead")
            return f"refund {len(self.ran)}"

        def made(name: str, **options: Any) -> Any:
            options = {"effect": "irreversible", "key": ("order",), "description": "Refund.", **options}
            return tool(name=name, **options)(refund)

        return [
            made("refund"),
            made("asked", requires_approval=LEAD),
            made("mine", key_scope="user"),
            made("ours", key_scope="global", requires_approval=LEAD),
            made("same", key=(), dedupe="arguments", within=60, requires_approval=LEAD),
        ]

    @asynccontextmanager
    async def open(self, kind: str, places: tuple[Places, ExitStack, Path], *hooks: Any) -> AsyncGenerator[Gate]:
        known, stack, folder = places
        if kind != "memory" and kind not in known:
            known[kind] = stack.enter_context(place(kind, folder))
        gate = Gate(
            self.tools(),
            hooks,
            store="memory://" if kind == "memory" else known[kind][0],
            effects=Effects(durable=False, wait=0.0),
            jobs=EmbeddedJobs(0),
            signing_keys=["a key of the tests"],
            allow_unguarded=True,
        )
        async with gate:
            yield gate


def call(order: int, name: str = "refund", **more: Any) -> ToolCall:
    return ToolCall(id="c", name=name, arguments={"order": order, **more})


def told_by(result: Any) -> Told:
    return result.outcome.value, result.output, result.replayed


async def ask(bank: Bank, gate: Gate, way: str, order: int, key: str | None, user: User) -> Told:
    """Refund an order on one of the ways, to the end."""
    if way == "call":
        return told_by(await gate.call(call(order), user=user, idempotency_key=key))
    if way == "submit":
        try:
            job = await gate.submit(call(order), user=user, key=key)
        except Conflict:
            return "conflict", None, False
        while await gate.jobs.run_invocation() is not None:
            pass
        return told_by(await job)
    if way == "resume":
        result = await gate.call(call(order, "asked"), user=user, idempotency_key=key)
        if result.outcome is not Outcome.SUSPENDED:
            return told_by(result)
        return told_by(await gate.resume(result.pending.handle, Approve(), approver=bank.lead))
    app: Any = callgate.asgi(gate, authenticate=lambda _: user)
    headers = {} if key is None else {"Idempotency-Key": key}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bank") as client:
        said = await client.post("/tools/refund", json={"order": order}, headers=headers)
    if said.status_code == 200:
        return "success", said.json(), said.headers.get("idempotent-replayed") == "true"
    return said.json()["code"], None, False


def expected(way: str, first: Told, same_order: bool, key: str | None, mine: bool) -> Told | None:
    """What a repeat of an order under k1 is told; None for a call that runs."""
    if same_order:
        # The job of a key has one result, which every repeat of the submission gets.
        return (first[0], first[1], key != "k1" or way != "submit") if mine else ("conflict", None, False)
    return ("conflict", None, False) if mine and key == "k1" else None


@EVERY_KIND
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_is_a_repeat_if_either_identity_is_known(
    kind: str, way: str, places: tuple[Places, ExitStack, Path]
) -> None:
    """Design 12.2; issues 33 §5 and 34 §1."""
    bank = Bank()
    async with bank.open(kind, places) as gate:
        for number, (same_order, key, mine) in enumerate(product((True, False), ("k1", "k2", None), (True, False))):
            bank.ran.clear()
            order, one, other = number * 10, f"{number}-k1", key and f"{number}-{key}"
            first = await ask(bank, gate, way, order, one, bank.ann)
            assert first == ("success", "refund 1", False)
            again = await ask(bank, gate, way, order + (not same_order), other, bank.ann if mine else bank.bob)
            wanted = expected(way, first, same_order, key, mine)
            ran = [order] if wanted else [order, order + 1]
            assert (again, bank.ran) == (wanted or ("success", "refund 2", False), ran), (same_order, key, mine)


@EVERY_KIND
async def test_an_order_under_three_keys_and_on_every_way_is_one_effect_with_one_key_downstream(
    kind: str, places: tuple[Places, ExitStack, Path]
) -> None:
    """Issue 33 §5: order 77 ran three times. A key that was answered once is an identity, too."""
    bank = Bank()
    async with bank.open(kind, places) as gate:
        for number, way in enumerate(("call", "http", "submit", "call", "http", "submit")):
            assert (await ask(bank, gate, way, 77, f"k{number}", bank.ann))[:2] == ("success", "refund 1")
        assert bank.ran == [77]
        for number in range(6):
            way = ("call", "http", "submit")[number % 3]
            assert (await ask(bank, gate, way, 78, f"k{number}", bank.ann))[0] == "conflict"
        assert (await ask(bank, gate, "call", 78, "new", bank.ann))[0] == "success"
        listed = await gate.store.effects.list(bank.tenant)
        assert [(one.state, one.key) for _, one in reversed(listed)] == [
            (EffectState.COMMITTED, key) for key in bank.keys
        ]
        for way in ("call", "http"):  # and the other way round: without a key first
            assert (await ask(bank, gate, way, 79, None, bank.ann))[0] == "success"
            assert (await ask(bank, gate, way, 79, f"last-{way}", bank.ann))[1] == "refund 3"
        assert bank.ran == [77, 78, 79]


@EVERY_KIND
@pytest.mark.parametrize("cents", [0, -1])
async def test_an_effect_without_an_effect_frees_both_identities_and_an_unknown_one_holds_both(
    kind: str, cents: int, places: tuple[Places, ExitStack, Path]
) -> None:
    """Issue 34 §1: both rows have one outcome."""
    bank = Bank()
    async with bank.open(kind, places) as gate:
        first = await gate.call(call(77, cents=cents), user=bank.ann, idempotency_key="k1")
        assert first.outcome is Outcome.ERROR
        for order, key in ((77, None), (77, "k2"), (78, "k1"), (77, "k1")):
            again = await gate.call(call(order, cents=cents), user=bank.ann, idempotency_key=key)
            wanted = Outcome.ERROR if cents == 0 else Outcome.CONFLICT if order == 78 else Outcome.UNKNOWN
            assert (order, key, again.outcome) == (order, key, wanted)
        assert len(bank.ran) == (0 if cents == 0 else 1)


class Knows(Hook):
    """Finds what the bank did by the key that the tool passed on."""

    def __init__(self, bank: Bank, happened: bool) -> None:
        self.bank, self.happened = bank, happened

    async def reconcile(self, tenant: str, found: EffectRecord) -> Committed | NoEffect | None:
        assert found.idempotency_key or found.key in self.bank.keys
        return Committed("found") if self.happened else NoEffect()


@EVERY_KIND
@pytest.mark.parametrize("happened", [True, False])
async def test_a_reconciled_effect_answers_or_frees_both_identities(
    kind: str, happened: bool, places: tuple[Places, ExitStack, Path]
) -> None:
    """Issue 34 §1: the operator or the hook settles one effect, and its caller's key follows."""
    bank = Bank()
    async with bank.open(kind, places) as gate:
        await gate.call(call(77, cents=-1), user=bank.ann, idempotency_key="k1")
        unknown = await gate.store.effects.list(bank.tenant, states=[EffectState.UNKNOWN])
        assert len(unknown) == 1
    async with bank.open(kind, places, Knows(bank, happened)) as gate:
        if kind == "memory":
            await gate.call(call(77, cents=-1), user=bank.ann, idempotency_key="k1")
        await gate.maintain()
        other = await gate.call(call(78), user=bank.ann, idempotency_key="k1")
        assert other.outcome is (Outcome.CONFLICT if happened else Outcome.SUCCESS)
        if happened:
            for key in ("k1", "k2", None):
                again = await gate.call(call(77, cents=-1), user=bank.ann, idempotency_key=key)
                assert (again.output, again.replayed) == ("found", True)


@EVERY_KIND
async def test_a_running_effect_holds_both_identities(kind: str, places: tuple[Places, ExitStack, Path]) -> None:
    """Issue 33 §5: ``in_flight`` for a repeat by either, ``conflict`` for other arguments, also in another gate."""
    bank = Bank()
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(bank.open(kind, places))
        other = gate if kind == "memory" else await stack.enter_async_context(bank.open(kind, places))
        bank.go_on.clear()
        first = asyncio.create_task(gate.call(call(77), user=bank.ann, idempotency_key="k1"))
        await bank.running.wait()
        for one in (gate, other):
            for order, key, user, wanted in (
                (77, None, bank.ann, Outcome.IN_FLIGHT),
                (77, "k1", bank.ann, Outcome.IN_FLIGHT),
                (77, "k2", bank.ann, Outcome.IN_FLIGHT),
                (77, "k1", bank.bob, Outcome.IN_FLIGHT),
                (78, "k1", bank.ann, Outcome.CONFLICT),
            ):
                assert (await one.call(call(order), user=user, idempotency_key=key)).outcome is wanted
        bank.go_on.set()
        assert (await first).ok
        assert (await other.call(call(77), user=bank.ann, idempotency_key="k2")).ok
    assert bank.ran == [77]


@EVERY_KIND
async def test_of_many_calls_at_once_by_two_gates_one_runs_for_each_key_and_each_order(
    kind: str, places: tuple[Places, ExitStack, Path]
) -> None:
    """Issue 34 §1: both rows are claimed in one transaction; batches of several callers have them, too."""
    bank = Bank()
    async with AsyncExitStack() as stack:
        gates = [await stack.enter_async_context(bank.open(kind, places)) for _ in range(1 if kind == "memory" else 2)]
        pairs = [(order, f"k{key}") for order in range(4) for key in range(4)] * 2
        made = [
            gates[n % len(gates)].call(call(order), user=bank.ann, idempotency_key=key)
            for n, (order, key) in enumerate(pairs)
        ]
        results = await asyncio.gather(*made)
    assert {one.outcome for one in results} <= {Outcome.SUCCESS, Outcome.CONFLICT, Outcome.IN_FLIGHT}
    assert len(bank.ran) == len(set(bank.ran))
    fresh = [pair for pair, one in zip(pairs, results, strict=True) if one.ok and not one.replayed]
    assert sorted(order for order, _ in fresh) == sorted(bank.ran)
    assert len({key for _, key in fresh}) == len(fresh), "one key ran two orders"


# ---------------------------------------------------------------------- approvals


@EVERY_KIND
@pytest.mark.parametrize("name", ["asked", "ours", "same"])
async def test_approvers_are_asked_once_for_a_call_whatever_identity_its_repeat_has(
    kind: str, name: str, places: tuple[Places, ExitStack, Path]
) -> None:
    """Issue 34 §1: a repeat of a suspended call has the same handle, and the effect runs once."""
    bank = Bank()
    order = next(NEW)
    keys = (None, None, None) if name == "same" else ("k1", None, "k2", "k1")
    async with bank.open(kind, places) as gate:
        handles = set()
        for key in keys:
            result = await gate.call(call(order, name), user=bank.ann, idempotency_key=key)
            assert result.outcome is Outcome.SUSPENDED
            handles.add(result.pending.handle)
        assert (len(handles), len(await gate.waits.pending(bank.lead))) == (1, 1)
        if name != "same":
            for key in ("k1", "k2"):
                other = await gate.call(call(order + 1000, name), user=bank.ann, idempotency_key=key)
                assert other.outcome is Outcome.CONFLICT
            theirs = await gate.call(call(order, name), user=bank.bob)
            assert theirs.outcome is Outcome.IN_FLIGHT
        assert (await gate.resume(handles.pop(), Approve(), approver=bank.lead)).output == "refund 1"
        for key in keys:
            again = await gate.call(call(order, name), user=bank.ann, idempotency_key=key)
            assert (again.output, again.replayed) == ("refund 1", True)
    assert bank.ran == [order]


@EVERY_KIND
async def test_a_job_that_waits_and_a_call_are_one_suspension_and_another_job_waits_for_it(
    kind: str, places: tuple[Places, ExitStack, Path]
) -> None:
    """Issue 34 §1: ``submit(key=...)`` then ``call``."""
    bank = Bank()
    async with bank.open(kind, places) as gate:
        job = await gate.submit(call(77, "asked"), user=bank.ann, key="k1")
        assert await gate.jobs.run_invocation() is JobState.INPUT_REQUIRED
        result = await gate.call(call(77, "asked"), user=bank.ann)
        assert result.outcome is Outcome.SUSPENDED
        second = await gate.submit(call(77, "asked"), user=bank.ann, key="k2")
        assert await gate.jobs.run_invocation() is JobState.QUEUED
        assert len(await gate.waits.pending(bank.lead)) == 1
        waits: Any = {"approver": bank.lead, "deadline": 30.0}  # without a deadline it may answer ``in_flight``
        deciding = asyncio.create_task(gate.resume(result.pending.handle, Approve(), **waits))
        while not deciding.done():
            await gate.jobs.run_invocation()
            await asyncio.sleep(0)
        assert (await deciding).output == "refund 1"
        assert (await job).output == "refund 1"
        assert (await gate.call(call(77, "asked"), user=bank.ann, idempotency_key="k3")).replayed
        assert (await second.status()).state in {JobState.QUEUED, JobState.DONE}
    assert bank.ran == [77]


# ---------------------------------------------------------------------- the store


@pytest.mark.parametrize("state", [EffectState.COMMITTED, EffectState.NO_EFFECT])
async def test_a_store_claims_settles_prunes_and_rolls_back_both_rows_together(
    state: EffectState, durable: Any
) -> None:
    """Issue 34 §1: retention removes both; a transaction that fails leaves neither."""
    store, tenant, now = durable.store, durable.tenant, durable.now()
    effects, alias = store.effects, Alias("caller", "k1")
    one = effect(now, "declared", owner=tenant)
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as within:
            assert (await within.effects.claim(tenant, one, alias=alias))[0]
            raise ZeroDivisionError
    assert [await effects.get(tenant, key) for key in ("declared", "caller")] == [None, None]
    assert await effects.claim(tenant, one, alias=alias) == (True, one)
    assert await effects.get(tenant, "caller") == one
    other = effect(now, "another", input_hash="other")
    assert await effects.claim(tenant, other, alias=alias) == (False, one)
    assert await effects.get(tenant, "another") is None
    assert [found for _, found in await effects.list(tenant)] == [one]
    assert await effects.settle(tenant, "declared", 1, state, at=now, receipt=b"1", aliases=True)
    assert {(await effects.get(tenant, key)).state for key in ("declared", "caller")} == {state}
    if state is EffectState.COMMITTED:
        second = Alias("second", "k2")
        assert not (await effects.claim(tenant, one, alias=second))[0]
        assert (await effects.get(tenant, "second")).key == "declared"
    else:
        mine, _ = await effects.claim(tenant, other, alias=alias)
        assert mine
        assert await effects.settle(tenant, "another", 1, EffectState.COMMITTED, at=now, aliases=True)
        assert (await effects.get(tenant, "caller")).key == "another"
    durable.now.move(100.0)
    while await effects.prune(now + 50.0):
        pass
    assert [await effects.get(tenant, key) for key in ("declared", "another", "caller", "second")] == [None] * 4


async def test_leases_of_both_rows_end_together(durable: Any) -> None:
    """Issue 34 §1: a process that dies leaves one unknown effect with two identities."""
    effects, tenant, alias = durable.store.effects, durable.tenant, Alias("caller", "k1")
    await effects.claim(tenant, effect(durable.now(), "declared", owner=tenant), alias=alias)
    assert await effects.renew(tenant, durable.now() + 20.0)
    durable.now.move(30.0)
    late = effect(durable.now(), "other", input_hash="other")
    mine, found = await effects.claim(tenant, late, alias=alias)
    assert (mine, found.key, found.state) == (False, "declared", EffectState.UNKNOWN)
    mine, found = await effects.claim(tenant, replace(late, key="declared", input_hash="h"), retry=True)
    assert (mine, found.token) == (True, 3)


# ---------------------------------------------------------------------- tenants


@pytest.mark.parametrize("tenant", [0, b"", ["t"], False])
def test_a_tenant_is_a_text(tenant: Any) -> None:
    with pytest.raises(TypeError, match="tenant"):
        User("ann", tenant)


async def test_no_tenant_and_an_empty_one_are_one(places: tuple[Places, ExitStack, Path]) -> None:
    """Issue 33 §5: in the ledger, and wherever a user is compared."""
    assert (User("ann", ""), replace(User("ann", "t"), tenant="").tenant) == (User("ann"), None)
    bank = Bank()
    async with bank.open("memory", places) as gate:
        for user in (User("ann"), User("ann", "")):
            assert (await gate.call(call(1), user=user)).output == "refund 1"


# ---------------------------------------------------------------------- controls


def an_alias_is_not_claimed(patch: pytest.MonkeyPatch) -> None:
    for part in (MemoryEffects, SqlEffects):
        real = part.claim

        async def claim(self: Any, *given: Any, real: Any = real, alias: Any = None, **more: Any) -> Any:
            return await real(self, *given, **more)

        patch.setattr(part, "claim", claim)
    change = sql_ledger._change
    patch.setattr(sql_ledger, "_change", lambda changes: change([replace(one, alias=None) for one in changes]))


def the_callers_key_replaces_the_declared_one(patch: pytest.MonkeyPatch) -> None:
    declared = Identifier.key_of

    def key_of(self: Identifier, ctx: InvokeContext) -> str | None:
        given = ctx.run.idempotency_key
        return declared(self, ctx) if given is None else f"{ctx.user.id} {given}"

    patch.setattr(Identifier, "key_of", key_of)


@pytest.mark.parametrize("sabotage", [an_alias_is_not_claimed, the_callers_key_replaces_the_declared_one])
@pytest.mark.parametrize("kind", ["memory", "sqlite-file"])
async def test_a_ledger_with_one_identity_is_found_out(
    kind: str, sabotage: Any, places: tuple[Places, ExitStack, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the matrix."""
    sabotage(monkeypatch)
    with pytest.raises(AssertionError):
        await test_a_call_is_a_repeat_if_either_identity_is_known(kind, "call", places)
