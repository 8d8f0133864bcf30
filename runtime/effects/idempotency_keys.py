"""Idempotency keys: two calls with the same key are the same effect.

A declared key and the key of a caller are two identities of one effect: a call repeats it if either is the same.
"""

from __future__ import annotations

from callgate.hooks.context import InvokeContext
from callgate.providers.ids import checked_key
from callgate.providers.principal import ANONYMOUS, User
from callgate.providers.stores.effects import Alias, EffectRecord
from callgate.tools.definition import Effect
from callgate.tools.record import KeyScope, ToolRecord
from callgate.tools.values import hash_of


def scope_of(user: User, namespace: str) -> list[str]:
    """Return what every hash of a user's keys begins with: the namespace if there is one, the tenant and the user."""
    return [*([namespace] if namespace else []), user.tenant or "", user.id]


def key_scope_of(record: ToolRecord) -> KeyScope:
    """Return the scope of a tool's declared key; the default is the tenant for irreversible tools, else the user."""
    default: KeyScope = "tenant" if record.definition.effect is Effect.IRREVERSIBLE else "user"
    return record.key_scope or default


def shared_by_tenants(record: ToolRecord) -> bool:
    """Return True if all tenants share the effects of a tool's declared key: their rows have no tenant."""
    return bool(record.definition.key) and key_scope_of(record) == "global"


def declared_scope(user: User, namespace: str, scope: KeyScope) -> list[str]:
    """Return what the hash of a declared key begins with."""
    if scope == "user":
        return scope_of(user, namespace)
    return [*([namespace] if namespace else []), scope, *([user.tenant or ""] if scope == "tenant" else [])]


class Identifier:
    """The idempotency keys of the calls of one tool.

    The first available source wins: the declared key fields, the caller's key, the arguments if the tool sets
    ``dedupe="arguments"``, then, for a nested call, its place in the outer call, then session, request and call id. A call
    without any of them gets no key. Beside a declared key, the caller's key is an alias; see ``alias_of``.
    A key is a hash over *namespace*, tenant, user, tool and that source. Keys of different users therefore differ, even
    if a tool passes its key to a service without tenants. Only a declared key has the scope that the tool states.
    """

    __slots__ = ("_by_arguments", "_fields", "_identity", "_namespace", "_scope", "_tool")

    def __init__(self, record: ToolRecord, namespace: str = "") -> None:
        self._tool, self._namespace = record.id, namespace
        self._fields, self._by_arguments = tuple(record.definition.key), record.dedupe == "arguments"
        self._identity = record.identity
        self._scope: KeyScope = key_scope_of(record)

    def key_of(self, ctx: InvokeContext) -> str | None:
        """Return the idempotency key of the effect of a call; None for a call without a key.

        Raises:
            Invalid: see ``given_key``.
        """
        run, tool, namespace = ctx.run, self._tool, self._namespace
        if self._fields:
            values = run.input if self._identity is None else self._identity(run.input)
            declared = ["declared", [values.get(name) for name in self._fields]]
            return hash_of([*declared_scope(run.user, namespace, self._scope), tool, *declared])
        if run.idempotency_key is not None:
            return given_key(run.user, tool, run.idempotency_key, namespace)
        what: list[object]
        if self._by_arguments:
            what = ["arguments", run.hash_of_input()]
        elif run.outer is not None:
            from callgate.runtime.pipeline.nesting import place_in_outer  # few tools call others

            outer, place = place_in_outer(run)
            if outer is not None:  # its key has its scope: another user who runs it again repeats its effects, too
                return hash_of([*([namespace] if namespace else []), "nested", tool, outer.effect.key, *place])
            what = ["nested", *place]
        elif run.tool_call is not None and run.request_id is not None and not run.tool_call.synthetic_id:
            what = ["call", run.session_id, run.request_id, run.tool_call.id]
        elif run.resumed is not None:
            what = ["resumed", run.resumed.id]
        else:
            return None
        return hash_of([*scope_of(run.user, namespace), tool, *what])


def alias_of(ctx: InvokeContext, record: ToolRecord, namespace: str) -> Alias | None:
    """Return the identity of an effect by its caller's key; None without one, or if that is its only identity.

    Raises:
        Invalid: see ``given_key``.
    """
    given = ctx.run.idempotency_key
    if given is None or not record.definition.key:
        return None
    return Alias(given_key(ctx.user, record.id, given, namespace), given)


def more_aliases(ctx: InvokeContext, namespace: str) -> list[Alias]:
    """Return the identities by the keys of callers who repeated a suspended call under its declared key."""
    keys = () if ctx.run.resumed is None else ctx.run.resumed.bound.more_keys
    return [Alias(given_key(ctx.user, ctx.tool_id, key, namespace), key) for key in keys]


def tenant_of(user: User, record: ToolRecord) -> str:
    """Return the tenant that the rows of a tool's effects have: none if all tenants share them."""
    return "" if shared_by_tenants(record) else user.tenant or ""


def given_key(user: User, tool: str, key: str, namespace: str) -> str:
    """Return the key in the ledger of an idempotency key that a caller passes.

    Raises:
        Invalid: it is not a text of 1 to 255 characters.
    """
    return hash_of([*scope_of(user, namespace), tool, "given", checked_key(key)])


def is_of_another(ctx: InvokeContext, found: EffectRecord, effect: EffectRecord) -> bool:
    """Return True if another caller made the effect. Only a session, a job or an outer call identifies an anonymous one."""
    if found.user != effect.user or ctx.user.id != ANONYMOUS.id:
        return found.user != effect.user
    if effect.session_id is not None:
        return found.session_id != effect.session_id
    run = ctx.run
    known = run.job is not None or run.resumed is not None or run.outer is not None
    return not known or found.request_id != effect.request_id
