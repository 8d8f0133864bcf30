"""The one repair of a call's arguments: when a repairer is asked, and the record of its answer."""

from __future__ import annotations

import inspect
import time
from dataclasses import replace

from callgate.tools.arguments.hydrated import HydrationError, HydrationResult, Repair, Repairer
from callgate.tools.calls import ToolCall
from callgate.tools.values import freeze


def is_repairable(found: HydrationResult) -> bool:
    """Return True for a whole call whose parse or validation failed, and that no repairer has seen."""
    if found.success or found.call.truncated or found.errors[0].stage == "instantiate":
        return False
    return found.provenance.repair is None


def repair_now(repair: Repairer, call: ToolCall, reason: HydrationError) -> Repair:
    """Ask a plain repairer.

    Raises:
        TypeError: the repairer is async.
    """
    noted = _record(repair, call, reason)
    try:
        after = repair(call, reason)
    except Exception as error:  # noqa: BLE001  (a repairer that fails has not repaired)
        return replace(noted, failed=type(error).__name__)
    if inspect.isawaitable(after):
        if inspect.iscoroutine(after):
            after.close()
        raise TypeError(f"the repairer {noted.by} is async; write: await gate.repair(gate.hydrate(call), repairer)")
    return replace(noted, after=frozen_copy(after))


async def repair_with(repair: Repairer, call: ToolCall, reason: HydrationError) -> Repair:
    """Ask a plain or async repairer."""
    noted = _record(repair, call, reason)
    try:
        after = repair(call, reason)
        after = await after if inspect.isawaitable(after) else after
    except Exception as error:  # noqa: BLE001  (as above)
        return replace(noted, failed=type(error).__name__)
    return replace(noted, after=frozen_copy(after))


def frozen_copy(value: object) -> object:
    """Return a frozen copy of received arguments; a value that nests too deep for a copy is kept as it is."""
    try:
        return freeze(value)
    except RecursionError:
        return value


def _record(repair: Repairer, call: ToolCall, reason: HydrationError) -> Repair:
    name = getattr(repair, "__qualname__", None) or type(repair).__qualname__
    return Repair(name, time.time(), reason, before=frozen_copy(call.arguments))
