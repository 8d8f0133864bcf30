"""The rows of a database as a surface: each kind is written, its columns are changed, and the store reads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sqlalchemy.exc import DBAPIError

from callgate.errors import StoreError
from callgate.hooks import verify_audit
from callgate.providers.stores.address import signed_by
from callgate.providers.stores.base import AuditRow
from callgate.runtime.suspensions.resumption import SuspendedCall
from tests.attacks.database_rows import KEY, KINDS, Kind, Rows, World
from tests.attacks.fuzzing import Surface, Take
from tests.providers.stores.backends import opened

FOREVER = 1e12


async def write_audit(world: World, key: str) -> None:
    """Write a row of the log, and its anchor."""
    row = AuditRow(key, 1, world.backend.now(), {"tool": "pay", "n": [1, None]}, "", "h")
    await world.store.audit.append(world.tenant, [row])
    await world.store.audit.anchor(key, 1, "h", world.backend.now())


async def read_audit(world: World, key: str) -> Any:
    """Verify the log, and read it."""
    report = await verify_audit(world.store.audit, signing_keys=["k" * 32])
    assert all("AttributeError" not in str(problem) for problem in report.problems)
    return [row async for row in world.store.audit.read(None)] or None


async def never(_world: World, _key: str) -> None:
    """Nothing replaces a row of the log."""


AUDIT = Kind("audit", "segment", "hash", ("body", "{}"), write_audit, never, read_audit)


async def lists(world: World, key: str) -> None:
    """Read a row in each other way that meets it: lists, jobs that are taken, and the facts of a suspended call."""
    store, tenant = world.store, world.tenant
    await store.effects.list(None, limit=5)
    await store.effects.list(None, after=("", "", ""), limit=5)  # type: ignore[arg-type]
    await store.jobs.count()
    await store.jobs.list(None, limit=5)
    await store.jobs.take("o", FOREVER, FOREVER)
    await store.consents.list(tenant, key)
    await store.pins.list(tenant, "crm")
    for wait in await store.suspensions.list(tenant, limit=5):
        with contextlib.suppress(ValueError, TypeError, KeyError):  # as ``Suspensions.opened``
            SuspendedCall.load(wait.body)


SEEDS = {
    "audit": {"segment": "k", "number": 1, "at": 1.5, "version": 1, "body": "{}", "previous": "", "hash": "h"},
    "effect": {"key": "k", "state": "no_effect", "token": 1, "receipt": "1", "at": 1.5, "version": 1, "tool": "refund"},
    "job": {"id": "k", "state": "done", "token": 1, "result": "{}", "run_at": 1.5, "attempts": 1, "priority": 0},
    "cancelled": {"id": "k", "state": "cancelled", "token": 0, "result": "{}", "run_at": 1.5, "reason": "x"},
    "cached": {"key": "k", "value": "1", "stale_at": 1.5, "expires_at": 2.5, "tags": "t", "mac": "m"},
    "consent": {"person": "k", "tool": "mail", "scope": "read", "granted_at": 1.5, "expires_at": None},
    "pin": {"tool": "k", "provider": "crm", "digest": "first", "at": 1.5, "mac": "m"},
    "suspension": {"id": "k", "state": "waiting", "number": 1, "body": "{}", "made_at": 1.5, "kind": "approval"},
}
"""Columns with values; a column that a table does not have is left out."""


def stored(value: Any, before: Any) -> Any:
    """A value of JSON as a value of a column."""
    if isinstance(value, list | dict) or (isinstance(value, int) and abs(value) >= 2**63):
        value = json.dumps(value)
    if isinstance(before, bytes) and isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def rows_of(kind: Kind, signed: bool) -> Callable[[], AbstractAsyncContextManager[Take]]:
    """Rows of a kind, in a store that checks signatures or has no keys."""

    @contextlib.asynccontextmanager
    async def open() -> AsyncGenerator[Take]:
        async with opened("sqlite-memory", ("sqlite://", "")) as backend:
            store = signed_by(backend.store, KEY) if signed else backend.store
            world = World(store, KEY if signed else None, backend, backend.tenant)
            plain = Rows(kind, World(backend.store, None, backend, backend.tenant))
            for trigger in await plain.run("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                await plain.run(f'DROP TRIGGER "{trigger["name"]}"')  # the owner of the tables can
            await kind.write(world, "k")
            row = await plain.take("k")

            async def take(data: bytes) -> bool:
                try:
                    given = json.loads(data)
                except (ValueError, RecursionError):
                    return False
                known = given.items() if isinstance(given, dict) else ()
                changed = {name: stored(value, row[name]) for name, value in known if name in row}
                try:
                    await plain.put(row, **changed)
                except (DBAPIError, OverflowError, StoreError):  # the database refuses it
                    return False
                key, found = changed.get(kind.key, "k"), False
                try:
                    for read in (kind.read, lists):
                        with contextlib.suppress(StoreError):
                            found |= await read(world, key if isinstance(key, str) else "k") is not None
                finally:
                    await plain.run(f"DELETE FROM callgate_{kind.table}")
                return found

            yield take

    return open


def seeds_of(name: str) -> Callable[[], Sequence[bytes]]:
    """The row as it is, and changes of its columns."""
    return lambda: [b"{}", json.dumps(SEEDS[name]).encode()]


ROWS = tuple(
    Surface(f"rows: {name}{', signed' * signed}", seeds_of(name), rows_of(kind, signed), quick=8, soak=3_000)
    for name, kind in {**KINDS, "audit": AUDIT}.items()
    for signed in (False, True)
)
