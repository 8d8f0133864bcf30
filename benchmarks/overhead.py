"""What a call costs through the gate: without hooks, with twelve, with hooks of other tools, with one more hook."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.floors import floor1, floor2, floor2s
from benchmarks.timing import Call, Effort, interleave
from benchmarks.twelve import call_of, make_tool, twelve, twelve_gate
from callgate import Gate, Hook

FEW, MANY = 4, 16


class SyncPass(Hook):
    def will_authorize(self, ctx):
        return None

    def will_redact_output(self, ctx):
        return None


class AsyncPass(Hook):
    async def will_authorize(self, ctx):
        return None

    async def will_redact_output(self, ctx):
        return None


def idle_gate() -> Gate:
    """The tool without hooks of its own, and twelve hooks that are limited to other tools."""
    gate = Gate([make_tool()])
    for hook in twelve()[0]:
        gate.use(hook, tags={"elsewhere"})
    return gate


async def measure(effort: Effort) -> dict[str, float]:
    async with AsyncExitStack() as stack:

        async def opened(gate: Gate) -> Call:
            return call_of(await stack.enter_async_context(gate))

        busy, ledger = twelve_gate()
        found = await interleave(
            {
                "zero": await opened(Gate([make_tool()])),
                "idle": await opened(idle_gate()),
                "twelve": await opened(busy),
            },
            {"floor2s": floor2s(), "floor2": floor2()},
            effort,
        )
        ledger.verify()
        hooked = {
            f"{kind.__name__} {n}": await opened(Gate([make_tool()], [kind() for _ in range(n)]))
            for kind in (SyncPass, AsyncPass)
            for n in (FEW, MANY)
        }
        slopes = await interleave(hooked, {"floor1": floor1()}, effort)

    def slope(kind: type[Hook]) -> float:
        more, less = slopes[f"{kind.__name__} {MANY}"], slopes[f"{kind.__name__} {FEW}"]
        return more.minus(less, "floor1") / (2 * (MANY - FEW))

    zero, idle, busy_call = found["zero"], found["idle"], found["twelve"]
    return {
        "floor1_us": slopes["floor1"].us,
        "floor2_us": found["floor2"].us,
        "floor2s_us": found["floor2s"].us,
        "zero_hooks_us": zero.us,
        "twelve_hooks_us": busy_call.us,
        "zero_hooks_x_floor2": zero.x("floor2"),
        "zero_hooks_x_floor2s": zero.x("floor2s"),
        "twelve_hooks_x_floor2": busy_call.x("floor2"),
        "twelve_hooks_x_floor2s": busy_call.x("floor2s"),
        "idle_hooks_x_zero": idle.x("floor2s") / zero.x("floor2s"),
        "sync_method_x_floor1": slope(SyncPass),
        "async_method_x_floor1": slope(AsyncPass),
    }
