"""``Cache``: what a ``read`` tool returned, kept for later calls of the same user with the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import orjson

from callgate.errors import ControlRespond, HookError
from callgate.hooks.base import Hook, Step
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.capacity.single_flight import Flight, Flights, Miss
from callgate.providers.principal import ANONYMOUS
from callgate.providers.stores.base import CacheEntry, CacheStore, Store
from callgate.providers.stores.memory import Key, MemoryCache
from callgate.tools.definition import Effect
from callgate.tools.naming import did_you_mean
from callgate.tools.values import canonical, compact, digest, thaw

Vary: TypeAlias = Callable[[InvokeContext], Any]
Tags: TypeAlias = Collection[str] | Callable[[InvokeContext], Iterable[str]]

VARIES: dict[str, Vary] = {
    "session": lambda ctx: ctx.session_id,
    "roles": lambda ctx: sorted(ctx.user.roles),
    "scopes": lambda ctx: sorted(ctx.user.scopes),
}
"""Names that ``vary_by`` takes."""
_PLAIN = frozenset({str, int, bool, type(None)})
_PLANS = 4096
_AS_IT_IS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS  # a hit is what the tool returned


class Cache(Hook):
    """Answers a call with what the tool returned before, for the same user and arguments (contract C15-C15c).

    Kept is what the tool returned, before redaction: each reader's own redaction, validation and shaping run on it
    again. It is kept once the call that made it has succeeded, its output checked. Calls that miss at the same time
    run the tool once: one leads, the others wait for it, no longer than their own deadlines, and take what it got.

    Args:
        ttl: seconds for which a value is fresh.
        stale: further seconds in which a value may be served while one caller renews it.
        shared: every user of a tenant gets the same value; by default each user has their own. Without a tenant there
            is one set of users. Calls of nobody in particular are kept apart by session, and not kept without one.
        vary_by: what else makes a difference to the output: ``"session"``, ``"roles"``, ``"scopes"``, or functions of
            the context that return a JSON value.
        tags: names to drop entries by, or a function of the context that returns them.
        store: where to keep values; by default the gate's store.
        force: also for tools that are not ``effect="read"``.
        mode: ``"shadow"`` answers nothing: it notes which calls it has seen, no values, and records what would have
            been a hit.

    Raises:
        HookError: an option with a value that means nothing.
    """

    concern = "cache"
    priority = 0

    def __init__(
        self,
        *,
        ttl: float,
        stale: float = 0.0,
        shared: bool = False,
        vary_by: Iterable[str | Vary] = (),
        tags: Tags = (),
        store: Store | CacheStore | None = None,
        force: bool = False,
        mode: Literal["enforce", "shadow"] = "enforce",
    ) -> None:
        if not ttl > 0 or not stale >= 0:
            raise HookError(f"Cache(ttl={ttl!r}, stale={stale!r}): give seconds, ttl above 0 and stale at least 0")
        if isinstance(vary_by, str) or isinstance(tags, str):
            raise HookError("Cache: vary_by and tags take collections; write vary_by=['roles'], tags=['prices']")
        self.ttl, self.stale, self.shared, self.mode = ttl, stale, shared, mode
        self.effects = None if force else frozenset({Effect.READ})
        varied = [_vary(one) for one in vary_by]
        self._varied, self._vary = [name for name, _ in varied], [read for _, read in varied]
        self._tags = tags if callable(tags) else frozenset(tags)
        given: Any = store  # isinstance() would ask a store for parts that it does not keep
        self._store: CacheStore | None = getattr(given, "cache", given)
        self._last: CacheStore | None = None
        self.flights = Flights()
        self._prefixes: dict[Any, tuple[Any, Any]] = {}

    # ------------------------------------------------------------------ stages

    def will_read_cache(self, ctx: InvokeContext) -> Step:
        """Respond with what is kept; remember what was looked for otherwise."""
        store = self._last = self._store or ctx.plan.host.store.cache
        place = self.place(ctx)
        if place is None:
            return None
        if type(store) is not MemoryCache:
            return self._ask(ctx, store, place)
        self._answer(ctx, store, place, store.get_now(place))  # it does not wait: no coroutine
        return None

    async def _ask(self, ctx: InvokeContext, store: CacheStore, place: Key) -> None:
        try:
            entry = await store.get(*place)
        except Exception as error:  # noqa: BLE001  (a cache that is down is a cache without the value)
            ctx.suppress(error)
            entry = None
        self._answer(ctx, store, place, entry)

    def _answer(self, ctx: InvokeContext, store: CacheStore, place: Key, entry: CacheEntry | None) -> None:
        if entry is not None:
            host = ctx.plan.host
            now = host.monotonic() + host.wall_offset
            # A stale one is served while somebody renews it; else this call does that.
            if now < entry.fresh_until or (now < entry.stale_until and self.flights.has(host, place)):
                try:
                    value = orjson.loads(entry.value)
                except ValueError as error:  # not what we wrote: as good as nothing
                    ctx.suppress(error)
                else:
                    raise ControlRespond(value)  # as ctx.respond does
        ctx.data[self] = miss = Miss(self, store, place)
        if ctx.step.shadow:  # what it notes is noted when the call is over
            miss.board(ctx)

    def did_cache_miss(self, ctx: InvokeContext) -> Step:
        """Lead the calls that ask for the same, or wait for the one that leads."""
        miss = ctx.data.get(self)
        if miss is None or ctx.step.shadow:
            return None
        flight = self.flights.join(ctx, miss)
        return None if flight is None else self._follow(ctx, miss, flight)

    async def _follow(self, ctx: InvokeContext, miss: Miss, flight: Flight) -> None:
        data = await self.flights.wait(miss, flight)
        if data is not None:
            ctx.data[self] = None
            ctx.cache_hit = True
            ctx.respond(orjson.loads(data))
        miss.board(ctx)

    def will_write_cache(self, ctx: InvokeContext) -> None:
        """Hold on to what the tool returned; it is stored when the call has succeeded."""
        miss = ctx.data.get(self)
        if miss is None or not ctx.executed or ctx.cache_hit or not ctx.validate_response:
            return
        if ctx.step.shadow:
            miss.value = b"null"
            return
        output = ctx._output if ctx.scrubber is None else ctx.scrubber.value(ctx._output)
        try:
            miss.value = compact(orjson.dumps(output, option=_AS_IT_IS))
        except TypeError:  # no JSON, or a number beyond 64 bits: such outputs are not kept
            return
        miss.tags = frozenset(self._tags(ctx)) if callable(self._tags) else self._tags

    # ------------------------------------------------------------------ for applications

    async def drop_tags(self, tenant: str | None, tags: Iterable[str], *, store: Store | None = None) -> int:
        """Forget a tenant's entries that have one of the tags; how many there were in the store.

        What this process is computing at the moment is not kept either. *store* is needed before the first call of a
        cache that uses the gate's store.

        Raises:
            HookError: the store is not known yet.
        """
        if isinstance(tags, str):
            raise HookError(f"drop_tags takes a collection of tags; write [{tags!r}]")
        kept = store.cache if store is not None else self._store or self._last
        if kept is None:
            raise HookError("this cache has seen no call, so it knows no store; give it one: Cache(store=...)")
        self.flights.forget(tenant or "")
        dropped = await kept.drop_tags(tenant or "", list(tags))
        self.flights.forget(tenant or "")  # what began while the store was dropping may have read from before
        return dropped

    # ------------------------------------------------------------------ keys

    def place(self, ctx: InvokeContext) -> Key | None:
        """Tenant and key of a call's value; None when nothing tells whose it would be."""
        user = ctx.user
        tenant = user.tenant or ""
        owner: Any = None
        if not self.shared:
            owner = user.id
            if owner == ANONYMOUS.id:  # nobody in particular: a session is all that tells them apart (C26)
                if not ctx.session_id:
                    return None
                owner = [ctx.session_id]
        varies = [read(ctx) for read in self._vary] if self._vary else None
        prefix = self._prefixes.get(ctx.plan) or self._prefix(ctx)
        hashed = prefix[ctx.step.shadow].copy()
        hashed.update(_bytes(tenant, owner, varies, ctx._input))
        return tenant, hashed.hexdigest()

    def _prefix(self, ctx: InvokeContext) -> tuple[Any, Any]:
        """The hash of what a plan's keys have in common: the tool, its version and its schemas."""
        tool = ctx.plan.definition
        shape = digest([thaw(tool.parameters), thaw(tool.output_schema)])
        common = [tool.name, tool.version, shape, self._varied]
        value, seen = (blake2b(canonical([kind, *common]), digest_size=20) for kind in ("value", "seen"))
        if len(self._prefixes) >= _PLANS:  # plans are made anew as hooks come and go
            self._prefixes.clear()
        self._prefixes[ctx.plan] = value, seen
        return value, seen


def _vary(given: str | Vary) -> tuple[str, Vary]:
    if isinstance(given, str):
        if given not in VARIES:
            raise HookError(f"Cache: vary_by has no {given!r}{did_you_mean(given, VARIES)}; or give a function")
        return given, VARIES[given]
    if not callable(given) or inspect.iscoroutinefunction(given):
        raise HookError(f"Cache: vary_by takes names and plain functions of the context, not {given!r}")
    return getattr(given, "__qualname__", type(given).__name__), given


def _bytes(tenant: str, owner: Any, varies: Any, arguments: Any) -> bytes:
    """Bytes that are the same for equal JSON values, ``2`` and ``2.0`` among them, and differ for others."""
    if not _PLAIN.issuperset(map(type, arguments.values())):
        arguments = _whole_numbers(arguments)
    if varies is not None and not _PLAIN.issuperset(map(type, varies)):
        varies = _whole_numbers(varies)
    about = [tenant, owner, varies, arguments]
    try:
        return orjson.dumps(about, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return canonical(about)


def _whole_numbers(value: Any) -> Any:
    kind = value.__class__
    if kind is str or kind is int or value is None:
        return value
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_numbers(item) for item in value]
    if kind is float and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


__all__ = ["Cache"]
