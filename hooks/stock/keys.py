"""Whom a limit counts for: keys by user, tenant, tool, session, or what a function says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

from callgate.errors import HookError
from callgate.hooks.context import InvokeContext
from callgate.tools.naming import did_you_mean

Reader: TypeAlias = Callable[[InvokeContext], str]
By: TypeAlias = str | Reader | Sequence[str | Reader]
"""``"user"``, ``"tenant"``, ``"tool"``, ``"session"``, a function of the context to a text, or several of them."""
Key: TypeAlias = tuple[str, str]
"""Tenant and key, as stores take them."""
KeyOf: TypeAlias = Callable[[InvokeContext], Key]


def _session(ctx: InvokeContext) -> str:
    """Calls without a session count by user."""
    return f"u{ctx.user.id}" if ctx.session_id is None else f"s{ctx.session_id}"


_READERS: dict[str, Reader] = {
    "user": attrgetter("user.id"),
    "tool": attrgetter("plan.definition.name"),
    "session": _session,
}
_NAMES = ("user", "tenant", "tool", "session")


def key_of(hook: str, by: By, name: str | None, kind: str) -> KeyOf:
    """The key of a call. *kind* says what is counted, *name* tells limits apart that are counted in one store.

    Users, sessions and what a function says belong to their tenant: the key of another tenant is another one. A key by
    tool alone, or by nothing, is one for all tenants.

    Raises:
        HookError: no such part, or a function without a name of its own where *name* is missing.
    """
    parts = (by,) if isinstance(by, str) or callable(by) else tuple(by)
    for part in parts:
        if not callable(part) and part not in _NAMES:
            raise HookError(f"{hook}: by={part!r}{did_you_mean(str(part), _NAMES)}; or give a function of the context")
    spelled = [part if isinstance(part, str) else getattr(part, "__qualname__", "<lambda>") for part in parts]
    if name is None and any("<lambda>" in part for part in spelled):
        raise HookError(f"{hook}: a lambda has no name by which its counts are told apart; give name=...")
    prefix = f"{name or kind}|{','.join(spelled)}|"
    readers = [_READERS[part] if isinstance(part, str) else part for part in parts if part != "tenant"]
    return _maker(prefix, readers, of_tenant=any(part != "tool" for part in parts))


def _maker(prefix: str, readers: Sequence[Reader], *, of_tenant: bool) -> KeyOf:
    if not readers:
        return (lambda ctx: (ctx.user.tenant or "", prefix)) if of_tenant else lambda _: ("", prefix)
    if len(readers) == 1:
        (only,) = readers
        if of_tenant:
            return lambda ctx: (ctx.user.tenant or "", prefix + only(ctx))
        return lambda ctx: ("", prefix + only(ctx))

    if len(readers) == 2:
        first, second = readers

        def both(ctx: InvokeContext) -> Key:
            one, other = first(ctx), second(ctx)
            return ctx.user.tenant or "", f"{prefix}{len(one)}:{one}{len(other)}:{other}"

        return both

    def several(ctx: InvokeContext) -> Key:
        key = prefix
        for reader in readers:  # with its length, so that no two lists of parts make one key
            part = reader(ctx)
            key += f"{len(part)}:{part}"
        return ctx.user.tenant or "", key

    return several
