"""Group commit whose transactions fail: as they begin, at a statement, at the commit, or after they are done."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from callgate.providers.stores.sql.batches_lite import LiteBatches
from callgate.runtime.testing.fault_calls import Faults
from callgate.testing import FaultyStore


def fail_batches(batches: Any, faults: Faults) -> None:
    """Give the steps of the transactions the faults, once."""
    if hasattr(batches, "faults"):  # a store that is bound again is the same one
        return
    batches.faults = faults
    proxy: Any = FaultyStore(batches)
    object.__setattr__(proxy, "_callgate_faults", faults)
    if not isinstance(batches, LiteBatches):
        batches.begin = proxy.begin
        return
    for name in ("write", "run_alone"):
        setattr(batches, name, getattr(proxy, name))
    for name in ("_run", "_commit_now"):
        setattr(batches, name, _in_thread(getattr(batches, name), faults, name))


def _in_thread(call: Callable[..., object], faults: Faults, name: str) -> Callable[..., object]:
    @functools.wraps(call)
    def faulty(*given: object) -> object:
        due = faults.count(name)
        if due and not faults.after:
            faults.inject_sync(name)
        done = call(*given)
        if due and faults.after:
            faults.inject_sync(name)
        return done

    return faulty
