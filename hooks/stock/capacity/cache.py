"""``Cache``: stores the output of ``read`` tools for later calls of the same user with the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeAlias, Unpack

import orjson

from callgate.errors import ControlRespond, HookError
from callgate.hooks.base import Hook, Step
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.host import CallPlan
from callgate.hooks.stock.capacity.single_flight import Miss, SingleFlight
from callgate.hooks.stock.options import HookOptions, check_seconds, checked, set_options
from callgate.hooks.stock.store_time import store_time
from callgate.providers.kinds import refuse_result
from callgate.providers.principal import ANONYMOUS
from callgate.providers.ranks import Rank
from callgate.providers.recipe import Recipe
from callgate.providers.stores.base import CacheEntry, CacheStore, Store
from callgate.providers.stores.memory.changes import MemoryKey
from callgate.providers.stores.memory.store import MemoryCache
from callgate.tools.definition import Effect
from callgate.tools.naming import did_you_mean
from callgate.tools.record import Style
from callgate.tools.values import canonical, compact, digest, thaw

Vary: TypeAlias = Callable[[InvokeContext], object]
Tags: TypeAlias = Collection[str] | Callable[[InvokeContext], Iterable[str]]

VARIES: dict[str, Vary] = {
    "session": lambda ctx: ctx.run.session_id,
    "roles": lambda ctx: sorted(ctx.user.roles),
    "scopes": lambda ctx: sorted(ctx.user.scopes),
}
"""By the names that ``vary_by`` takes, the function that reads the value."""
_PLAIN = frozenset({str, int, bool, type(None)})
_MAX_PLANS = 4096
_EXACT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS  # a hit equals what the tool returned


class Cache(Hook):
    """Response cache: answers a call with the stored output of an earlier call of the same user and arguments.

    The cache stores the tool's own output, before redaction, after the call has succeeded. On a hit, redaction,
    validation and output shaping run again for the reader. Concurrent misses are a single flight: one call runs the
    tool, and the others wait for its output, each no longer than its own deadline.

    Args:
        ttl: seconds for which an entry is fresh.
        stale: further seconds in which an entry may be served while one caller renews it.
        shared: True gives all users of a tenant the same entries; by default each user has their own. Calls without a
            tenant are one group. Anonymous calls have entries per session, and none without a session. Where a provider
            of the scope ``"session"`` or ``"request"`` feeds the tool or one of its hooks, or such a provider exists and the
            tool takes its context, entries are those of one user and session.
        vary_by: what else the output depends on: ``"session"``, ``"roles"``, ``"scopes"``, or functions of the context
            that return a JSON value.
        entry_tags: names for ``drop_tags``, or a function of the context that returns them. An output whose function
            fails, or returns another type, is not stored.
        store: where entries are kept; default: the store of the gate.
        force: True also caches tools that are not ``effect="read"``.
        store_timeout: seconds that a lookup or a write may take; then the call goes on without the cache.
        options: the options of every hook: ``tools``, ``tags``, ``tenants``, ``mode``, ``filter``, ... With
            ``mode="shadow"`` the cache never answers. It notes the calls without their outputs, and records would-be
            hits.

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "cache"
    priority = 0
    whole = True
    keeps_state = True

    @checked
    def __init__(
        self,
        ttl: float,
        *,
        stale: float = 0.0,
        shared: bool = False,
        vary_by: Iterable[str | Vary] = (),
        entry_tags: Tags = (),
        store: Store | CacheStore | None = None,
        force: bool = False,
        store_timeout: float = 0.5,
        **options: Unpack[HookOptions],
    ) -> None:
        check_seconds("Cache", "ttl", ttl)
        check_seconds("Cache", "stale", stale, least=0.0)
        check_seconds("Cache", "store_timeout", store_timeout)
        for name, given in (("vary_by", vary_by), ("entry_tags", entry_tags)):
            if isinstance(given, str) or (name == "vary_by" and callable(given)):
                shown = repr(given) if isinstance(given, str) else getattr(given, "__name__", "...")
                raise HookError(f"Cache: {name} takes a collection; write {name}=[{shown}]")
        if callable(options.get("tags")):
            raise HookError("Cache: tags selects tools by their tags; for the tags of entries write entry_tags=...")
        if not force and "effects" in options:
            raise HookError("Cache: tools that are not effect='read' are cached only with force=True; add it")
        set_options(self, options)
        self.ttl, self.stale, self.shared, self.store_timeout = ttl, stale, shared, store_timeout
        if not force:
            self.effects = frozenset({Effect.READ})
        varied = [_vary(one) for one in vary_by]
        self._varied, self._vary = [name for name, _ in varied], [read for _, read in varied]
        self._entry_tags: Callable[[InvokeContext], Iterable[str]] | frozenset[str]
        self._entry_tags = entry_tags if callable(entry_tags) else frozenset(entry_tags)
        backend: Any = store  # isinstance() would read the other parts of the store too
        part = getattr(backend, "cache", backend)
        self._store: CacheStore | None = part
        self._given: Store | None = None if part is backend else backend
        self._last: CacheStore | None = None
        self.single_flight = SingleFlight()
        self._prefixes: dict[object, tuple[tuple[Any, Any], bool]] = {}

    # ------------------------------------------------------------------ stages

    def will_read_cache(self, ctx: InvokeContext) -> Step:
        """Respond with a stored entry, or note the miss."""
        host = ctx.run.plan.host
        if self._given is not None:
            store = self._last = host.own_store(self._given).cache
        else:
            store = self._last = host.store.cache if self._store is None else self._store  # an empty one is falsy
        key = self.key(ctx)
        if key is None:
            return None
        if type(store) is not MemoryCache:
            return self._look_up(ctx, store, key)
        entry = store.get_now(key)  # in memory: no await, so no coroutine
        if entry is not None:
            self._respond(ctx, key, entry)
        self._note(ctx, Miss(self, store, key))
        return None

    async def _look_up(self, ctx: InvokeContext, store: CacheStore, key: MemoryKey) -> None:
        miss = Miss(self, store, key)
        self._respond(ctx, key, await self._entry(ctx, store, key))
        self._note(ctx, miss)

    async def _entry(self, ctx: InvokeContext, store: CacheStore, key: MemoryKey) -> CacheEntry | None:
        try:
            with store_time(ctx, self.store_timeout):
                return await store.get(*key)
        except Exception as error:  # noqa: BLE001  (a failed lookup counts as a miss)
            ctx.suppress(error)
            return None

    def _respond(self, ctx: InvokeContext, key: MemoryKey | None, entry: CacheEntry | None) -> None:
        """Respond with the entry if it is fresh, or stale while a call renews *key*."""
        if entry is None:
            return
        host = ctx.run.plan.host
        now = host.monotonic() + host.clock.offset
        # Without a call that renews a stale entry, this call renews it.
        if now < entry.fresh_until or (key and now < entry.stale_until and self.single_flight.has(host, key)):
            try:
                value = orjson.loads(entry.value)
            except ValueError as error:  # the entry is not JSON: a miss
                ctx.suppress(error)
            else:
                raise ControlRespond(value, parsed=True)

    def _note(self, ctx: InvokeContext, miss: Miss) -> None:
        ctx.data[self] = miss
        if ctx.run.step.shadow:  # a shadow notes the call when it is over
            miss.register(ctx)

    def did_cache_miss(self, ctx: InvokeContext) -> Step:
        """Lead the single flight of this key, or wait for the call that leads it."""
        miss = ctx.data.get(self)
        if miss is None or ctx.run.step.shadow:
            return None
        leader = self.single_flight.join(ctx, miss)
        if leader is not None:
            return self._follow(ctx, miss, leader)
        return self._look_again(ctx, miss) if miss.leads is not None and miss.outdated else None

    async def _look_again(self, ctx: InvokeContext, miss: Miss) -> None:
        """Look up the value again: an earlier flight ended between the lookup and the start of this one."""
        entry = await self._entry(ctx, miss.store, miss.key)
        try:
            self._respond(ctx, None, entry)
        except ControlRespond:
            ctx.data[self] = None
            ctx.run.cache_hit = True
            miss.finish(entry and entry.value)
            raise

    async def _follow(self, ctx: InvokeContext, miss: Miss, leader: Miss) -> None:
        data = await self.single_flight.wait(miss, leader)
        if data is not None:
            ctx.data[self] = None
            ctx.run.cache_hit = True
            raise ControlRespond(orjson.loads(data), parsed=True)
        miss.register(ctx)

    def will_write_cache(self, ctx: InvokeContext) -> None:
        """Note the tool's output; it is stored when the call has succeeded."""
        miss = ctx.data.get(self)
        if miss is None or not ctx.run.executed or ctx.run.cache_hit or not ctx.run.validate_response:
            return
        if ctx.run.step.shadow:
            miss.value = b"null"
            return
        output = ctx.run.output if ctx.run.scrubber is None else ctx.run.scrubber.value(ctx.run.output)
        try:
            value = compact(orjson.dumps(output, option=_EXACT))
        except TypeError:  # not JSON, or a number beyond 64 bits: never stored
            return
        try:
            miss.tags = self._entry_tags if isinstance(self._entry_tags, frozenset) else _tags(self._entry_tags(ctx))
        except Exception as error:  # noqa: BLE001  (the tool has run: its output is not stored, and the caller gets it)
            ctx.suppress(error)
        else:
            miss.value = value

    # ------------------------------------------------------------------ for applications

    async def drop_tags(self, tenant: str | None, tags: Iterable[str], *, store: Store | None = None) -> int:
        """Drop a tenant's entries that have one of the entry tags, and return how many the store had.

        Outputs of calls in progress in this process are not stored either. A cache that uses the gate's store needs
        *store* here until its first call.

        Raises:
            HookError: the store is not known yet.
        """
        if isinstance(tags, str):
            raise HookError(f"drop_tags takes a collection of tags; write [{tags!r}]")
        kept = store.cache if store is not None else self._store if self._last is None else self._last
        if kept is None:
            raise HookError(
                "this cache has had no call yet, so its store is unknown; write drop_tags(..., store=...) or Cache(..., store=...)"
            )
        self.single_flight.forget(tenant or "")
        dropped = await kept.drop_tags(tenant or "", list(tags))
        self.single_flight.forget(tenant or "")  # a call that began during the drop may have read old data
        return dropped

    # ------------------------------------------------------------------ keys

    def key(self, ctx: InvokeContext) -> MemoryKey | None:
        """Return the tenant and key of a call's entry; None for an anonymous call without a session."""
        user = ctx.user
        tenant = user.tenant or ""
        owner: Any = None
        prefix, fed = self._prefixes.get(ctx.run.plan) or self._prefix(ctx)
        if fed:
            if user.id == ANONYMOUS.id and not ctx.run.session_id:
                return None
            owner = [user.id, ctx.run.session_id]
        elif not self.shared:
            owner = user.id
            if owner == ANONYMOUS.id:  # only the session separates one anonymous caller from another
                if not ctx.run.session_id:
                    return None
                owner = [ctx.run.session_id]
        varies = [read(ctx) for read in self._vary] if self._vary else None
        hashed = prefix[ctx.run.step.shadow].copy()
        hashed.update(_bytes(tenant, owner, varies, ctx.run.input))
        return tenant, hashed.hexdigest()

    def _prefix(self, ctx: InvokeContext) -> tuple[tuple[Any, Any], bool]:
        """Hash what all keys of a plan share: the tool, its version and its schemas; add whether a session feeds it."""
        tool = ctx.run.plan.definition
        shape = digest([thaw(tool.parameters), thaw(tool.output_schema)])
        common = [tool.name, tool.version, shape, self._varied]
        value, seen = (blake2b(canonical([kind, *common]), digest_size=20) for kind in ("value", "seen"))
        if len(self._prefixes) >= _MAX_PLANS:  # a plan is rebuilt when hooks are added or removed
            self._prefixes.clear()
        made = self._prefixes[ctx.run.plan] = (value, seen), _fed_by_session(ctx.run.plan)
        return made


