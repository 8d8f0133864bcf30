"""The suspensions of idempotency keys: a repeat of a suspended call gets the same suspension.

A call has a chain of suspensions for each of its identities: the caller's key, or the job, or with ``joins_waiting`` the
arguments as sent, if the tool declares no identity; and the declared key or the arguments of a tool with ``dedupe``. A call
with none of them has the ids of its request and of the call. The first chain has the record of the call; the others have
links to it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from callgate.errors import Conflict, InFlight
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import FROZEN
from callgate.providers.principal import ANONYMOUS, User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState, SuspensionStore
from callgate.runtime.effects.idempotency_keys import Identifier, scope_of
from callgate.runtime.suspensions.resumption import Resumed, SuspendedCall, caller_key, is_whole, signed
from callgate.tools.values import dump, hash_of

LINK = "link"
"""The kind of a record that links to the record of a suspended call. It never waits itself."""
VERSION = 1
MAX_KEYS = 100
"""Maximum number of further keys under which callers may repeat one suspended call."""


def chain_of(user: User, tool: str, key: str, namespace: str) -> str:
    """Return the chain of a caller's key or of a job: the id of its first suspension."""
    return hash_of(["suspension", *scope_of(user, namespace), tool, key])[:32]


def chains_of(ctx: InvokeContext, namespace: str) -> list[str]:
    """Return the chains of a call; none if no call can repeat it."""
    key = caller_key(ctx) or ctx.run.job  # a job that a crash left asks again
    chains = [] if key is None else [chain_of(ctx.user, ctx.tool_id, key, namespace)]
    own = _own_identity(ctx, namespace)
    if own is None and key is None and _has_ids(ctx):
        identities = {Identifier(ctx.run.plan.record, namespace).key_of(ctx)}
    else:  # a replay asks again before its arguments are parsed
        identities = {own, None if own is None else raw_identity(ctx, namespace)}
    if key is None and own is None and (repeat := repeat_of(ctx, namespace)) is not None:
        chains.append(repeat)
    return [*chains, *(hash_of(["suspension", one])[:32] for one in sorted(filter(None, identities)))]


def repeat_identity(user: User, tool: str, arguments: object, namespace: str) -> str | None:
    """Return the chain of a user's calls of a tool with the same arguments as sent; None if they are not JSON.

    Anonymous callers have none: two of them are not the same user.
    """
    if user.id == ANONYMOUS.id:
        return None
    try:
        return hash_of(["suspension", "repeat", *scope_of(user, namespace), tool, arguments])[:32]
    except (TypeError, ValueError, RecursionError):
        return None


def repeat_of(ctx: InvokeContext, namespace: str) -> str | None:
    """Return the chain of a call with ``joins_waiting``; a resumed call keeps its chain."""
    resumed = ctx.run.resumed
    if not ctx.run.joins_waiting:
        return None
    if isinstance(resumed, Resumed):
        return resumed.bound.repeat
    return repeat_identity(ctx.user, ctx.tool_id, ctx.raw_input, namespace)


def _own_identity(ctx: InvokeContext, namespace: str) -> str | None:
    """Return the identity of a call beside the key of its caller; None without one."""
    record = ctx.run.plan.record
    if not record.definition.key and (record.dedupe is None or caller_key(ctx) is not None):
        return None
    if ctx.run.claim is not None:
        return ctx.run.claim.effect.key
    return Identifier(record, namespace).key_of(ctx) if ctx.run.input_state == FROZEN else raw_identity(ctx, namespace)


def raw_identity(ctx: InvokeContext, namespace: str) -> str | None:
    """Return the identity of a call by its arguments as they were sent, if it was first suspended before they were parsed."""
    resumed = ctx.run.resumed
    if isinstance(resumed, Resumed) and (resumed.bound.frozen or resumed.bound.raw is not None):
        return resumed.bound.raw
    if ctx.run.input_state == FROZEN and resumed is None:
        return None
    try:  # neither parsed nor converted
        return hash_of(["raw", *scope_of(ctx.user, namespace), ctx.tool_id, ctx.raw_input])
    except (TypeError, ValueError, RecursionError):
        return None


def _has_ids(ctx: InvokeContext) -> bool:
    """Return whether its caller has given ids to the request and to the call: together they identify the call."""
    run = ctx.run
    return run.request_id is not None and run.tool_call is not None and not run.tool_call.synthetic_id


def next_id(id: str) -> str:
    """Return the id of the suspension of the same chain that follows another one."""
    return hash_of(["suspension", id])[:32]


async def suspensions_in(
    store: SuspensionStore, keys: SigningKeys, tenant: str, chain: str
) -> AsyncGenerator[tuple[str, SuspensionRecord | None]]:
    """Yield the suspensions of a chain, oldest first, with their ids in it; the last one is the free id, with None."""
    id = chain
    while True:
        wait = await store.get(tenant, id)
        if wait is None:
            yield id, None
            return
        if wait.kind == LINK:
            wait = await store.get(tenant, _target(wait)) if is_whole(keys, tenant, wait) else None
        if wait is not None:
            yield id, wait
        id = next_id(id)


