"""What one async lease costs whose steps do not suspend: taken, kept on the ledger, given back."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.floors import floor2s
from benchmarks.timing import Effort, interleave
from benchmarks.twelve import call_of, make_tool
from callgate import Gate, Hook


class Lease(Hook):
    async def will_acquire_quota(self, ctx):
        return None

    async def did_release_quota(self, ctx):
        return None


class Steps(Hook):
    """The same two methods, on stages that hold nothing; the tool is still called straight."""

    async def will_authorize(self, ctx):
        return None

    async def on_metrics(self, ctx):
        return None


class StepsAtTool(Hook):
    """The same, one of them just before the tool."""

    async def will_execute(self, ctx):
        return None

    async def on_metrics(self, ctx):
        return None


KINDS: dict[str, type[Hook] | None] = {"none": None, "lease": Lease, "steps": Steps, "at tool": StepsAtTool}


async def measure(effort: Effort) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        cases = {}
        for name, kind in KINDS.items():
            gate = Gate([make_tool()], [] if kind is None else [kind()])
            cases[name] = call_of(await stack.enter_async_context(gate))
        found = await interleave(cases, {"floor2s": floor2s()}, effort)
    floor, lease = found["floor2s"].us, found["lease"]
    over_steps, over_at_tool, over_none = (
        lease.minus(found[other], "floor2s") for other in ("steps", "at tool", "none")
    )
    return {
        "lease_us": over_steps * floor,
        "lease_us_scaled": over_steps * 4.0,  # what it would be where floor2s takes 4 µs
        "lease_us_over_will_execute": over_at_tool * floor,
        "lease_us_over_no_hook": over_none * floor,
        "lease_us_scaled_over_no_hook": over_none * 4.0,
    }