def _fed_by_session(plan: CallPlan[InvokeContext]) -> bool:
    """Return True if the output may depend on the session or the request: on a provider, or on the context of the tool."""
    if plan.record.context_parameter is not None or plan.record.style is Style.RECORD:
        return plan.host.registry.recipes.has_sessions  # the context gives all of them
    wanted = [recipe for supply in plan.supplies.values() for _, recipe in supply.wanted]
    return any(_is_of_session(recipe) for recipe in wanted)


def _is_of_session(recipe: Recipe) -> bool:
    """Return True for a provider of a session or a request, and for one of an execution that needs such a provider."""
    return recipe.rank in (Rank.SESSION, Rank.REQUEST) or any(map(_is_of_session, recipe.needs))


def _vary(given: str | Vary) -> tuple[str, Vary]:
    if isinstance(given, str):
        if given not in VARIES:
            raise HookError(
                f"Cache: vary_by has {given!r}{did_you_mean(given, VARIES)}; or give a function of the context"
            )
        return given, VARIES[given]
    if not callable(given) or inspect.iscoroutinefunction(given):
        raise HookError(f"Cache: vary_by takes names and plain functions of the context, not {given!r}")
    return getattr(given, "__qualname__", type(given).__name__), _checked(given)


def _checked(given: Vary) -> Vary:
    """Return the function of the application with a check of its result: a coroutine is no value."""

    def read(ctx: InvokeContext) -> object:
        value = given(ctx)
        return refuse_result("Cache", "vary_by", value, "a JSON value") if inspect.iscoroutine(value) else value

    return read


def _tags(given: object) -> frozenset[str]:
    if isinstance(given, Iterable) and not isinstance(given, str):  # the characters of a text would be the tags
        tags = frozenset(given)
        if all(isinstance(tag, str) for tag in tags):
            return tags
    return refuse_result("Cache", "entry_tags", given, "a collection of names")


def _bytes(tenant: str, owner: object, varies: Any, arguments: Any) -> bytes:
    """Serialise the key; equal JSON values give equal bytes, ``2`` and ``2.0`` included."""
    about = [tenant, owner, varies, arguments]
    for value in chain(arguments.values(), varies or ()):  # a loop: for so few values a set costs more
        if value.__class__ not in _PLAIN:
            about[2:] = _whole_numbers(varies), _whole_numbers(arguments)
            break
    try:
        return orjson.dumps(about, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return canonical(about)


def _whole_numbers(value: Any) -> object:
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
