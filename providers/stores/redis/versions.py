"""The signatures and the signed counters of rows in Redis; see ``signed_rows``."""

from __future__ import annotations

import json
import math

from callgate.providers.stores.redis.client import RedisConnection
from callgate.providers.stores.signed_rows import CACHE, RowSigner, Version, version_facts


class RedisVersions:
    """Signs and checks the rows of one namespace, which are JSON objects with a member ``mac``."""

    def __init__(self, connection: RedisConnection, namespace: str, signer: RowSigner) -> None:
        self._connection, self._namespace, self._signer = connection, namespace, signer

    def with_mac(
        self, tenant: str, kind: str, key: str, about: dict[str, object], data: bytes = b""
    ) -> dict[str, object]:
        """Return the facts of a row with its key and its MAC."""
        about = {**about, "key": key}
        return {**about, "mac": self._signer.sign(kind, tenant, (key, json.dumps(about)), data)}

    async def checks(self, tenant: str, kind: str, key: str, about: dict[str, object], data: bytes = b"") -> bool:
        """Return True if the row is signed, is of this key, and was not dropped, revoked or replaced since."""
        mac = about.pop("mac", None)
        if about.get("key") != key or not self._signer.check(mac, kind, tenant, (key, json.dumps(about)), data):
            return False
        found = await self._connection.run("GET", self._key(tenant, kind, key))
        if found is None:
            return True
        number, latest, counted = json.loads(found)
        facts = version_facts(kind, key, Version(number, latest), None)
        if not self._signer.check(counted, "version", tenant, facts):
            return False
        if kind == CACHE:
            made_at = about["made_at"]
            return isinstance(made_at, int | float) and made_at * 1e6 >= number
        return bool(latest == mac)

    async def set(
        self, tenant: str, kind: str, key: str, now: float, latest: str, lifetime: float | None = None
    ) -> None:
        """Make *latest* the only valid version of a row, for *lifetime* seconds."""
        version = Version(int(now * 1e6), latest)
        mac = self._signer.sign("version", tenant, version_facts(kind, key, version, None))
        expiry = () if lifetime is None else ("PX", max(1, math.ceil(lifetime * 1000)))
        await self._connection.run("SET", self._key(tenant, kind, key), json.dumps([*version, mac]), *expiry)

    async def drop(self, tenant: str, key: str, now: float, stale_until: float) -> None:
        """Note that a cached value was dropped: no value from before is valid."""
        await self.set(tenant, CACHE, key, now, "", min(max(stale_until - now, 0.0), 1e9))

    def _key(self, tenant: str, kind: str, key: str) -> bytes:
        return self._connection.key(tenant, "version", f"{kind}:{key}", self._namespace)
