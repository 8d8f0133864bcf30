"""The suspensions of idempotency keys: a repeat of a suspended call gets the same suspension.

A call has a chain of suspensions for each of its identities: the caller's key, or the job, and the declared key or the
arguments of a tool with ``dedupe``. The first chain has the record of the call; the others have links to it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence

from callgate.errors import Conflict, InFlight
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import FROZEN
from callgate.hooks.plan import plan_of
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState, SuspensionStore
from callgate.runtime.effects.keys import identifier, scope_of
from callgate.runtime.suspensions.resumption import SuspendedCall, caller_key, is_whole, signed
from callgate.tools.values import dump, hash_of

LINK = "link"
"""The kind of a record that links to the record of a suspended call. It never waits itself."""
VERSION = 1


def chain_of(user: User, tool: str, key: str, namespace: str) -> str:
    """Return the chain of a caller's key or of a job: the id of its first suspension."""
    return hash_of(["suspension", *scope_of(user, namespace), tool, key])[:32]


def chains_of(ctx: InvokeContext, namespace: str) -> list[str]:
    """Return the chains of a call; none if no call can repeat it."""
    key = caller_key(ctx) or ctx.run.job  # a job that a crash left asks again
    chains = [] if key is None else [chain_of(ctx.user, ctx.tool_id, key, namespace)]
    own = _own_identity(ctx, namespace)
    return chains if own is None else [*chains, hash_of(["suspension", own])[:32]]


def _own_identity(ctx: InvokeContext, namespace: str) -> str | None:
    """Return the identity of a call beside the key of its caller; None without one."""
    record = plan_of(ctx).record
    if not record.definition.key and (record.dedupe is None or caller_key(ctx) is not None):
        return None
    if ctx.run.claim is not None:
        return ctx.run.claim.effect.key
    if ctx.run.input_state == FROZEN:
        return identifier(record, namespace)(ctx)
    try:  # neither parsed nor converted
        return hash_of(["raw", *scope_of(ctx.user, namespace), ctx.tool_id, ctx.raw_input])
    except (TypeError, ValueError, RecursionError):
        return None


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
    """Return whether two calls with one key wait for the same decision."""
    if (known.tool, known.version, known.policy, known.place) != (bound.tool, bound.version, bound.policy, bound.place):
        return False
    if known.user.id != bound.user.id:
        raise InFlight(f"{bound.tool}: another user's call with this key is suspended")
    if known.frozen and bound.frozen:
        if known.asked_hash != bound.asked_hash:
            raise Conflict(f"{bound.tool}: this key was used with other arguments")
        return True
    return bool(known.arguments == bound.arguments)
