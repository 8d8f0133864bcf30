"""How often a call goes to the disk: one transaction before its effect, one after it, and no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import event

from callgate import Gate, Hook, InvokeContext, ToolCall, ToolContext, User, tool
from callgate.hooks import Audit, verify_audit
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import place

ANN, BOB = User("ann", tenant="t"), User("bob", tenant="t")
KINDS = ("sqlite-file", "postgresql")
KEYS = ["a signing key for tests"]

WROTE = {
    "INSERT INTO callgate_effects": "claim",
    "UPDATE callgate_effects": "settle",
    "INSERT INTO callgate_audit": "audit",
    "INSERT INTO callgate_waits": "wait",
    "UPDATE callgate_waits": "use",
    "INSERT INTO callgate_versions": "count",
}


class Statements:
    """What was sent to a database and may write: each transaction as one text, and what stood alone."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._open: dict[int, list[str]] = {}

    @property
    def all(self) -> list[str]:
        """All of it, transactions in the order of their ends."""
        return [*self._seen, *(f"rolled back({' '.join(held)})" for held in self._open.values())]

    def note(self, connection: Any, _: Any, statement: str, *__: Any) -> None:
        """One statement that is about to be sent. The driver rolls back without one."""
        said, on = statement.strip(), id(connection.connection.dbapi_connection)
        if said.startswith("BEGIN"):
            self._rolled_back(on)
            self._open[on] = []
        elif said == "COMMIT":
            self._seen.append(f"committed({' '.join(self._open.pop(on))})")
        elif not said.startswith("SELECT"):
            word = next((word for start, word in WROTE.items() if said.startswith(start)), said)
            if on in self._open:
                self._open[on].append(word)
            else:
                self._seen.append(f"alone({word})")

    def batches(self, batches: Any) -> None:
        """Note the transactions of group commit, whose statements are sent without an engine."""
        write, run_alone = batches.write, batches.run_alone

        def word(statement: Any) -> str:
            return next(word for start, word in WROTE.items() if statement.lite.strip().startswith(start))

        def noted(script: Any, held: list[str]) -> Generator[Any, Any, Any]:
            steps = next(script)
            while True:
                held.extend(word(one) for one, values in steps if values and not one.lite.startswith("SELECT"))
                try:
                    steps = script.send((yield steps))
                except StopIteration as end:
                    held.extend(["audit"] * bool(end.value[1]))
                    return end.value

        async def writing(script: Any, chains: Any, wait: int) -> Any:
            held = list[str]()
            results = await write(lambda: noted(script(), held), chains, wait)
            self._seen.append(f"committed({' '.join(held)})")
            return results

        async def running_alone(statement: Any, values: Any, wait: int) -> Any:
            if not statement.lite.startswith("SELECT"):
                self._seen.append(f"alone({word(statement)})")
            return await run_alone(statement, values, wait)

        batches.write, batches.run_alone = writing, running_alone

    def _rolled_back(self, on: int) -> None:
        if on in self._open:
            self._seen.append(f"rolled back({' '.join(self._open.pop(on))})")


@contextmanager
def statements_of(store: SqlStore) -> Generator[Statements]:
    """What is sent to a store's database within."""
    seen, engine = Statements(), store._database.engines.calls.sync_engine
    event.listen(engine, "before_cursor_execute", seen.note)
    assert store.ledger is not None
    batches: Any = store.ledger._batches
    seen.batches(batches)
    try:
        yield seen
    finally:
        del batches.write, batches.run_alone
        event.remove(engine, "before_cursor_execute", seen.note)


class Refuses(Hook):
    """A policy that lets nobody pay too much."""

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        if ctx.input["cents"] > 100:
            ctx.abort("too much")


@tool(effect="irreversible")
async def pay(cents: int, ctx: ToolContext) -> int:
    """Pay."""
    if cents < 0:
        ctx.abort("nothing was done")
    if not cents:
        raise ValueError("nobody knows")
    return cents


@tool(effect="irreversible", requires_approval=True)
async def refund(cents: int) -> int:
    """Give money back."""
    return cents


@tool(effect="read")
async def look(cents: int) -> int:
    """Look."""
    return cents


async def call(gate: Gate, name: str, cents: Any) -> Any:
    return await gate.call(ToolCall(id="c1", name=name, arguments={"cents": cents}), user=ANN, idempotency_key="k")


async def decide(gate: Gate, decision: Any) -> Any:
    waiting = (await gate.waits.pending(BOB))[0]
    return await gate.resume(waiting.handle, decision, approver=BOB)


Act: TypeAlias = Callable[[Gate], Awaitable[Any]]


async def nothing(_gate: Gate) -> None:
    pass


def pay_of(cents: Any, name: str = "pay") -> Act:
    return lambda gate: call(gate, name, cents)


@dataclass(frozen=True)
class Case:
    """A way through the ledger; what a gate writes on it without an audit record, and with one."""

    name: str
    before: Act
    act: Act
    outcome: str
    plain: tuple[str, ...]
    audited: tuple[str, ...]


PAY, REFUND = pay_of(7), pay_of(7, "refund")
YES: Act = lambda gate: decide(gate, "approve")
NO: Act = lambda gate: decide(gate, "deny")
PLAIN = ("alone(claim)", "alone(settle)")
AUDITED = ("committed(claim audit)", "committed(settle audit)")
ROW = ("committed(audit)",)


