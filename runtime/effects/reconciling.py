"""Finding out what became of unknown effects: hooks are asked, and what they find is written down once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from callgate.hooks.base import name_of
from callgate.hooks.effects import Committed, Finding, NoEffect
from callgate.providers.logs import Event, emit
from callgate.providers.stores.effects import Effect, EffectState, EffectStore
from callgate.runtime.effects.receipts import receipt_of

LIMIT = 10.0
"""Seconds that one hook may take."""


async def reconcile(
    effects: EffectStore, now: Callable[[], float], tenant: str, effect: Effect, hooks: Sequence[Any]
) -> Effect:
    """Ask the hooks in turn until one knows; the effect as it is in the ledger then."""
    for hook in hooks:
        try:
            async with asyncio.timeout(LIMIT):
                found = await hook.reconcile(tenant, effect)
            if not isinstance(found, Committed | NoEffect | None):
                raise TypeError(f"reconcile returned {type(found).__name__}, which says nothing")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001  (it stays unknown: nothing is run again on a guess)
            emit(Event.PROVIDER_FAILED, provider=name_of(hook), phase="reconcile", error=error)
            continue
        if found is not None:
            await settle_unknown(effects, now(), tenant, effect, found)
            return await effects.get(tenant, effect.key) or effect
    return effect


async def settle_unknown(
    effects: EffectStore, at: float, tenant: str, effect: Effect, found: Finding, *, note: str | None = None
) -> bool:
    """Write down what became of an unknown effect; False when somebody else has, meanwhile.

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
        tenant, effect.key, effect.token, state, at=at, receipt=receipt, note=note, of=[EffectState.UNKNOWN]
    )
    if done:
        emit(Event.EFFECT_RECONCILED, tool=effect.tool, key=effect.key, state=state.value)
    return done
