"""How fast tools are picked and how much an index holds: scaled to a quiet machine, and as ratios in one process."""

from __future__ import annotations

import gc
import random
import re
import tracemalloc
from collections.abc import Sequence
from statistics import median
from time import thread_time_ns
from typing import Any

from benchmarks.floors import floor2s
from benchmarks.selection_peers import Rank, bm25s, callgate, make_index, rank_bm25
from benchmarks.selection_sets import Case
from benchmarks.timing import Call, batch, quiet_heap
from callgate import Gate, Hook, InvokeContext, Options, ToolDefinition, ToolRecord, User

LARGE = 8_000
FLOOR_US = 4.0  # what floor2s takes on the machine that the targets are for


async def speed(cases: Sequence[Case], rounds: int) -> dict[str, float]:
    """Microseconds a query, scaled to a quiet machine by the floor, and ratios; a round times all of them in turn."""
    everything = [tool for case in cases for tool in case.catalog]
    large = (everything * (LARGE // len(everything) + 1))[:LARGE]
    mixed = [query["query"] for case in cases for query in case.queries]
    middle = next((case for case in cases if case.name == "bfcl_live"), cases[0])
    found = await _at_size(middle.catalog, [query["query"] for query in middle.queries], rounds)
    found |= await _at_size(large, mixed, rounds)
    found[f"index_mb_at_{LARGE}"] = memory(large)
    found[f"gate_pick_us_at_{LARGE}"] = await gate_pick(large, mixed, rounds)
    return found


async def _at_size(catalog: list[dict[str, Any]], queries: Sequence[str], rounds: int) -> dict[str, float]:
    floor, chance = floor2s(), random.Random(1)
    builds = []
    for _ in range(3):
        before = await batch(floor, 500)
        began = thread_time_ns()
        make_index(catalog)
        builds.append(await _scaled((thread_time_ns() - began) / 1e9, floor, before, 500))
    makers = {"callgate": callgate, "bm25s": bm25s, "rank_bm25": rank_bm25}
    ranks = {name: make(catalog) for name, make in makers.items()}
    taken: dict[str, list[float]] = {name: [] for name in ("scaled", "bm25s", "rank_bm25")}
    with quiet_heap():
        for _ in range(rounds):
            some = chance.sample(queries, min(40, len(queries)))
            before = await batch(floor, 200)
            ours = _thread_us(ranks["callgate"], some)
            taken["scaled"].append(await _scaled(ours, floor, before, 200))
            taken["bm25s"].append(ours / _thread_us(ranks["bm25s"], some))
            few = some[:10]
            taken["rank_bm25"].append(_thread_us(ranks["rank_bm25"], few) / _thread_us(ranks["callgate"], few))
    size = len(catalog)
    return {
        f"us_at_{size}": median(taken["scaled"]),
        f"x_bm25s_at_{size}": median(taken["bm25s"]),
        f"times_faster_than_rank_bm25_at_{size}": median(taken["rank_bm25"]),
        f"build_s_at_{size}": min(builds),
    }


async def _scaled(taken: float, floor: Call, before: float, n: int) -> float:
    """What was taken, as it would be on a quiet machine: by the floor just before and just after."""
    return taken * FLOOR_US * 2 / (before + await batch(floor, n))


def _thread_us(rank: Rank, queries: Sequence[str]) -> float:
    began = thread_time_ns()
    for query in queries:
        rank(query, 10)
    return (thread_time_ns() - began) / len(queries) / 1e3


def memory(catalog: list[dict[str, Any]]) -> float:
    """Megabytes that an index holds beside the catalogue itself."""
    make_index(catalog[:1])  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        index = make_index(catalog)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(index) == len(catalog)
    return held / 1e6


class MaySee(Hook):
    """A rule of who may see what, as small as there is: a tenth is for staff."""

    def may_see(self, user: User, definition: ToolDefinition) -> bool:
        return "staff" in user.roles or "staff" not in definition.tags

    def will_authorize(self, ctx: InvokeContext) -> None:
        """Says nothing."""


async def gate_pick(catalog: list[dict[str, Any]], queries: Sequence[str], rounds: int) -> float:
    """Microseconds for one ``gate.pick`` where a hook is asked about every tool."""
    gate, user, floor, chance = (
        Gate(records(catalog), [MaySee()], options=Options(lazy=True)),
        User("u"),
        floor2s(),
        random.Random(1),
    )
    taken = []
    await gate.pick(queries[0], user=user)
    with quiet_heap():
        for _ in range(rounds):
            before = await batch(floor, 200)
            began = thread_time_ns()
            for query in chance.sample(queries, min(4, len(queries))):
                await gate.pick(query, user=user)
            taken.append(await _scaled((thread_time_ns() - began) / min(4, len(queries)) / 1e3, floor, before, 200))
    return median(taken)


def records(catalog: list[dict[str, Any]]) -> list[ToolRecord]:
    """The tools of a catalogue as a gate has them: some real names need mending."""

    async def body(arguments: Any, ctx: Any) -> None:
        raise AssertionError("run")

    found = []
    for number, tool in enumerate(catalog):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", tool["name"])[:50] + f"_{number}"
        description = (tool.get("description") or "").strip()[:1_024] or None
        tags = {"staff"} if number % 10 == 0 else {"all"}
        definition = ToolDefinition(name, description, {"type": "object"}, effect="read", tags=tags)  # type: ignore[arg-type]
        found.append(ToolRecord(definition, body))
    return found
