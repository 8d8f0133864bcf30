"""What the stock hooks send to Redis for a call, as Redis's own MONITOR sees it: ``python -m benchmarks.redis_commands``.

Commands of a script run inside Redis and take no round trip: they stand apart. ``docs/scale.md`` has the table.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from callgate import Gate, Hook, ToolCall, User, tool
from callgate.hooks import Cache, CircuitBreaker, Concurrency, Consent, Limit, Quota
from callgate.providers.stores.base import Grant
from callgate.providers.stores.redis.store import RedisStore

REDIS = os.environ.get("CALLGATE_TEST_REDIS", "redis://127.0.0.1:6379/0")
CALLS = 8
ANN = User("ann", "acme")
HEAD = ("Hook", "Round trips a call", "Commands inside scripts")


class NoRedis(Exception):
    """There is none; the message says where it was looked for."""


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


HOOKS: Mapping[str, Callable[[], Hook]] = {
    "`Quota`, one limit": lambda: Quota("1000000/hour"),
    "`Quota`, three limits": lambda: Quota([Limit(10**6, seconds) for seconds in (3_600, 7_200, 86_400)]),
    "`Concurrency(shared=True)`": lambda: Concurrency(1_000, shared=True),
    "`Cache`, a miss": lambda: Cache(60),
    "`Cache`, a miss, with a tag": lambda: Cache(60, entry_tags=["one"]),
    "`Cache`, a hit": lambda: Cache(60),
    "`CircuitBreaker(shared=True)`, closed": lambda: CircuitBreaker(shared=True, refresh=60.0),
    "`Consent`, given": lambda: Consent(scope="all"),
}


@contextmanager
def monitored(prefix: str) -> Generator[Callable[[], Counter[str]]]:
    """A function that gives what was sent since it was last asked: ``tcp`` from outside, ``lua`` inside a script.

    Raises:
        NoRedis: there is no server.
    """
    import redis

    client, seen, marks = redis.Redis.from_url(REDIS), Counter[str](), threading.Semaphore(0)
    try:
        client.ping()
    except redis.ConnectionError as error:
        raise NoRedis(f"no Redis at {REDIS.rpartition('@')[2]} (set CALLGATE_TEST_REDIS): {error}") from None

    def listen(monitor: Any) -> None:
        ours = False
        for told in monitor.listen():
            if told["client_type"] == "lua":  # nobody else's command comes between those of a script
                seen["lua"] += ours
                continue
            ours = prefix in told["command"]
            if not ours:
                continue
            if told["command"].startswith("ECHO"):
                marks.release()
                if told["command"].endswith("end"):
                    return
            else:
                seen["tcp"] += 1

    def taken(mark: str = "now") -> Counter[str]:
        client.echo(f"{prefix} {mark}")
        if not marks.acquire(timeout=30.0):
            raise SystemExit("the benchmark is broken: Redis's MONITOR says nothing")
        found = seen.copy()
        seen.clear()
        return found

    with client.monitor() as monitor:
        thread = threading.Thread(target=listen, args=(monitor,), daemon=True)
        thread.start()
        try:
            yield taken
        finally:
            taken("end")
            thread.join(30.0)
            if keys := list(client.scan_iter(match=f"{prefix}:*", count=1_000)):
                client.delete(*keys)
            client.close()


async def count(name: str, taken: Callable[[], Counter[str]], prefix: str) -> tuple[str, ...]:
    """A line of the table."""
    store = RedisStore(REDIS, prefix=f"{prefix}:{list(HOOKS).index(name)}")
    async with Gate([look], [HOOKS[name]()], store=store, allow_unguarded=True) as gate:
        if "given" in name:
            await store.consents.grant(ANN.tenant or "", Grant(ANN.id, "look", "all", 0.0, None))
        hits = "a hit" in name
        for n in (-2, -1):  # scripts are loaded, and what is to be hit is there
            await gate.call(ToolCall(id="c", name="look", arguments={"n": 0 if hits else n}), user=ANN)
        taken()
        for n in range(CALLS):
            result = await gate.call(ToolCall(id="c", name="look", arguments={"n": 0 if hits else n}), user=ANN)
            if result.outcome != "success":
                raise SystemExit(f"the benchmark is broken: {name} gave {result}")
        found = taken()
    return name, *(f"{found[where] / CALLS:g}" for where in ("tcp", "lua"))


async def rows() -> list[tuple[str, ...]]:
    """The lines of the table.

    Raises:
        NoRedis: there is no server.
    """
    prefix = f"callgate-bench-{uuid.uuid4().hex[:12]}"
    with monitored(prefix) as taken:
        return [await count(name, taken, prefix) for name in HOOKS]


def main() -> int:
    from benchmarks.statements import as_table

    try:
        print(as_table(asyncio.run(rows()), HEAD), end="")
    except NoRedis as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