async def approved(gate: Gate) -> None:
    await REFUND(gate)
    await YES(gate)


async def asked_twice(gate: Gate) -> None:
    """Without a key of the caller, the call of a request waits once, however often it is made."""
    for _ in range(2):
        await gate.call(ToolCall(id="c1", name="refund", arguments={"cents": 5}), user=ANN, request_id="r")
    assert len(await gate.waits.pending(BOB)) == 1


CASES = (
    Case("an effect", nothing, PAY, "success", PLAIN, AUDITED),
    Case("one of which nobody knows", nothing, pay_of(0), "error", PLAIN, AUDITED),
    Case("one that did nothing", nothing, pay_of(-1), "denied", PLAIN, AUDITED),
    Case("a replay", PAY, PAY, "success", ("alone(claim)",), ("committed(claim)", *ROW)),
    Case("a conflict", PAY, pay_of(8), "conflict", ("alone(claim)",), ("committed(claim)", *ROW)),
    Case(
        "a repeat of what nobody knows",
        pay_of(0),
        pay_of(0),
        "unknown",
        ("alone(claim)",),
        ("committed(claim)", *ROW),
    ),
    Case("a refusal", nothing, pay_of(101), "denied", (), ROW),
    Case("a call that is invalid", nothing, pay_of("much"), "invalid", (), ROW),
    Case("a call that reads", nothing, pay_of(7, "look"), "success", (), ROW),
    Case("a call that waits", nothing, REFUND, "suspended", ("committed(wait)",), ("committed(wait)", *ROW)),
    Case(
        "an approved effect",
        REFUND,
        YES,
        "success",
        ("committed(use claim)", "alone(settle)"),
        ("committed(use claim audit)", AUDITED[1]),
    ),
    Case(
        "an approved effect that was asked for twice",
        asked_twice,
        YES,
        "success",
        ("committed(use claim)", "alone(settle)"),
        ("committed(use claim audit)", AUDITED[1]),
    ),
    Case("a repeat of what was approved", approved, REFUND, "success", (), ROW),
    Case("a call that is declined", REFUND, NO, "denied", ("committed(use count)",), ("committed(use count)", *ROW)),
)


@pytest.mark.parametrize("audited", [False, True], ids=["without audit", "with audit"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("kind", KINDS)
async def test_there_is_one_transaction_before_an_effect_and_one_after_it(
    kind: str, case: Case, audited: bool, tmp_path: Path
) -> None:
    """Contract I3, I20. And no other statement that writes, on every way through the ledger."""
    with place(kind, tmp_path) as (address, _):
        hooks = [Refuses(), Audit()] if audited else [Refuses()]
        async with Gate([pay, refund, look], hooks, store=address, signing_keys=KEYS) as gate:
            assert isinstance(gate.store, SqlStore)
            await case.before(gate)
            with statements_of(gate.store) as seen:
                result = await case.act(gate)
        assert (result.outcome, seen.all) == (case.outcome, list(case.audited if audited else case.plain))


def records(how: str) -> tuple[list[Any], dict[str, list[Any]]]:
    """Audit hooks of a gate, and those that are listed by stage."""
    one = Audit()
    match how:
        case "crossed":  # they are registered in one order, and write their rows in the other
            return [Audit(priority=-2000), Audit(priority=-1000)], {}
        case "two":
            return [one, Audit()], {}
        case "one, twice":
            return [one, one], {}
        case _:
            return [], {stage: [one] for stage in ("will_execute", "will_audit", "did_audit")}


@pytest.mark.parametrize(("how", "rows"), [("crossed", 2), ("two", 2), ("one, twice", 1), ("by stage", 1)])
async def test_audit_records_that_join_the_ledger_never_wait_for_each_other(
    how: str, rows: int, tmp_path: Path
) -> None:
    """Contract I3. Forty calls at once; where one waits for another in a ring, none of them ends."""
    hooks, by_stage = records(how)
    with place("sqlite-file", tmp_path) as (address, _):
        async with Gate([pay], [Refuses(), *hooks, by_stage], store=address) as gate:
            calls = (gate.call(ToolCall(id=f"c{n}", name="pay", arguments={"cents": 7}), user=ANN) for n in range(40))
            assert {result.outcome for result in await asyncio.gather(*calls)} == {"success"}
            kinds = Counter([row.body["kind"] async for row in gate.store.audit.read("t")])
            assert kinds == {"intent": 40 * rows, "outcome": 40 * rows}
            assert (await verify_audit(gate.store.audit)).ok


@pytest.mark.parametrize("kind", KINDS)
async def test_an_audit_record_that_keeps_to_itself_is_found_out(kind: str, tmp_path: Path) -> None:
    """Contract I3: the control. Rows of a hook that does not join the ledger are written beside its transactions."""

    class Aside(Audit):
        def joins_ledger(self, store: Any) -> bool:
            return False

    with place(kind, tmp_path) as (address, _):
        async with Gate([pay], [Refuses(), Aside()], store=address) as gate:
            assert isinstance(gate.store, SqlStore)
            with statements_of(gate.store) as seen:
                await PAY(gate)
        assert sorted(seen.all) == sorted([*PLAIN, *ROW, *ROW])
