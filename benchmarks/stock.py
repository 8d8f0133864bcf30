"""The stock hooks at work: a whole pipeline, each hook's own share, and a cache hit."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack

from benchmarks.floors import floor2
from benchmarks.timing import Effort, interleave
from benchmarks.twelve import call_of, make_tool
from callgate import Gate, Hook
from callgate.hooks import Audit, Authorize, Cache, Concurrency, Metrics, OutputPolicy, Quota


def stock(*, hit: bool = False) -> dict[str, Hook]:
    """The hooks of a usual service, all in memory; the cache misses at each call, unless *hit*."""
    number = itertools.count()
    return {
        "authorize": Authorize(scopes={"math"}),
        "quota": Quota("1000000000/hour"),
        "concurrency": Concurrency(1000),
        "cache": Cache(3600) if hit else Cache(3600, vary_by=[lambda _ctx: str(next(number))]),
        "output_policy": OutputPolicy(100_000),
        "audit": Audit(),
        "metrics": Metrics(),
    }


async def measure(effort: Effort) -> dict[str, float]:
    sets: dict[str, list[Hook]] = {"none": [], "all": list(stock().values()), "hit": list(stock(hit=True).values())}
    sets["cache_hit"] = [stock(hit=True)["cache"]]
    sets |= {name: [hook] for name, hook in stock().items()}
    async with AsyncExitStack() as stack:
        cases = {
            name: call_of(await stack.enter_async_context(Gate([make_tool()], hooks))) for name, hooks in sets.items()
        }
        found = await interleave(cases, {"floor2": floor2()}, effort)
    ratios = {name: found[name].x("floor2") for name in sets}
    own = {f"stock_{name}_x_floor2": ratios[name] - ratios["none"] for name in stock()}
    whole = {"stock_pipeline_x_floor2": "all", "stock_hit_x_floor2": "hit", "cache_hit_x_floor2": "cache_hit"}
    return {row: ratios[name] for row, name in whole.items()} | own
