"""Reconciliation of unknown effects: hooks look up the outcome, and the ledger records it once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from callgate.hooks.base import name_of
from callgate.hooks.effects import Committed, Finding, NoEffect
from callgate.hooks.selection import Registration, merge_registrations, why_not
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.effects import EffectRecord, EffectState, EffectStore
from callgate.runtime.effects.receipts import receipt_of
from callgate.tools.definition import ToolDefinition

LIMIT = 10.0
"""Timeout of one hook, in seconds."""


async def reconcile(
    effects: EffectStore, now: Callable[[], float], tenant: str, effect: EffectRecord, hooks: Sequence[Any]
) -> EffectRecord:
    """Ask the hooks in turn until one knows the outcome; return the effect as the ledger then has it."""
    for hook in hooks:
        try:
            async with asyncio.timeout(LIMIT):
                found = await hook.reconcile(tenant, effect)
            if not isinstance(found, Committed | NoEffect | None):
                raise TypeError(f"reconcile returned {type(found).__name__}, which says nothing")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001  (the effect stays unknown: a guess must not run it again)
            emit(LogEvent.PROVIDER_FAILED, provider=name_of(hook), phase="reconcile", error=error)
            continue
        if found is not None:
            await settle_unknown(effects, now(), tenant, effect, found)
            return await effects.get(tenant, effect.key) or effect
    return effect


async def settle_unknown(
    effects: EffectStore, at: float, tenant: str, effect: EffectRecord, found: Finding, *, note: str | None = None
) -> bool:
    """Record the outcome of an unknown effect; False if another caller has recorded it meanwhile.

    Raises:
        TypeError: *found* is neither ``Committed`` nor ``NoEffect``.
    """
    if isinstance(found, Committed):
        state, receipt = EffectState.COMMITTED, receipt_of(found.output, None)
    elif isinstance(found, NoEffect):
        state, receipt = EffectState.NO_EFFECT, None
    else:
        raise TypeError("an unknown effect is settled with Committed(output) or NoEffect()")
    done = await effects.settle(
        tenant,
        effect.key,
        effect.token,
        state,
        at=at,
        receipt=receipt,
        note=note,
        of=[EffectState.UNKNOWN],
        aliases=True,
    )
    if done:
        emit(LogEvent.EFFECT_RECONCILED, tool=effect.tool, key=effect.key, state=state.value)
    return done


def reconcilers_of(registrations: Iterable[Registration], definition: ToolDefinition) -> list[object]:
    """Return the hooks that can find the outcome of an effect of this tool."""
    applying = merge_registrations(one for one in registrations if why_not(one, definition) is None)
    return [one.hook for one in applying if hasattr(one.hook, "reconcile") and not (one.is_class or one.is_shadow)]
