"""Effectful calls with audit rows by hand: the same statements and values as Callgate's, and a plain group commit.

A call queues a claim with the row of its intent, runs the tool, and queues the outcome with its row. One task writes all
that has arrived in one transaction. The values of a call are those of a call that Callgate has written into the store.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

import orjson

from benchmarks.state_place import Call, Compared, Load, Make, compare, paying, store_of
from callgate.providers.stores.effects import OPEN_STATES, EffectState
from callgate.providers.stores.sql.audit_statements import APPEND
from callgate.providers.stores.sql.effect_statements import CLAIMS, SETTLE
from callgate.providers.stores.sql.effects import claim_values

CLAIM = CLAIMS[False]
OPEN = orjson.dumps(OPEN_STATES).decode()
SETTLED = ("namespace", "tenant", "key", "version", "token", "ended_at", "receipt", "expires_at", "note")
"""The values of the outcome that are those of the claim."""

Values = dict[str, Any]


class Group(list[tuple[Values | None, Values | None, Values]]):
    """What one transaction writes: claims or outcomes, each with the body of its audit row."""

    def claims(self) -> list[Values]:
        return [claim for claim, _, _ in self if claim is not None]

    def outcomes(self) -> list[Values]:
        return [outcome for _, outcome, _ in self if outcome is not None]


class Commit(Protocol):
    """Writes claims, outcomes and audit rows in one transaction, and returns how many claims and outcomes it wrote."""

    async def __call__(self, claims: list[Values], outcomes: list[Values], rows: list[Values]) -> int: ...


@asynccontextmanager
async def postgres(address: str) -> AsyncGenerator[Commit]:
    """Commit with psycopg, on one connection."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute("SET jit = off")

        async def commit(claims: list[Values], outcomes: list[Values], rows: list[Values]) -> int:
            await connection.execute("BEGIN")
            number = 0
            for statement, values in ((CLAIM, claims), (SETTLE, outcomes)):
                if values:
                    done = await connection.execute(statement.postgres.encode(), statement.parameters(values))
                    number += len(await done.fetchall())
            await connection.execute(APPEND.postgres.encode(), APPEND.parameters(rows))
            await connection.execute("COMMIT")
            return number

        yield commit


@asynccontextmanager
async def lite(address: str) -> AsyncGenerator[Commit]:
    """Commit with ``sqlite3``, in one thread."""
    path = address.removeprefix("sqlite:///")
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")

    def write(claims: list[Values], outcomes: list[Values], rows: list[Values]) -> int:
        connection.execute("BEGIN IMMEDIATE")
        number = 0
        for statement, values in ((CLAIM, claims), (SETTLE, outcomes)):
            number += sum(len(connection.execute(statement.lite, one).fetchall()) for one in values)
        connection.executemany(APPEND.lite, rows)
        connection.execute("COMMIT")
        return number

    with ThreadPoolExecutor(1) as thread:

        async def commit(claims: list[Values], outcomes: list[Values], rows: list[Values]) -> int:
            return await asyncio.get_running_loop().run_in_executor(thread, write, claims, outcomes, rows)

        yield commit
    connection.close()


@dataclass(frozen=True)
class Example:
    """The values of a call that Callgate has written."""

    claim: Values
    intent: Values
    outcome: Values

    @classmethod
    async def read(cls, address: str) -> Example:
        """Make one call through a gate, and read what it has written."""
        async with paying(address) as call:
            await call()
        store = store_of(address)
        await store.open()
        try:
            ((tenant, effect),) = await store.effects.list(None)
            intent, outcome = [dict(row.body) async for row in store.audit.read(None)]
        finally:
            await store.close()
        claim = claim_values(tenant, effect, "", retry=False)
        return cls(claim | {"state": EffectState.RUNNING.value, "ended_at": None, "receipt": None}, intent, outcome)


class Hand:
    """What an application writes that uses no Callgate. ``call`` is one call."""

    def __init__(self, commit: Commit, example: Example) -> None:
        self._commit, self._example = commit, example
        self._numbers = itertools.count()
        self._group, self._done = Group(), list[asyncio.Future[None]]()
        self._task: asyncio.Task[None] | None = None
        self.segment, self._number, self._head = f"by hand {secrets.token_hex(8)}", 0, ""

    async def call(self) -> None:
        """Claim, run the tool, record the outcome."""
        n, now, known = next(self._numbers), time.time(), self._example
        digest = sha256(orjson.dumps({"n": n})).hexdigest()
        key, request, call = (secrets.token_hex(16) for _ in range(3))
        of_call = {"input_hash": digest, "request_id": request, "call_id": call}
        claim = {**known.claim, **of_call, "key": key, "began_at": now, "lease_until": now + 36.0}
        at = round(now * 1e6)
        await self._put(claim, None, {**known.intent, **of_call, "at_us": at, "input": {"n": n}})
        output = {"n": n}  # the tool
        now = time.time()
        outcome = {name: claim[name] for name in SETTLED} | {
            "state": "committed",
            "states": OPEN,
            "ended_at": now,
            "mac": None,
        }
        outcome["receipt"] = orjson.dumps({"v": 1, "output": output})
        took = {"at_us": round(now * 1e6), "started_us": at, "duration_us": round(now * 1e6) - at}
        hashed = {"output_hash": sha256(orjson.dumps(output)).hexdigest(), "input": {"n": n}}
        await self._put(None, outcome, {**known.outcome, **of_call, **took, **hashed})

    async def _put(self, claim: Values | None, outcome: Values | None, body: Values) -> None:
        loop = asyncio.get_running_loop()
        self._group.append((claim, outcome, body))
        self._done.append(done := loop.create_future())
        if self._task is None:
            self._task = loop.create_task(self._write())
        await done

    async def _write(self) -> None:
        while self._group:
            group, futures = self._group, self._done
            self._group, self._done = Group(), []
            try:
                rows = self._rows([body for _, _, body in group])
                wrote = await self._commit(group.claims(), group.outcomes(), rows)
                if wrote != len(group):
                    raise RuntimeError(f"of {len(group)} changes by hand {wrote} were written")
            except Exception as error:
                for done in futures:
                    done.set_exception(error)
            else:
                for done in futures:
                    done.set_result(None)
        self._task = None

    def _rows(self, bodies: Sequence[Values]) -> list[Values]:
        """Give the rows their places in the hash chain."""
        rows = []
        for body in bodies:
            self._number += 1
            place = {"number": self._number, "previous": self._head, "segment": self.segment}
            whole = orjson.dumps({"body": body, **place}, option=orjson.OPT_SORT_KEYS)
            self._head = sha256(whole).hexdigest()
            row = {"tenant": body["tenant"], "version": 1, "at": body["at_us"] / 1e6, "hash": self._head}
            rows.append({**place, **row, "body": orjson.dumps(body).decode()})
        return rows


@asynccontextmanager
async def by_hand(address: str) -> AsyncGenerator[Call]:
    """Give calls by hand on a store that Callgate has made."""
    example = await Example.read(address)
    async with (postgres if address.startswith("postgresql") else lite)(address) as commit:
        yield Hand(commit, example).call


async def against_hand(make: Make, load: Load) -> Compared:
    """Compare effectful calls with ``Audit`` with the same SQL by hand, each on a store of its own."""
    async with by_hand(make()) as hand, paying(make()) as now:
        return await compare(hand, now, load)
