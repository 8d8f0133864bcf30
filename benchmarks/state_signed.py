"""What the MACs and the limits of a gate with ``signing_keys`` cost: the same calls with keys and without, in turn."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.state_hooks import hooked
from benchmarks.state_place import Load, Make, compare, paying

KEYS = ["a signing key of the benchmark"]


async def measure(kind: str, make: Make, load: Load) -> dict[str, float]:
    """Measure the CPU time of a call with keys over one without: of the stock hooks, and of an effect with ``Audit``."""
    found: dict[str, float] = {}
    for name, opened in (("hooks", hooked), ("effect", paying)):
        async with AsyncExitStack() as stack:
            plain = await stack.enter_async_context(opened(make()))
            signed = await stack.enter_async_context(opened(make(), keys=KEYS))
            compared = await compare(plain, signed, load)
        found[f"signed_{name}_{kind}_cpu_x"], found[f"signed_{name}_{kind}_calls_x"] = compared.cpu_x, compared.x
    return found
