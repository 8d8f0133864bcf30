"""One service, driven by lines of JSON: the same script runs with the library of two versions. Arguments: name, address."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from callgate import Approval, Approve, Effects, Gate, ToolCall, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit
from callgate.providers.stores.effects import Pin

try:
    from callgate.providers.stores.sql.database import database
except ModuleNotFoundError:  # the version before has one folder for all stores
    database = import_module("callgate.providers.stores.sql_database")
NAME, ADDRESS = sys.argv[1:3]
LIMIT = Limit(10, 3600.0)
ANN, BOB = User("ann", "acme"), User("bob", "acme", roles={"lead"})


@tool(effect="irreversible")
async def pay(cents: int) -> str:
    """Pay."""
    return f"{NAME} paid {cents}"


@tool(effect="irreversible", requires_approval=Approval(roles=["lead"]))
async def transfer(cents: int) -> str:
    """Transfer."""
    return f"{NAME} transferred {cents}"


@tool(effect="irreversible", key=("order",))
async def refund(order: int) -> str:
    """Refund."""
    return f"{NAME} refunded {order}"


async def work(gate: Gate, do: str, value: Any) -> Any:
    """Do what the test asks for, and return what it reads."""
    match do:
        case "call":
            result = await gate.call(
                ToolCall(id="c", name="pay", arguments={"cents": 5}), user=ANN, idempotency_key=value
            )
            return [result.output, result.replayed]
        case "refund":
            key, order = value
            result = await gate.call(
                ToolCall(id="c", name="refund", arguments={"order": order}), user=ANN, idempotency_key=key
            )
            return [result.outcome, result.output, result.replayed]
        case "submit":
            return (await gate.submit(ToolCall(id="c", name="pay", arguments={"cents": 5}), user=ANN, key=value)).id
        case "run":
            return await gate.jobs.run_invocation()
        case "result":
            return (await gate.job(value, user=ANN)).output
        case "ask":
            asked = await gate.call(ToolCall(id="c", name="transfer", arguments={"cents": 7}), user=ANN)
            return asked.pending.handle if asked.pending is not None else repr(asked)
        case "approve":
            return (await gate.resume(value, Approve(), approver=BOB)).output
        case "write" | "read":
            return await (write if do == "write" else read)(gate.store, value)
        case _:
            raise ValueError(do)


async def write(store: Any, key: str) -> None:
    """Keep one record of each kind that no call above has written."""
    now = store.time()
    await store.cache.put("acme", key, CacheEntry(b"1", now, now + 99.0, now + 99.0, frozenset({f"tag of {key}"})))
    await store.quotas.take("acme", key, LIMIT, 3)
    await store.semaphores.acquire("acme", key, 2, "token", 99.0)
    await store.consents.grant("acme", Grant(key, "pay", "", now, None))
    await store.pins.add("acme", Pin(key, "tool", "digest", now))
    await store.audit.append("acme", [AuditRow(f"segment of {key}", 1, now, {"tenant": "acme"}, "", "hash")])
    await store.audit.anchor(f"segment of {key}", 1, "hash", now)


async def read(store: Any, key: str) -> list[Any]:
    """Return what is kept of them, and change what can be changed."""
    entry = await store.cache.get("acme", key)
    taken = await store.quotas.take("acme", key, LIMIT, 5)
    third = [await store.semaphores.acquire("acme", key, 2, name, 99.0) for name in ("other", "third")]
    grant = await store.consents.find("acme", key, "pay", "")
    pin = await store.pins.find("acme", key, "tool")
    rows = [row.segment async for row in store.audit.read("acme") if row.segment == f"segment of {key}"]
    anchors = [segment for segment, *_ in await store.audit.anchors() if segment == f"segment of {key}"]
    dropped = await store.cache.drop_tags("acme", [f"tag of {key}"])
    return [
        entry and entry.value.decode(),
        taken.remaining,
        third,
        grant is not None and await store.consents.revoke("acme", key),
        pin and pin.digest,
        len(rows) + len(anchors),
        dropped,
    ]


async def main() -> None:
    """Serve until the input ends."""
    options: dict[str, Any] = {"effects": Effects(durable=True), "signing_keys": ["a key of the tests"]}
    gate = Gate([pay, refund, transfer], allow_unguarded=True, store=ADDRESS, jobs=EmbeddedJobs(0), **options)
    async with gate:
        print(json.dumps(database.HEAD), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            do, value = json.loads(line)
            try:
                done = await work(gate, do, value)
            except Exception as error:  # noqa: BLE001  (the test shows it)
                done = f"{type(error).__name__}: {error}"
            print(json.dumps(done), flush=True)


asyncio.run(main())
