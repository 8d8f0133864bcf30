"""Repeats of a suspended call by a caller that keeps no handle, such as a model: the last outcome, given once.

With the option ``joins_waiting``, calls of one user with the same tool and arguments have a chain of suspensions. A mark
beside the last one says that its caller got the outcome: the next such call is a new one.
"""

from __future__ import annotations

from dataclasses import replace

from callgate.errors import StoreConflict, UnknownTool
from callgate.providers.principal import User
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.runtime.suspensions.keyed import is_open, repeat_identity, suspensions_in
from callgate.runtime.suspensions.reads import note_in_time
from callgate.runtime.suspensions.resolution import find_suspended
from callgate.runtime.suspensions.resumption import SuspendedCall, handle_of, signed
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.tools.values import dump, hash_of

DELIVERED = "delivered"
"""The kind of the mark. It never waits."""
KNOWN_FOR = 86_400.0
"""Seconds after the expiry of a suspension in which a repeat of its call still gets the outcome."""


async def find_repeated(
    waits: SuspensionManager, user: User, tool: str, arguments: object, *, but: str | None = None
) -> str | None:
    """Return the handle of the last call of this user with these arguments whose outcome its caller has not got.

    The call waits, runs or has ended. *but* is the handle of a call that does not count. None if there is none, or if
    the tool or its policies are others since.

    Raises:
        StoreError: the store failed.
    """
    identity = repeat_identity(user, tool, arguments, waits.keys.namespace)
    found = None if identity is None else await _last(waits, user, identity, but)
    if found is None:
        return None
    wait, bound = found
    tenant, now = user.tenant or "", waits.now()
    if is_open(wait, now):
        try:
            fits = waits.is_bound_to(waits.plan_for(tool), bound)
        except UnknownTool:
            fits = False
        return handle_of(waits.keys, tenant, wait.id) if fits else None
    is_old = wait.expires_at is not None and wait.expires_at + KNOWN_FOR <= now
    if is_old or await waits.store().suspensions.get(tenant, _mark_of(bound)) is not None:
        return None
    return handle_of(waits.keys, tenant, wait.id)


async def note_delivered(waits: SuspensionManager, user: User, handle: str) -> None:
    """Note that the caller of a suspended call got its outcome. A call that still waits stays as it is.

    A store that fails or hangs is logged: the outcome is given again then.
    """
    await note_in_time(_mark(waits, user, handle))


async def _mark(waits: SuspensionManager, user: User, handle: str) -> None:
    found = await find_suspended(waits, handle, user)
    if found is None or found[1].repeat is None:
        return
    last = await _last(waits, user, found[1].repeat, None)
    if last is None or is_open(last[0], waits.now()):
        return
    wait, bound = last
    mark = replace(
        wait,
        id=_mark_of(bound),
        kind=DELIVERED,
        tool="",
        body=dump({}),
        state=SuspensionState.VOID,
        number=1,
        made_at=waits.now(),
    )
    tenant = user.tenant or ""
    try:
        await waits.store().suspensions.put(tenant, signed(waits.keys, tenant, mark))
    except StoreConflict:  # two repeats at the same time both get it
        pass


async def _last(
    waits: SuspensionManager, user: User, identity: str, but: str | None
) -> tuple[SuspensionRecord, SuspendedCall] | None:
    """Return the last suspension of a chain; damaged rows do not count."""
    tenant, last = user.tenant or "", None
    async for _, wait in suspensions_in(waits.store().suspensions, waits.keys, tenant, identity):
        if wait is None or (but is not None and but.startswith(f"{wait.id}.")):
            continue
        bound = waits.opened(tenant, wait)
        if bound is not None and bound.user.id == user.id:
            last = wait, bound
    return last


def _mark_of(bound: SuspendedCall) -> str:
    return hash_of([DELIVERED, bound.nonce])[:32]
