"""The rate limits and concurrency limits of many calls in one transaction."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import TypeAlias

from callgate.providers.stores.base import Limit
from callgate.providers.stores.sql.batches import Step
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.statements import Statement
from callgate.providers.stores.sql.shared import SharedRequest
from callgate.providers.stores.windows import counts_at, granted, refused, returned

_QUOTA = "tenant = :tenant AND key = :key AND seconds = :seconds"
_SAME_QUOTA = "q.tenant = given.tenant AND q.key = given.key AND q.seconds = given.seconds"
_QUOTA_KEY = {"tenant": "text", "key": "text", "seconds": "float8"}

ADD_QUOTAS = Statement(
    """INSERT INTO callgate_quotas (tenant, key, seconds, period, used, used_before, ends)
    VALUES (:tenant, :key, :seconds, :period, 0, 0, 0) ON CONFLICT DO NOTHING""",
    """INSERT INTO callgate_quotas (tenant, key, seconds, period, used, used_before, ends)
    SELECT tenant, key, seconds, period, 0, 0, 0 FROM {given} ON CONFLICT DO NOTHING""",
    **_QUOTA_KEY,
    period="bigint",
)
READ_QUOTAS = Statement(
    f"SELECT tenant, key, seconds, period, used, used_before, ends FROM callgate_quotas WHERE {_QUOTA}",  # noqa: S608
    f"""SELECT q.tenant, q.key, q.seconds, q.period, q.used, q.used_before, q.ends
    FROM callgate_quotas q JOIN {{given}} ON {_SAME_QUOTA} ORDER BY 1, 2, 3 FOR UPDATE OF q""",  # noqa: S608
    **_QUOTA_KEY,
)
WRITE_QUOTAS = Statement(
    f"UPDATE callgate_quotas SET period = :period, used = :used, used_before = :used_before, ends = :ends WHERE {_QUOTA}",  # noqa: S608
    f"""UPDATE callgate_quotas q SET
        period = given.period, used = given.used, used_before = given.used_before, ends = given.ends
    FROM {{given}} WHERE {_SAME_QUOTA}""",  # noqa: S608
    **_QUOTA_KEY,
    period="bigint",
    used="bigint",
    used_before="bigint",
    ends="float8",
)

_PERMIT = "tenant = :tenant AND key = :key AND token = :token"
_SAME_PERMIT = "p.tenant = given.tenant AND p.key = given.key AND p.token = given.token"
_PERMITS_KEY = {"tenant": "text", "key": "text"}
_PERMIT_KEY = {**_PERMITS_KEY, "token": "text"}

LOCK_PERMITS = Statement("", "SELECT pg_advisory_xact_lock(lock) FROM {given}", lock="bigint")
FREE_PERMITS = Statement(
    "DELETE FROM callgate_permits WHERE tenant = :tenant AND key = :key AND ends <= :now",
    """DELETE FROM callgate_permits p USING {given}
    WHERE p.tenant = given.tenant AND p.key = given.key AND p.ends <= given.now""",
    **_PERMITS_KEY,
    now="float8",
)
COUNT_PERMITS = Statement(
    "SELECT :tenant, :key, count(*) FROM callgate_permits WHERE tenant = :tenant AND key = :key",
    """SELECT given.tenant, given.key,
        (SELECT count(*) FROM callgate_permits p WHERE p.tenant = given.tenant AND p.key = given.key) FROM {given}""",
    **_PERMITS_KEY,
)
FIND_PERMITS = Statement(
    f"SELECT tenant, key, token FROM callgate_permits WHERE {_PERMIT}",  # noqa: S608
    f"SELECT p.tenant, p.key, p.token FROM callgate_permits p JOIN {{given}} ON {_SAME_PERMIT}",  # noqa: S608
    **_PERMIT_KEY,
)
RELEASE_PERMITS = Statement(
    f"DELETE FROM callgate_permits WHERE {_PERMIT}",  # noqa: S608
    f"DELETE FROM callgate_permits p USING {{given}} WHERE {_SAME_PERMIT}",  # noqa: S608
    **_PERMIT_KEY,
)
ACQUIRE_PERMITS = Statement(
    """INSERT INTO callgate_permits (tenant, key, token, ends) VALUES (:tenant, :key, :token, :ends)
    ON CONFLICT (tenant, key, token) DO UPDATE SET ends = excluded.ends""",
    """INSERT INTO callgate_permits (tenant, key, token, ends) SELECT tenant, key, token, ends FROM {given}
    ON CONFLICT (tenant, key, token) DO UPDATE SET ends = excluded.ends""",
    **_PERMIT_KEY,
    ends="float8",
)

_Row: TypeAlias = tuple[int, int, int]


class QuotaRequests:
    """The requests to rate limits in one transaction; see ``SharedRequests``."""

    def __init__(self, requests: Sequence[QuotaRequest], now: float) -> None:
        self._requests, self._now = requests, now

    def reads(self) -> Sequence[Step]:
        where = [
            {"tenant": tenant, "key": key, "seconds": seconds, "period": 0}
            for tenant, key, seconds in sorted({request.key for request in self._requests})
        ]
        return (ADD_QUOTAS, where), (READ_QUOTAS, [{**one} for one in where])

    def compute(self, rows: Sequence[list[Row]]) -> Sequence[Step]:
        known: dict[tuple[str, str, float], tuple[_Row, float]] = {
            (row[0], row[1], row[2]): ((row[3], row[4], row[5]), row[6]) for row in rows[1]
        }
        changed = set[tuple[str, str, float]]()
        for request in self._requests:
            row, ends = known[request.key]
            seconds = request.key[2]
            counts = counts_at(self._now, seconds, row)
            cost, limit = request.cost, request.limit
            if cost < 0:
                row = returned(counts, -cost)
            elif cost > limit.amount or counts.sliding + cost > limit.amount:
                request.result = refused(counts, limit, cost)
                continue
            else:
                row = (counts.number, counts.used + cost, counts.before)
                request.result = granted(counts_at(self._now, seconds, row), limit)
            known[request.key] = row, max(ends, (row[0] + 2) * seconds)
            changed.add(request.key)
        values = [
            {
                "tenant": key[0],
                "key": key[1],
                "seconds": key[2],
                "period": row[0],
                "used": row[1],
                "used_before": row[2],
                "ends": ends,
            }
            for key in sorted(changed)
            for row, ends in (known[key],)
        ]
        return ((WRITE_QUOTAS, values),)


class QuotaRequest(SharedRequest):
    """Take *cost* units of a rate limit; a negative cost gives units back."""

    __slots__ = ("cost", "key", "limit")
    place = 1
    of = QuotaRequests

    def __init__(self, tenant: str, key: str, limit: Limit, cost: int) -> None:
        super().__init__()
        self.key = tenant, key, float(limit.seconds)
        self.limit, self.cost = limit, cost

    @property
    def row(self) -> Hashable:
        return self.place, self.key


class PermitRequests:
    """The requests to concurrency limits in one transaction; see ``SharedRequests``."""

    def __init__(self, requests: Sequence[PermitRequest], now: float) -> None:
        self._requests, self._now = requests, now

    def reads(self) -> Sequence[Step]:
        keys = [{"tenant": tenant, "key": key} for tenant, key in sorted({one.key for one in self._requests})]
        locks = sorted({lock_of(key["tenant"], key["key"]) for key in keys})
        return (
            (LOCK_PERMITS, [{"lock": lock} for lock in locks]),
            (FREE_PERMITS, [{**key, "now": self._now} for key in keys]),
            (COUNT_PERMITS, keys),
            (FIND_PERMITS, [_permit(*permit) for permit in sorted({one.permit for one in self._requests})]),
        )

    def compute(self, rows: Sequence[list[Row]]) -> Sequence[Step]:
        taken = {(tenant, key): number for tenant, key, number in rows[2]}
        held: dict[tuple[str, str, str], float | None] = {(row[0], row[1], row[2]): 0.0 for row in rows[3]}
        changed: dict[tuple[str, str, str], float | None] = {}
        for request in self._requests:
            permit, key = request.permit, request.key
            has = held.get(permit) is not None
            if request.permits is None:
                request.result = has
                if has:
                    taken[key] -= 1
                    held[permit] = changed[permit] = None
                continue
            request.result = has or taken[key] < request.permits
            if request.result:
                taken[key] += not has
                held[permit] = changed[permit] = self._now + request.ttl
        return (
            (RELEASE_PERMITS, [_permit(*permit) for permit in sorted(changed) if changed[permit] is None]),
            (
                ACQUIRE_PERMITS,
                [{**_permit(*permit), "ends": ends} for permit, ends in sorted(changed.items()) if ends is not None],
            ),
        )


def _permit(tenant: str, key: str, token: str) -> dict[str, object]:
    return {"tenant": tenant, "key": key, "token": token}


class PermitRequest(SharedRequest):
    """Acquire or renew a permit of at most *permits* for *ttl* seconds; without *permits*, release it."""

    __slots__ = ("key", "permit", "permits", "ttl")
    place = 2
    of = PermitRequests

    def __init__(self, tenant: str, key: str, token: str, permits: int | None = None, ttl: float = 0.0) -> None:
        super().__init__()
        self.key = tenant, key
        self.permit = tenant, key, token
        self.permits, self.ttl = permits, ttl

    @property
    def row(self) -> Hashable:
        return self.place, self.key


def lock_of(tenant: str, key: str) -> int:
    """Return the number of a key's advisory lock in PostgreSQL. Two keys with one number only wait for each other."""
    name = f"{len(tenant)}:{tenant}{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), signed=True)
