"""One process of several under one limit: ``python places_worker.py ADDRESS PREFIX CALLS PLACES TTL``.

Every body enters its name in a sorted set of Redis while it runs, and the set remembers its largest size: that is what
the limit is checked against, and the hook knows nothing of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import Any

import redis.asyncio

from callgate import Gate, User, tool
from callgate.hooks.stock.capacity.concurrency import Concurrency
from callgate.providers.stores.redis.store import RedisStore

ENTER = """
redis.call('ZADD', KEYS[1], 0, ARGV[1])
local n = redis.call('ZCARD', KEYS[1])
if n > tonumber(redis.call('GET', KEYS[2]) or '0') then redis.call('SET', KEYS[2], n) end
return n
"""
AT_ONCE = 24


async def main(address: str, prefix: str, calls: int, places: int, ttl: float) -> None:
    server: Any = redis.asyncio.Redis.from_url(address)
    enter = server.register_script(ENTER)
    inside, most = f"{prefix}:inside", f"{prefix}:most"

    @tool(effect="read")
    async def work(n: int) -> int:
        me = f"{os.getpid()}:{n}"
        await enter(keys=[inside, most], args=[me])
        await asyncio.sleep(random.random() * 0.004)
        await server.zrem(inside, me)
        return n

    hook = Concurrency(places, shared=True, queue=calls, queue_timeout=120, ttl=ttl)
    numbers = iter(range(calls))
    done = 0
    store = RedisStore(address, prefix=prefix)
    async with Gate([work], [hook], store=store) as gate:

        async def caller() -> None:
            nonlocal done
            for n in numbers:
                assert await gate.invoke("work", {"n": n}, user=User("u")) == n
                done += 1

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    await server.aclose()
    print(done)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
