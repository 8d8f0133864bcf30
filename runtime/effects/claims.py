"""The surroundings of a claim in the effect ledger: outer calls, and the hooks that write rows with it."""

from __future__ import annotations

from collections.abc import Iterable

from callgate.hooks.context import InvokeContext
from callgate.hooks.effects import EffectRecorder
from callgate.hooks.selection import Registration
from callgate.providers.stores.base import Store


def waits_for_itself(ctx: InvokeContext, tenant: str, key: str) -> bool:
    """Return whether an outer call of this nested call runs the same effect."""
    outer = ctx.run.outer
    while outer is not None:
        claim = outer.claim
        if claim is not None and (claim.tenant, claim.effect.key) == (tenant, key):
            return True
        outer = outer.outer
    return False


def recorders_of(auditing: Iterable[Registration], store: Store) -> tuple[EffectRecorder[InvokeContext], ...]:
    """Return the hooks that write their rows in the ledger's transaction, of those *auditing*, in the order of ``will_audit``.

    Each hook locks its chain of rows during the transaction. To avoid deadlocks, all calls lock in the same order and
    lock each chain once.
    """
    return tuple(
        one.hook
        for one in auditing
        if hasattr(one.hook, "joins_ledger")
        and (one.filter, one.tenants, one.is_class, one.option("mode", "enforce")) == (None, None, False, "enforce")
        and one.hook.joins_ledger(store)
    )