def link(keys: SigningKeys, tenant: str, id: str, wait: SuspensionRecord) -> SuspensionRecord:
    """Return a record at *id* that links to a suspension. Its time is the end of the wait, so that pruning spares it."""
    body = dump({"v": VERSION, "link": wait.id})
    made_at = wait.made_at if wait.expires_at is None else wait.expires_at
    made = SuspensionRecord(id, LINK, wait.tool, wait.user, made_at, wait.expires_at, body, "", SuspensionState.VOID)
    return signed(keys, tenant, made)


def _target(wait: SuspensionRecord) -> str:
    target: str = json.loads(wait.body)["link"]
    return target


async def find_same(
    store: SuspensionStore,
    keys: SigningKeys,
    bound: SuspendedCall,
    chains: Sequence[str],
    opened: Callable[[SuspensionRecord], SuspendedCall | None],
) -> tuple[list[str], SuspensionRecord | None, SuspendedCall | None]:
    """Return the open suspension of the same call, or None, and the free ids of the chains that have none of it.

    Raises:
        Conflict: a call with other arguments is suspended under one of its keys.
        InFlight: the same call of another user is suspended.
    """
    free = list[str]()
    same: tuple[SuspensionRecord, SuspendedCall] | None = None
    for chain in chains:
        async for id, wait in suspensions_in(store, keys, bound.user.tenant or "", chain):
            known = None if wait is None else opened(wait)
            if wait is None:
                free.append(id)
            elif known is not None and _is_same(known, bound):
                same = same or (wait, known)
                break
    return (free, None, None) if same is None else (free, *same)


def with_key(
    keys: SigningKeys, tenant: str, known: SuspensionRecord | None, ctx: InvokeContext
) -> SuspensionRecord | None:
    """Return the next version of a suspension, with the key of a caller who repeats it; None if it needs no such key.

    The claim of the effect takes all of its keys: from then on, none of them is free for another order.

    Raises:
        InFlight: the call is suspended under too many keys.
    """
    given = caller_key(ctx) if ctx.tool.key else None
    if known is None:
        return None
    bound = SuspendedCall.load(known.body)
    if given is None or given in {bound.idempotency_key, *bound.more_keys}:
        return None
    if len(bound.more_keys) >= MAX_KEYS:
        raise InFlight(f"{bound.tool}: the call is suspended under {MAX_KEYS} other keys; repeat it under one of them")
    body = replace(bound, more_keys=(*bound.more_keys, given)).dump()
    return signed(keys, tenant, replace(known, number=known.number + 1, body=body))


async def was_edited(
    store: SuspensionStore,
    keys: SigningKeys,
    tenant: str,
    chains: Sequence[str],
    opened: Callable[[SuspensionRecord], SuspendedCall | None],
    hashes: tuple[str, str],
) -> bool:
    """Return whether an approver replaced the arguments of a call: *hashes* are those that were asked for, and that ran."""
    for chain in chains:
        async for _, wait in suspensions_in(store, keys, tenant, chain):
            known = None if wait is None else opened(wait)
            if known is not None and (known.asked_hash, known.input_hash) == hashes:
                return True
    return False


def is_open(wait: SuspensionRecord, now: float) -> bool:
    """Return whether a suspension still waits."""
    return wait.state is SuspensionState.WAITING and (wait.expires_at is None or wait.expires_at > now)


def _is_same(known: SuspendedCall, bound: SuspendedCall) -> bool:
    """Return whether two calls with one key are the same call, which waits for this decision or a later one."""
    if (known.tool, known.version, known.policy) != (bound.tool, bound.version, bound.policy):
        return False
    if known.place != bound.place and not known.has_passed(bound):
        return False
    if known.user.id != bound.user.id or _is_of_another(known, bound):
        raise InFlight(f"{bound.tool}: another user's call with this key is suspended")
    if known.frozen and bound.frozen:
        if known.asked_hash != bound.asked_hash:
            raise Conflict(f"{bound.tool}: this key, or this call id, was used with other arguments")
        return True
    if known.frozen:
        return known.raw is not None and known.raw == bound.raw
    return bool(known.arguments == bound.arguments)


def _is_of_another(known: SuspendedCall, bound: SuspendedCall) -> bool:
    """Return whether another anonymous caller made a call: only a session, a job or a request identifies such a caller."""
    if bound.user.id != ANONYMOUS.id:
        return False
    if bound.session_id is not None:
        return known.session_id != bound.session_id
    return known.request_id != bound.request_id and (bound.job is None or known.job != bound.job)
