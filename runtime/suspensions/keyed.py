"""The suspensions of idempotency keys: a repeat of a suspended call gets the same suspension."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from callgate.errors import Conflict
from callgate.providers.principal import User
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState, SuspensionStore
from callgate.runtime.effects.keys import scope_of
from callgate.runtime.suspensions.resumption import SuspendedCall
from callgate.tools.values import hash_of


def first_id(user: User, tool: str, key: str, namespace: str) -> str:
    """Return the id of the first suspension of a key."""
    return hash_of(["suspension", *scope_of(user, namespace), tool, key])[:32]


def next_id(id: str) -> str:
    """Return the id of the suspension of the same key that follows another one."""
    return hash_of(["suspension", id])[:32]


async def suspensions_of(
    store: SuspensionStore, user: User, tool: str, key: str, namespace: str
) -> AsyncGenerator[tuple[str, SuspensionRecord | None]]:
    """Yield the ids and suspensions of a key, oldest first; the last one is the free id, with None."""
    id = first_id(user, tool, key, namespace)
    while True:
        wait = await store.get(user.tenant or "", id)
        yield id, wait
        if wait is None:
            return
        id = next_id(id)


async def find_same(
    store: SuspensionStore,
    bound: SuspendedCall,
    key: str,
    namespace: str,
    opened: Callable[[SuspensionRecord], SuspendedCall | None],
) -> tuple[str, SuspensionRecord | None, SuspendedCall | None]:
    """Return the open suspension of the same call, or a free id with None.

    Raises:
        Conflict: a call with other arguments is suspended under this key.
    """
    async for id, wait in suspensions_of(store, bound.user, bound.tool, key, namespace):
        known = None if wait is None else opened(wait)
        if wait is None or (known is not None and _is_same(known, bound)):
            return id, wait, known
    raise AssertionError("the suspensions of a key end with a free id")


async def was_edited(
    store: SuspensionStore,
    user: User,
    tool: str,
    key: str,
    namespace: str,
    opened: Callable[[SuspensionRecord], SuspendedCall | None],
    hashes: tuple[str, str],
) -> bool:
    """Return whether an approver replaced the arguments of a call: *hashes* are those that were asked for, and that ran."""
    async for _, wait in suspensions_of(store, user, tool, key, namespace):
        known = None if wait is None else opened(wait)
        if known is not None and (known.asked_hash, known.input_hash) == hashes:
            return True
    return False


def is_open(wait: SuspensionRecord, now: float) -> bool:
    """Return whether a suspension still waits."""
    return wait.state is SuspensionState.WAITING and (wait.expires_at is None or wait.expires_at > now)


def _is_same(known: SuspendedCall, bound: SuspendedCall) -> bool:
    """Return whether two calls with one key wait for the same decision."""
    if (known.version, known.policy, known.place) != (bound.version, bound.policy, bound.place):
        return False
    if known.frozen and bound.frozen:
        if known.asked_hash != bound.asked_hash:
            raise Conflict(f"{bound.tool}: this key was used with other arguments")
        return True
    return bool(known.arguments == bound.arguments)
