"""Suspended calls and approved definitions of outside tools, in SQL."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from typing import Any

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.effects import PRUNE_BATCH, Pin, SuspensionPosition, SuspensionRecord, SuspensionState
from callgate.providers.stores.kept_texts import keepable
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.signed_rows import PIN, SUSPENSION, pin_facts, refusal
from callgate.providers.stores.sql.database.part import OURS, Columns, SqlPart, check_row_version
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.versions import SqlVersions


def _state(found: str) -> SuspensionState:
    try:
        return SuspensionState(found)
    except ValueError:
        raise StoreError("a suspended call in the store has an unknown state; the row was changed by hand") from None


def _body(found: object) -> bytes:
    return bytes(found) if isinstance(found, bytes | memoryview) else b""  # SQLite stores any type; no MAC fits b""


SUSPENSION_COLUMNS = Columns(SuspensionRecord, {"user": "person"}, {"state": _state, "body": _body})
_LISTED = SUSPENSION_COLUMNS.listed
_PUT = f"""
INSERT INTO callgate_waits (tenant, version, namespace, {_LISTED})
VALUES (:tenant, :version, :namespace, {SUSPENSION_COLUMNS.marks})
ON CONFLICT (tenant, id) DO NOTHING
"""  # noqa: S608  (built from the constants above, as are those below)
_REPLACE = f"""
UPDATE callgate_waits SET {", ".join(f"{name} = :{name}" for name in SUSPENSION_COLUMNS.names if name != "id")}
WHERE tenant = :tenant AND id = :id AND {OURS} AND number = :number - 1 AND state = 'waiting'
"""  # noqa: S608
_REPLACE_USED = _REPLACE.replace("state = 'waiting'", "state IN ('waiting', 'used')")
"""By a row that is ``waiting``: see ``may_follow``."""
_GET = f"SELECT version, {_LISTED} FROM callgate_waits WHERE tenant = :tenant AND id = :id AND namespace = :namespace"  # noqa: S608
_LIST = f"SELECT {_LISTED} FROM callgate_waits WHERE tenant = :tenant AND {OURS} AND state = :state"  # noqa: S608
_COUNT = f"""
SELECT count(*) FROM (SELECT 1 AS one FROM callgate_waits WHERE tenant = :tenant AND {OURS} AND state = 'waiting'
AND person = :person AND """  # noqa: S608
_DUE = f"""
SELECT tenant, {_LISTED} FROM callgate_waits
WHERE {OURS} AND state = 'waiting' AND expires_at <= :now ORDER BY expires_at, tenant, id LIMIT :limit
"""  # noqa: S608
_HAS = {
    "sqlite": "instr(substr(body, max(instr(body, :behind), 1)), :part{0}) > 0",
    "postgresql": "position(:part{0} IN substring(body FROM greatest(position(:behind IN body), 1))) > 0",
}
"""A part in the body, from ``behind`` on if the body has it."""
_OVER = f"{OURS} AND state IN ('used', 'denied', 'expired', 'void') AND made_at < :before"

PIN_COLUMNS = Columns(Pin, {"by": "person"}, {})
_SELECT_PINS = (
    f"SELECT version, mac, {PIN_COLUMNS.listed} FROM callgate_pins WHERE tenant = :tenant AND provider = :provider"  # noqa: S608
)
_FIND = f"{_SELECT_PINS} AND tool = :tool"
_PINS = f"{_SELECT_PINS} ORDER BY tool"
_PIN = f"""
INSERT INTO callgate_pins (tenant, version, mac, {PIN_COLUMNS.listed})
VALUES (:tenant, :version, :mac, {PIN_COLUMNS.marks})
ON CONFLICT (tenant, provider, tool)
"""  # noqa: S608
_ADD = f"{_PIN} DO NOTHING"
_REPIN = f"""{_PIN} DO UPDATE SET version = excluded.version, digest = excluded.digest, at = excluded.at,
    person = excluded.person, mac = excluded.mac"""


class SqlSuspensions(SqlPart):
    """See ``SuspensionStore``."""

    async def put(self, tenant: str, wait: SuspensionRecord) -> None:
        if not await self._write(_PUT, _values(tenant, wait)):
            raise StoreConflict("a suspended call has that id already")

    async def get(self, tenant: str, id: str) -> SuspensionRecord | None:
        found = await self._one(_GET, {"tenant": tenant, "id": id}, SUSPENSION_COLUMNS)
        if found is None or await self._is_latest(tenant, found):
            return found
        return dataclasses.replace(found, mac="")  # it was denied, and put back: no key has signed what it is now

    async def replace(self, tenant: str, wait: SuspensionRecord) -> bool:
        if self.signer is None:
            return bool(await self._write(_replacing(wait), _values(tenant, wait)))
        return await self.transact(lambda part: part._replace_signed(tenant, wait))

    async def _replace_signed(self, tenant: str, wait: SuspensionRecord) -> bool:
        """Replace a version; once it is denied, no earlier version is valid.

        A call that was used needs no counter: the effect ledger knows it.
        """
        assert self.signer is not None
        versions = self.beside(SqlVersions)
        if await versions.find(tenant, SUSPENSION, wait.id) is not None:
            return False  # it was denied, and the row put back
        if not await self._write(_replacing(wait), _values(tenant, wait)):
            return False
        if wait.state is SuspensionState.DENIED:
            await versions.set(tenant, SUSPENSION, wait.id, wait.mac, ends=wait.expires_at)
        return True

    async def _is_latest(self, tenant: str, found: SuspensionRecord) -> bool:
        if self.signer is None:
            return True
        versions = self.beside(SqlVersions)
        version = await versions.find(tenant, SUSPENSION, found.id)
        return version is None or version.latest == found.mac

    async def list(
        self,
        tenant: str,
        *,
        state: SuspensionState = SuspensionState.WAITING,
        user: str | None = None,
        limit: int = 100,
        after: SuspensionPosition | None = None,
        kind: str | None = None,
        valid_at: float | None = None,
        having: Collection[bytes] | None = None,
        behind: bytes = b"",
        newest: bool = False,
    ) -> Sequence[SuspensionRecord]:
        query = _LIST
        values: dict[str, object] = {"tenant": tenant, "state": state.value, "limit": limit}
        chosen = list[str]()
        if user is not None:
            chosen.append("person = :person")
            values["person"] = user
        # Parts of the body and no JSON functions: PostgreSQL would fail on a row that was damaged by hand.
        for number, part in enumerate(sorted(having or ())):
            chosen.append(_HAS["sqlite" if self._database.lite else "postgresql"].format(number))
            values |= {f"part{number}": part, "behind": behind}
        if chosen or having is not None:
            query += f" AND ({' OR '.join(chosen) or 'false'})"
        if after is not None:
            query += f" AND (made_at, id) {'<' if newest else '>'} (:after_time, :after_id)"
            values |= {"after_time": float(after[0]), "after_id": after[1]}
        if kind is not None:
            query += " AND kind = :kind"
            values["kind"] = kind
        if valid_at is not None:
            query += " AND (expires_at IS NULL OR expires_at > :valid_at)"
            values["valid_at"] = float(valid_at)
        query += f" ORDER BY {'made_at DESC, id DESC' if newest else 'made_at, id'} LIMIT :limit"
        return [SUSPENSION_COLUMNS.record(row) for row in await self._rows(query, values)]

    async def count(self, tenant: str, user: str, limit: int, *, kind: str | None = None) -> int:
        query = _COUNT + ("tool <> ''" if kind is None else "kind = :kind") + " LIMIT :limit) AS found"
        values = {"tenant": tenant, "person": user, "limit": limit}
        return int((await self._rows(query, values if kind is None else {**values, "kind": kind}))[0][0])

    async def due(self, now: float, limit: int = 100) -> Sequence[tuple[str, SuspensionRecord]]:
        lock = "" if self._database.lite or self._within is None else " FOR UPDATE SKIP LOCKED"
        rows = await self._rows(_DUE + lock, {"now": now, "limit": limit})
        return [(tenant, SUSPENSION_COLUMNS.record(row)) for tenant, *row in rows]

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        return await self._prune("callgate_waits", "tenant, id", _OVER, before, limit)


@keepable
class SqlPins(SqlPart):
    """See ``PinStore``. A pin that does not verify is an error: a tool without a pin would get a new one."""

    async def find(self, tenant: str, provider: str, tool: str) -> Pin | None:
        values = {"tenant": in_table(self.namespace, tenant), "provider": provider, "tool": tool}
        rows = await self._rows(_FIND, values)
        found = await self._checked(tenant, rows[0]) if rows else None
        if found is None and self.signer is not None and await self._version(tenant, provider, tool) is not None:
            raise StoreError("the pin of this tool was removed by hand; approve the tool again")
        return found

    async def add(self, tenant: str, pin: Pin) -> Pin:
        if self.signer is not None:
            return await self.transact(lambda part: part._add_signed(tenant, pin))
        return await self._add(tenant, pin)

    async def _add_signed(self, tenant: str, pin: Pin) -> Pin:
        found = await self.find(tenant, pin.provider, pin.tool)
        return found or await self._add(tenant, pin)

    async def _add(self, tenant: str, pin: Pin) -> Pin:
        values = self._pin_values(tenant, pin)
        if await self._write(_ADD, values):
            await self._note(tenant, pin, values["mac"])
            return pin
        found = await self.find(tenant, pin.provider, pin.tool)
        if found is None:
            raise StoreError("another process removed the pin of the tool; try again")
        return found

    async def put(self, tenant: str, pin: Pin) -> None:
        if self.signer is None:
            await self._write(_REPIN, self._pin_values(tenant, pin))
        else:
            await self.transact(lambda part: part._put_signed(tenant, pin))

    async def _put_signed(self, tenant: str, pin: Pin) -> None:
        values = self._pin_values(tenant, pin)
        await self._write(_REPIN, values)
        await self._note(tenant, pin, values["mac"])

    async def list(self, tenant: str, provider: str) -> Sequence[Pin]:
        rows = await self._rows(_PINS, {"tenant": in_table(self.namespace, tenant), "provider": provider})
        return [await self._checked(tenant, row) for row in rows]

    async def _checked(self, tenant: str, row: Row) -> Pin:
        version, mac, *columns = row
        check_row_version(version, self.version)
        pin = PIN_COLUMNS.record(columns)
        if self.signer is not None:
            known = await self._version(tenant, pin.provider, pin.tool)
            if not self.signer.check(mac, PIN, tenant, pin_facts(pin)) or (known is not None and known != mac):
                raise refusal(PIN, mac)
        return pin

    async def _version(self, tenant: str, provider: str, tool: str) -> str | None:
        assert self.signer is not None
        versions = self.beside(SqlVersions)
        found = await versions.find(tenant, PIN, _pin_key(provider, tool))
        return None if found is None else found.latest

    async def _note(self, tenant: str, pin: Pin, mac: str | None) -> None:
        """Make a pin the only valid version."""
        if self.signer is not None:
            versions = self.beside(SqlVersions)
            await versions.set(tenant, PIN, _pin_key(pin.provider, pin.tool), mac or "")

    def _pin_values(self, tenant: str, pin: Pin) -> dict[str, Any]:
        mac = None if self.signer is None else self.signer.sign(PIN, tenant, pin_facts(pin))
        return {**PIN_COLUMNS.values(pin), "tenant": in_table(self.namespace, tenant), "mac": mac}


def _replacing(wait: SuspensionRecord) -> str:
    return _REPLACE_USED if wait.state is SuspensionState.WAITING else _REPLACE


def _values(tenant: str, wait: SuspensionRecord) -> dict[str, object]:
    return {**SUSPENSION_COLUMNS.values(wait), "tenant": tenant}


def _pin_key(provider: str, tool: str) -> str:
    return json.dumps([provider, tool])
