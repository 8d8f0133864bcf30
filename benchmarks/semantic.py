"""``make bench-semantic``: words and meaning together against words alone; needs the extra ``semantic``.

Adds what stands under ``semantic`` to what ``make bench-selection`` writes, its calibration too. The rule and its numbers (``tools/picking/semantic.py``)
are the same for all sets. ``--tune`` shows what other numbers would give, on each half of the queries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import selection_sets as sets
from benchmarks.selection_peers import callgate, make_index
from callgate.tools.picking.embedding import Embeddings
from callgate.tools.picking.meaning import Meanings
from callgate.tools.picking.minilm import MiniLM
from callgate.tools.picking.scorers import Query
from callgate.tools.picking.semantic import MEANING, UNRELATED, SemanticScorer, mixed

MACRO = ("metatool", "livemcp", "bfcl_live", "stabletoolbench")
CPU_MS = 40.0
LEAST_MACRO, MOST_BELOW = 0.69, 0.01


async def quality(case: sets.Case, scorer: SemanticScorer) -> tuple[dict[str, float], dict[str, Any]]:
    """The row of one set, and more. CPU time is that of the whole process: the model works in a thread of its own."""
    index = make_index(case.catalog)
    began = time.process_time()
    await scorer.prepare(index)
    built = time.process_time() - began
    words = callgate(case.catalog)
    ranked: list[list[int]] = []
    cpu = 0.0
    for query in case.queries:
        text = query["query"]
        began = time.process_time()
        scores = await scorer.score_slots(Query(text, text), index, None)
        best = sorted(scores, key=lambda slot: (-scores[slot].score, slot))[: max(sets.CUTS)]
        cpu += time.process_time() - began
        if any("fallback" in scores[slot].details for slot in best):
            raise RuntimeError(f"{case.name}: the embedder failed")
        ranked.append(best)
    row, ours = sets.figures(case, ranked, cpu / len(case.queries) * 1e6)
    _, theirs = sets.figures(case, [words(query["query"], max(sets.CUTS)) for query in case.queries], 0.0)
    return row, sets.compared(ours, theirs) | {"tools": len(index), "build_s": built}


def scorer_of(meanings: Meanings) -> Any:
    async def scored(row: Mapping[str, Any]) -> dict[str, float]:
        """The scores, with meaning, of the tools that are offered with a query."""
        index = make_index(row["offered"])
        near, weights = await meanings.near(index, row["query"], None), index.weigh(row["query"])
        return {row["offered"][slot]["name"]: mixed(weights.get(slot, 0.0), cosine) for slot, cosine in enumerate(near)}

    return scored


async def measure(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes under ``semantic``, and what under ``more.semantic``."""
    scorer = SemanticScorer(MiniLM(), timeout=None)
    rows: dict[str, Any] = {}
    more: dict[str, Any] = {"sets": {}} | sets.machine()
    print(sets.heading("semantic", "default"))
    for case in sets.read_cases(folder):
        rows[case.name], more["sets"][case.name] = await quality(case, scorer)
        print(sets.shown(case.name, rows[case.name], more["sets"][case.name]), flush=True)
    if rows.keys() >= set(MACRO):
        more["macro recall@5 of the first four"] = sets.mean(rows[name]["recall@5"] for name in MACRO)
        print(f"{'macro of four':18}{more['macro recall@5 of the first four']:10.3f}")
    if (folder / "bfcl_irrelevance").is_dir():
        more["calibration"] = await sets.calibration(
            folder / "bfcl_irrelevance", scorer_of(Meanings(Embeddings(MiniLM())))
        )
        print("calibration at 0.05:", {name: round(value, 4) for name, value in more["calibration"].items()})
    return rows, more


def missed(rows: Mapping[str, Any], more: Mapping[str, Any]) -> list[str]:
    found = [
        f"{name}: {MOST_BELOW} below the default"
        for name, one in more["sets"].items()
        if one["difference"][0] < -MOST_BELOW
    ]
    found += [f"{name}: {CPU_MS} ms a query" for name, row in rows.items() if row["us_per_query"] > CPU_MS * 1e3]
    if more.get("macro recall@5 of the first four", 1.0) < LEAST_MACRO:
        found.append(f"macro-average of the first four ≥ {LEAST_MACRO}")
    return found


# ---------------------------------------------------------------------------------------------- tuning


async def tune(cases: Sequence[sets.Case]) -> None:
    """Recall@5 on each half for other numbers; those in use are marked."""
    import numpy as np  # it comes with the extra

    meanings = Meanings(Embeddings(MiniLM()))
    known: list[Any] = []
    for case in cases:
        index = make_index(case.catalog)
        words, cosines = np.zeros((2, len(case.queries), len(case.catalog)), dtype=np.float32)
        for place, query in enumerate(case.queries):
            weights = index.weigh(query["query"])
            words[place, list(weights)] = list(weights.values())
            cosines[place] = await meanings.near(index, query["query"], None)
        known.append((case, words, cosines))
    print("weight unrelated " + "".join(f"{case.name:>16}" for case in cases) + "   macro of the first four, by half")
    for unrelated in (0.0, 0.1, 0.2):
        for weight in (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
            halves: list[tuple[float, float]] = []
            for case, words, cosines in known:
                top = np.argsort(-(words + weight * np.maximum(cosines - unrelated, 0.0)), axis=1, kind="stable")[:, :5]
                names = [[case.catalog[place]["name"] for place in places] for places in top]
                each = [sets.recall(found, query["gold"], 5) for found, query in zip(names, case.queries, strict=True)]
                halves.append((sets.mean(each[::2]), sets.mean(each[1::2])))
            first, second = (sets.mean(pair[half] for pair in halves[: len(MACRO)]) for half in (0, 1))
            mark = "*" if (weight, unrelated) == (MEANING, UNRELATED) else " "
            shown = "".join(f"   {one:.4f} {other:.4f}"[:16].rjust(16) for one, other in halves)
            print(f"{weight:5g}{mark} {unrelated:8g} {shown}   {first:.4f} {second:.4f}", flush=True)


def main(argv: list[str] | None = None) -> int:
    made = sets.parser("benchmarks.semantic", __doc__)
    made.add_argument("--tune", action="store_true", help="show what other numbers would give; writes nothing")
    asked = made.parse_args(argv)
    if sets.no_data(asked.data):
        return 0
    if asked.tune:
        asyncio.run(tune(sets.read_cases(asked.data)))
        return 0
    rows, more = asyncio.run(measure(asked.data))
    return sets.finish(asked.json, "semantic", {"semantic": rows}, more, missed(rows, more), strict=asked.strict)


if __name__ == "__main__":
    raise SystemExit(main())
