"""``make bench-selection``: how well and how fast tools are picked, beside the libraries that users would take instead.

Recall and nDCG on five catalogues with queries, calibration on queries that no offered tool serves, speed as ratios in one
process. The scorer's numbers (``tools/picking/weights.py``) are the same for all sets; they were chosen by hand on all the
queries at once, and both halves of the queries are reported, so that a choice that fits one half only would show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from time import thread_time_ns
from typing import Any

from benchmarks import selection_sets as sets
from benchmarks.selection_peers import Rank, bm25s, callgate
from benchmarks.selection_speed import speed
from callgate.tools.picking.pick import pick_tools

BELOW_1000_US, LARGE_US = 1_000, 3_000


def quality(case: sets.Case, rank: Rank) -> tuple[dict[str, float], list[float]]:
    """The figures of one set, and recall@5 query by query."""
    began = thread_time_ns()
    ranked = [rank(query["query"], max(sets.CUTS)) for query in case.queries]
    return sets.figures(case, ranked, (thread_time_ns() - began) / len(case.queries) / 1e3)


async def scored(row: Mapping[str, Any]) -> dict[str, float]:
    """The default scorer's scores of the tools that are offered with a query."""
    picks = await pick_tools(row["query"], row["offered"], max_candidates=len(row["offered"]), min_score=0.0)
    return {one.tool["name"]: one.score for one in picks}


async def measure(folder: Path, *, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes under names of its own, and what goes under ``more.default``."""
    cases = sets.read_cases(folder)
    rows: dict[str, Any] = {"default": {}, "bm25s": {}, "calibration": {}}
    more: dict[str, Any] = {"sets": {}} | sets.machine()
    for case in cases:
        rows["default"][case.name], ours = quality(case, callgate(case.catalog))
        rows["bm25s"][case.name], theirs = quality(case, bm25s(case.catalog))
        more["sets"][case.name] = sets.compared(ours, theirs)
    if (folder / "bfcl_irrelevance").is_dir():
        rows["calibration"] = await sets.calibration(folder / "bfcl_irrelevance", scored)
    if cases:
        more["speed"] = await speed(cases, rounds)
    return rows, more


def show(rows: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    print(sets.heading("default", "bm25s"))
    for name, row in rows["default"].items():
        print(sets.shown(name, row, more["sets"][name]))
    if rows["default"]:
        ours, theirs = (sets.mean(row["recall@5"] for row in rows[one].values()) for one in ("default", "bm25s"))
        print(f"{'macro-average':18}{ours:10.3f}{theirs:10.3f}")
    for name, value in (rows["calibration"] | more.get("speed", {})).items():
        print(f"{name:44}{value:10.3f}")


def missed(rows: Mapping[str, Any], more: Mapping[str, Any]) -> list[str]:
    """What the figures must reach; speed is scaled to a quiet machine."""
    ours, theirs = rows["default"], rows["bm25s"]
    bounds = [
        (f"{name}: at most 0.02 below bm25s", row["recall@5"] >= theirs[name]["recall@5"] - 0.02)
        for name, row in ours.items()
    ]
    if len(ours) == len(sets.SETS):
        bounds.append(("macro recall@5 ≥ 0.70", sets.mean(row["recall@5"] for row in ours.values()) >= 0.70))
    if kept := rows["calibration"]:
        bounds += [
            ("right tools kept ≥ 0.95", kept["gold_kept"] >= 0.95),
            ("irrelevant queries offered anything ≤ 0.43", kept["irrelevant_offered"] <= 0.43),
            ("AUROC ≥ 0.87", kept["auroc"] >= 0.87),
        ]
    bounds += [(f"{name} = {value:.3f}", fast_enough(name, value)) for name, value in more.get("speed", {}).items()]
    return [name for name, met in bounds if not met]


def fast_enough(name: str, value: float) -> bool:
    kind, size = name.rsplit("_at_", 1)
    match kind:
        case "us":
            return value <= (BELOW_1000_US if int(size) < 1_000 else LARGE_US)
        case "build_s":
            return value <= 1.0
        case "x_bm25s":
            return value <= 2.0
        case "times_faster_than_rank_bm25":
            return value >= 3.0
        case _:
            return True  # reported, and not promised


def main(argv: list[str] | None = None) -> int:
    made = sets.parser("benchmarks.selection", __doc__)
    made.add_argument("--rounds", type=int, default=30, help="of timing")
    asked = made.parse_args(argv)
    if sets.no_data(asked.data):
        return 0
    rows, more = asyncio.run(measure(asked.data, rounds=asked.rounds))
    show(rows, more)
    return sets.finish(asked.json, "default", rows, more, missed(rows, more), strict=asked.strict)


if __name__ == "__main__":
    raise SystemExit(main())
