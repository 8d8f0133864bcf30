"""The floors: one tool, governed by hand. No hook objects, no dispatch, no library; what every ratio is taken to.

``floor1``   parse, validate, run.
``floor2``   floor1 plus, written inline: authorise, hold a quota, look into a cache, validate the output, audit.
``floor2s``  floor2 with the strict parse that Callgate owes its callers: the fair floor, since orjson lets through
             duplicate keys, and anything of any size and depth.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import fastjsonschema
import orjson
from jiter import from_json
from typing_extensions import TypedDict

from benchmarks.timing import Call

ARGS_JSON = '{"a": 1, "b": 2, "note": "x"}'
IN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
OUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}


class Sum(TypedDict):
    sum: int


Body = Callable[..., Awaitable[Sum]]
Invoke = Callable[[str, str, Any], Awaitable[Any]]


async def add(a: int, b: int, note: str | None = None) -> Sum:
    """Add two integers."""
    return {"sum": a + b}


async def add_slowly(a: int, b: int, note: str | None = None) -> Sum:
    """Add two integers, after a sleep of 10 ms."""
    await asyncio.sleep(0.01)
    return {"sum": a + b}


class Refused(Exception):
    pass


class Principal:
    __slots__ = ("id", "scopes")

    def __init__(self, id: str, scopes: frozenset[str]) -> None:
        self.id, self.scopes = id, scopes


PRINCIPAL = Principal("u1", frozenset({"math", "read"}))


class Quota:
    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.used, self.limit = 0, limit


# ---------------------------------------------------------------------------------------------------------- the floors


def floor1(fn: Body = add) -> Call:
    loads, validate = orjson.loads, fastjsonschema.compile(IN_SCHEMA)

    async def call() -> Sum:
        args = loads(ARGS_JSON)
        validate(args)
        return await fn(**args)

    return call


def floor2(fn: Body = add) -> Call:
    tools, quota, cache, audit, clock, ids = _state(fn)
    loads = orjson.loads

    async def invoke(name: str, raw: str, who: Principal) -> Any:
        start = clock()
        call_id = next(ids)
        outcome = "ok"
        try:
            fn, check_in, check_out, needs = tools[name]
            args = loads(raw)
            check_in(args)
            if not needs <= who.scopes:
                raise Refused(name)
            key = (name, who.id, raw)
            hit = cache.get(key)
            if hit is not None:
                outcome = "hit"
                return hit
            if quota.used >= quota.limit:
                raise Refused(name)
            quota.used += 1
            try:
                result = await fn(**args)
            finally:
                quota.used -= 1
            check_out(result)
            return result
        except BaseException as e:
            outcome = type(e).__name__
            raise
        finally:
            audit.append((call_id, name, who.id, outcome, clock() - start))

    return lambda: invoke("add", ARGS_JSON, PRINCIPAL)


def floor2s(fn: Body = add) -> Call:
    invoke = floor2s_invoke(fn)
    return lambda: invoke("add", ARGS_JSON, PRINCIPAL)


def floor2s_invoke(fn: Body = add) -> Invoke:
    """floor2s itself.

    The schema does what it can: it refuses what is no object, and infinity (jiter reads 1e999 so) is no integer.
    Nested levels, values and digits cannot be too many in a short text.
    """
    tools, quota, cache, audit, clock, ids = _state(fn)

    async def invoke(name: str, raw: str, who: Principal) -> Any:
        start = clock()
        call_id = next(ids)
        outcome = "ok"
        try:
            fn, check_in, check_out, needs = tools[name]
            if len(raw) > SHORT or "\\u0000" in raw:
                args = parse_long(raw)
            else:
                args = from_json(raw.encode(), catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="none")
            check_in(args)
            if not needs <= who.scopes:
                raise Refused(name)
            key = (name, who.id, raw)
            hit = cache.get(key)
            if hit is not None:
                outcome = "hit"
                return hit
            if quota.used >= quota.limit:
                raise Refused(name)
            quota.used += 1
            try:
                result = await fn(**args)
            finally:
                quota.used -= 1
            check_out(result)
            return result
        except BaseException as e:
            outcome = type(e).__name__
            raise
        finally:
            audit.append((call_id, name, who.id, outcome, clock() - start))

    return invoke


def _state(fn: Body) -> tuple[Any, ...]:
    tools = {
        "add": (fn, fastjsonschema.compile(IN_SCHEMA), fastjsonschema.compile(OUT_SCHEMA), frozenset({"math"})),
    }
    cache: dict[Any, Any] = {}
    audit: deque[Any] = deque(maxlen=4096)
    return tools, Quota(1_000_000), cache, audit, time.perf_counter_ns, itertools.count()


# -------------------------------------------------------------------------------------------- what a short text cannot be

MAX_BYTES, MAX_DEPTH, MAX_NODES, MAX_BITS = 262_144, 64, 50_000, 1_329  # 400 digits
SHORT = 2 * MAX_DEPTH


def parse_long(raw: str) -> Any:
    """The limits one by one, for a text that could break them."""
    data = raw.encode()
    if len(data) > MAX_BYTES or ("\\u0000" in raw and "\\u0000" in raw.replace("\\\\", "")):
        raise Refused("too long, or a NUL character")
    value = from_json(data, catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="none")
    level, nodes = [value], 0
    for _ in range(MAX_DEPTH + 1):
        nodes += len(level)
        if nodes > MAX_NODES or any(type(item) is int and item.bit_length() > MAX_BITS for item in level):
            raise Refused("too many values, or digits")
        level = [part for item in level if type(item) in (dict, list) for part in _parts(item)]
        if not level:
            return value
    raise Refused("too deep")


def _parts(item: Any) -> Any:
    return item.values() if type(item) is dict else item
