"""The keys that limits count by: user, tenant, tool, session, or the text that a function of the context returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

from callgate.errors import HookError
from callgate.hooks.context import InvokeContext
from callgate.providers.kinds import refuse_result
from callgate.tools.naming import did_you_mean

Reader: TypeAlias = Callable[[InvokeContext], str]
By: TypeAlias = str | Reader | Sequence[str | Reader]
"""``"user"``, ``"tenant"``, ``"tool"``, ``"session"``, a function from the context to a text, or several of them."""
Key: TypeAlias = tuple[str, str]
"""A tenant and a key within it, as stores take them."""
KeyOf: TypeAlias = Callable[[InvokeContext], Key]


def _session(ctx: InvokeContext) -> str:
    """Key of the session; a call without a session counts by user."""
    return f"u{ctx.user.id}" if ctx.run.session_id is None else f"s{ctx.run.session_id}"


_READERS: dict[str, Reader] = {
    "user": attrgetter("user.id"),
    "tool": attrgetter("run.plan.definition.name"),
    "session": _session,
}
_NAMES = ("user", "tenant", "tool", "session")


def key_of(hook: str, by: By, name: str | None, kind: str) -> KeyOf:
    """Build the function that returns the key of a call.

    Keys by user, session or function belong to the tenant of the call. A key by tool alone, or by nothing, is shared by
    all tenants.

    Args:
        hook: the name of the hook, for error messages.
        by: the parts of the key.
        name: separates limits that one store counts; default: *kind*.
        kind: text made of the hook's settings.

    Raises:
        HookError: an unknown part, or a lambda without *name*.
    """
    parts = (by,) if isinstance(by, str) or callable(by) else tuple(by)
    for part in parts:
        if not callable(part) and part not in _NAMES:
            raise HookError(
                f"{hook}: by is {part!r}{did_you_mean(str(part), _NAMES)}; or give a function of the context"
            )
    spelled = [part if isinstance(part, str) else getattr(part, "__qualname__", "<lambda>") for part in parts]
    if name is None and any("<lambda>" in part for part in spelled):
        raise HookError(f"{hook}: by is a lambda, which has no name to keep its counts under; give name=...")
    prefix = f"{name or kind}|{','.join(spelled)}|"
    readers = [_READERS[part] if isinstance(part, str) else _checked(hook, part) for part in parts if part != "tenant"]
    return _maker(prefix, readers, of_tenant=any(part != "tool" for part in parts))


def _checked(hook: str, part: Reader) -> Reader:
    """Return the function of the application with a check of its result: another type has no spelling of its own."""

    def read(ctx: InvokeContext) -> str:
        key: object = part(ctx)
        return key if isinstance(key, str) else refuse_result(hook, "by", key, "a text")

    return read


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
        for reader in readers:  # each with its length: two different lists of parts never make the same key
            part = reader(ctx)
            key += f"{len(part)}:{part}"
        return ctx.user.tenant or "", key

    return several
