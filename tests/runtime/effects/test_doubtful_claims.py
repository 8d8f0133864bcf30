"""Many claims fail at once, and it is unknown whether they were written: their keys are free soon after."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callgate import Effects, Gate, Hook, ToolResult, tool
from callgate.errors import StoreConflict, StoreError
from callgate.hooks import Audit
from callgate.hooks.stock.records.audit_verify import verify_audit
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.sql import ledger as sql_ledger
from callgate.providers.stores.sql.batches import PostgresBatches, _PostgresBatch
from callgate.providers.stores.sql.effect_statements import FIND
from callgate.runtime.effects.ledger import Ledger
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import POSTGRES, place
from tests.runtime.effects.scene_desk import ANN, KEY

NUMBER = 60
STORES = ["sqlite-file", "postgresql"]


class Faulty:
    """A part of a store that counts its operations. ``lost`` ones are written and fail, ``failed`` ones are not written."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked = Counter[str]()
        self.lost, self.failed = frozenset[str](), frozenset[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def asked(*args: Any, **more: Any) -> Any:
            self.asked[name] += 1
            if name in self.failed:
                raise StoreError("the connection was lost")
            answer = await found(*args, **more)
            if name in self.lost:
                raise StoreError("the connection was lost")
            return answer

        return asked


class Office:
    """Gates of two processes on one store; the writer and the reader of the first one fail on demand."""

    def __init__(self, address: str, *, keyed: bool = False, signed: bool = False) -> None:
        self.paid = Counter[int]()
        self._address, self._signed = address, signed

        @tool(effect="irreversible", key=("n",) if keyed else ())
        async def pay(n: int) -> int:
            """Pay."""
            self.paid[n] += 1
            return n

        self._tool = pay

    @asynccontextmanager
    async def gate(self, *hooks: Hook) -> AsyncGenerator[tuple[Gate, Faulty, Faulty]]:
        options: dict[str, Any] = {"effects": Effects(wait=0.0), "open": True, "store": self._address}
        options |= {"signing_keys": [KEY]} if self._signed else {}
        async with Gate([self._tool], hooks, **gate_options(**options)) as gate:
            ledger: Any = gate._records.ledger
            ledger.writer, ledger.effects = Faulty(ledger.writer), Faulty(ledger.effects)
            yield gate, ledger.writer, ledger.effects


async def calls(gate: Gate, number: int = NUMBER, *, first: int = 0) -> list[ToolResult]:
    """A call with a key for each number, all at once."""
    numbers = range(first, first + number)
    each = [gate.call("pay", {"n": n}, user=ANN, idempotency_key=f"k{n}") for n in numbers]
    return list(await asyncio.gather(*each))


def codes(results: list[ToolResult]) -> set[str | None]:
    return {None if one.error is None else one.error.code for one in results}


def unsettled(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "effect.unsettled" in one.getMessage()]


@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("keyed", [True, False], ids=["two identities", "one identity"])
@pytest.mark.parametrize("kind", STORES)
async def test_the_claims_of_a_lost_batch_are_looked_up_together_and_their_keys_are_free(
    kind: str, keyed: bool, signed: bool, written: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 34, 2: each claim for itself waited for a connection, and hundreds were logged with their tracebacks."""
    with place(kind, tmp_path) as (address, _):
        office = Office(address, keyed=keyed, signed=signed)
        async with office.gate() as (gate, writer, reader), office.gate() as (other, _, _):
            setattr(writer, "lost" if written else "failed", frozenset({"claim"}))
            reader.asked.clear()
            assert codes(await calls(gate)) == {"not_recorded"}
            writer.lost = writer.failed = frozenset()
            assert reader.asked.total() <= 10
            assert len(unsettled(caplog)) <= 1, "the look-up of a busy machine may take longer than a caller waits"
            await gate.maintain()
            assert codes(await calls(other)) == {None}, "the keys are free in another process"
            assert codes(await calls(gate)) == {None}
    assert office.paid == dict.fromkeys(range(NUMBER), 1)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("frees", [True, False], ids=["", "control: no look-up"])
async def test_keys_that_could_not_be_looked_up_are_free_after_the_next_round(
    kind: str, frees: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails for a while longer: one line of the log names their number."""
    if not frees:
        monkeypatch.setattr(Ledger, "_free", lambda *_: asyncio.sleep(0))
    with place(kind, tmp_path) as (address, _):
        office = Office(address)
        async with office.gate() as (gate, writer, reader), office.gate() as (other, _, _):
            writer.lost, reader.failed = frozenset({"claim"}), frozenset({"list", "get"})
            assert codes(await calls(gate)) == {"not_recorded"}
            await gate.maintain()
            if frees:
                assert 1 <= len(unsettled(caplog)) <= 3
                assert f"number={NUMBER}" in unsettled(caplog)[-1]
            assert codes(await calls(other)) == {"in_flight"}
            writer.lost = reader.failed = frozenset()
            await gate.maintain()
            assert codes(await calls(other)) == {None if frees else "in_flight"}


async def test_a_batch_whose_server_ends_in_its_commit_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 34, 2: 256 of 300 calls ended with ``not_recorded``."""
    with place("postgresql", tmp_path) as (address, _), psycopg.connect(POSTGRES, autocommit=True) as own:
        office = Office(address)
        async with office.gate() as (gate, _, _):
            pause = Pause(own, f"{address.partition('%3D')[2]}.callgate_effects")
            under_way = asyncio.create_task(calls(gate, 50))
            await asyncio.to_thread(pause.end_its_session)
            assert codes(await under_way) == {None}
    assert office.paid == dict.fromkeys(range(50), 1)
    assert unsettled(caplog) == []


class LostCommits:
    """Loses the connection in every third COMMIT of a batch: before the server has it, or after it has committed.

    The next connection fails, too, as while a server starts.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = Counter[str]()
        self._number, self._ended, self._away = 0, False, False
        connected = PostgresBatches._connected

        async def connect(batches: PostgresBatches, *, aside: bool) -> Any:
            if self._away:
                self._away = False
                raise StoreError("postgresql: the database system is starting up")
            return await connected(batches, aside=aside)

        monkeypatch.setattr(PostgresBatches, "_connected", connect)
        for name in ("_commit", "run_alone"):
            monkeypatch.setattr(_PostgresBatch, name, self._losing(getattr(_PostgresBatch, name)))

    def end(self) -> None:
        self._ended = True

    def _losing(self, commit: Any) -> Any:
        async def lost(batch: Any, *given: Any) -> Any:
            self._number += 1
            kind = {0: "before", 3: "after"}.get(self._number % 6 + 10 * self._ended, "")
            if kind == "before":
                batch.committing = True
            done = None if kind == "before" else await commit(batch, *given)
            if not kind:
                return done
            self.lost[kind], self._away = self.lost[kind] + 1, True
            await batch._connection.close()
            raise psycopg.OperationalError("the connection is lost")

        return lost


@pytest.mark.parametrize(
    "options",
    [*chain.from_iterable(combinations(["keyed", "signed", "audited"], n) for n in range(4)), ("control: not again",)],
    ids="-".join,
)
async def test_claims_and_outcomes_of_lost_commits_are_recorded_once(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each effect takes place once, with one row of its intent and one of its outcome, and the log verifies."""
    keyed, signed, audited = (name in options for name in ("keyed", "signed", "audited"))
    if "control: not again" in options:
        monkeypatch.setattr(sql_ledger, "CommitLost", StoreConflict)
    with place("postgresql", tmp_path) as (address, _):
        office = Office(address, keyed=keyed, signed=signed)
        async with office.gate(*([Audit()] if audited else [])) as (gate, _, _):
            commits = LostCommits(monkeypatch)
            results = [one for n in range(0, NUMBER, 10) for one in await calls(gate, 10, first=n)]
            commits.end()
            assert set(commits.lost) == {"before", "after"}
            rows = [row.body async for row in gate.store.audit.read(None)]
            assert (await verify_audit(gate.store.audit)).problems == []
            states = {effect.state for _, effect in await gate.store.effects.list(None)}
    if "control: not again" in options:
        assert "not_recorded" in codes(results)
        return
    assert codes(results) == {None}
    assert office.paid == dict.fromkeys(range(NUMBER), 1)
    assert states == {EffectState.COMMITTED}
    of_call = Counter((row["kind"], row["request_id"]) for row in rows)
    assert (len(of_call), len(rows)) == (2 * NUMBER * audited, 2 * NUMBER * audited)


class Pause:
    """A trigger that holds up the COMMIT of the first transaction that claims a key."""

    def __init__(self, own: psycopg.Connection[Any], table: str) -> None:
        self._own, self._table = own, table
        self._run("CREATE SEQUENCE {table}_commits")
        self._run(
            "CREATE FUNCTION {table}_pause() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF nextval('{table}_commits') = 1 THEN PERFORM pg_sleep(60); END IF; RETURN NULL; END $$"
        )
        self._run(
            "CREATE CONSTRAINT TRIGGER pause AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION {table}_pause()"
        )

    def _run(self, statement: str) -> Any:
        return self._own.execute(statement.replace("{table}", self._table).encode())

    def end_its_session(self) -> None:
        """Wait until a COMMIT is held up, and end its session as a shutdown does."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            ended = self._run(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid IN "
                "(SELECT pid FROM pg_locks WHERE relation = '{table}'::regclass)"
            ).fetchall()
            if ended:
                return
        raise TimeoutError("no transaction was held up")


class Ended:
    """A connection whose server ends the session in the middle of a pipeline, as psycopg reports it."""

    closed = False

    async def execute(self, *_: object) -> None:
        raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")

    @asynccontextmanager
    async def pipeline(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")

    async def close(self) -> None:
        self.closed = True


async def test_the_error_of_a_server_that_ended_has_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 34, 2: psycopg hides the error of the server behind one of its own."""
    batches, ended = PostgresBatches(Any), Ended()  # type: ignore[arg-type]
    monkeypatch.setattr(batches, "_connected", lambda **_: asyncio.sleep(0, result=(ended, (), True)))
    with pytest.raises(StoreError) as raised:
        async with batches.begin() as batch:
            batch.committing = True
            await batch.exchange(
                [(FIND, [{"tenant": "t", "key": "k", "version": 1, "namespace": ""}])], lambda _: [], writes=False
            )
    assert raised.value.sqlstate == "57P01"
    assert ended.closed
