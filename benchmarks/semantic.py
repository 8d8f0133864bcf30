"""``make bench-semantic``: words and meaning together against words alone; needs the extra ``semantic``.

Adds the row ``semantic`` to what ``make bench-selection`` writes. The rule and its numbers (``tools/picking/semantic.py``)
are the same for all sets. ``--tune`` shows what other numbers would give, on each half of the queries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.selection import CUTS, DATA, OUT, Case, auroc, bootstrap, mean, ndcg, read_cases, read_lines, recall
from benchmarks.selection_peers import callgate, make_index
from callgate.tools.picking.embedding import Embeddings
from callgate.tools.picking.meaning import Meanings
from callgate.tools.picking.minilm import MiniLM
from callgate.tools.picking.scorers import Asked
from callgate.tools.picking.semantic import MEANING, UNRELATED, SemanticScorer, mixed

MACRO = ("metatool", "livemcp", "bfcl_live", "stabletoolbench")
CPU_MS = 40.0
LEAST_MACRO, MOST_BELOW = 0.69, 0.01


async def quality(case: Case, scorer: SemanticScorer) -> dict[str, Any]:
    """The figures of one set. CPU time is that of the whole process: the model works in a thread of its own."""
    index = make_index(case.catalog)
    began = time.process_time()
    await scorer.prepare(index)
    built = time.process_time() - began
    words = callgate(case.catalog)
    ranked: list[list[str]] = []
    plain: list[list[str]] = []
    cpu = 0.0
    for query in case.queries:
        text = query["query"]
        began = time.process_time()
        scores = await scorer.score_slots(Asked(text, text), index, None)
        best = sorted(scores, key=lambda slot: (-scores[slot].score, slot))[: max(CUTS)]
        cpu += time.process_time() - began
        if any("fallback" in scores[slot].details for slot in best):
            raise RuntimeError(f"{case.name}: the embedder failed")
        ranked.append([case.catalog[slot]["name"] for slot in best])
        plain.append([case.catalog[slot]["name"] for slot in words(text, max(CUTS))])
    golds = [query["gold"] for query in case.queries]
    row: dict[str, Any] = {f"recall@{k}": mean(map(recall, ranked, golds, [k] * len(golds))) for k in CUTS}
    row["ndcg@5"] = mean(map(ndcg, ranked, golds, [5] * len(golds)))
    row["us_per_query"] = cpu / len(golds) * 1e6
    ours, theirs = ([recall(found, gold, 5) for found, gold in zip(one, golds, strict=True)] for one in (ranked, plain))
    row["halves"] = [mean(ours[::2]), mean(ours[1::2])]
    row["default_halves"] = [mean(theirs[::2]), mean(theirs[1::2])]
    row["difference"] = [mean(ours) - mean(theirs), *bootstrap(ours, theirs)]
    return row | {"tools": len(index), "build_s": built}


async def calibration(folder: Path, least: float = 0.05) -> dict[str, float]:
    """As for the default scorer: the tools offered with each query, and those only."""
    meanings = Meanings(Embeddings(MiniLM()))

    async def scored(row: dict[str, Any]) -> dict[str, float]:
        index = make_index(row["offered"])
        near, weights = await meanings.near(index, row["query"], None), index.weigh(row["query"])
        return {row["offered"][slot]["name"]: mixed(weights.get(slot, 0.0), cosine) for slot, cosine in enumerate(near)}

    relevant = [(row, await scored(row)) for row in read_lines(folder / "relevant.jsonl")]
    wrong = [max((await scored(row)).values()) for row in read_lines(folder / "irrelevant.jsonl") if row["offered"]]
    return {
        "gold_kept": mean(scores.get(name, 0.0) >= least for row, scores in relevant for name in row["gold"]),
        "irrelevant_offered": mean(score >= least for score in wrong),
        "auroc": auroc([max(scores.values(), default=0.0) for _, scores in relevant], wrong),
    }


async def measure(folder: Path) -> dict[str, Any]:
    scorer = SemanticScorer(MiniLM(), timeout=None)
    rows: dict[str, Any] = {}
    print(f"{'recall@5':18}{'semantic':>9}{'default':>9}{'difference, 95 %':>28}{'halves':>14}{'CPU ms/query':>14}")
    for case in read_cases(folder):
        row = rows[case.name] = await quality(case, scorer)
        gap, low, high = row["difference"]
        halves = " ".join(f"{half:.3f}" for half in row["halves"])
        interval = f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]"
        numbers = f"{row['recall@5']:9.3f}{row['recall@5'] - gap:9.3f}"
        print(f"{case.name:18}{numbers}{interval:>28}{halves:>14}{row['us_per_query'] / 1e3:14.1f}", flush=True)
    return rows


def missed(rows: dict[str, Any]) -> list[str]:
    found = [
        f"{name}: {MOST_BELOW} below the default" for name, row in rows.items() if row["difference"][0] < -MOST_BELOW
    ]
    found += [f"{name}: {CPU_MS} ms a query" for name, row in rows.items() if row["us_per_query"] > CPU_MS * 1e3]
    if rows.keys() >= set(MACRO) and mean(rows[name]["recall@5"] for name in MACRO) < LEAST_MACRO:
        found.append(f"macro-average of the first four ≥ {LEAST_MACRO}")
    return found


# ---------------------------------------------------------------------------------------------- tuning


async def tune(cases: Sequence[Case]) -> None:
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
                each = [recall(found, query["gold"], 5) for found, query in zip(names, case.queries, strict=True)]
                halves.append((mean(each[::2]), mean(each[1::2])))
            first, second = (mean(pair[half] for pair in halves[: len(MACRO)]) for half in (0, 1))
            mark = "*" if (weight, unrelated) == (MEANING, UNRELATED) else " "
            shown = "".join(f"   {one:.4f} {other:.4f}"[:16].rjust(16) for one, other in halves)
            print(f"{weight:5g}{mark} {unrelated:8g} {shown}   {first:.4f} {second:.4f}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.semantic", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA / "tool_selection", metavar="FOLDER")
    parser.add_argument("--json", type=Path, default=OUT, metavar="PATH")
    parser.add_argument("--tune", action="store_true", help="show what other numbers would give; writes nothing")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    asked = parser.parse_args(argv)
    if not asked.data.is_dir():
        print(f"SKIPPED: NO SAMPLE DATA at {asked.data}; set CALLGATE_DATA to the folder that holds tool_selection")
        return 0
    if asked.tune:
        asyncio.run(tune(read_cases(asked.data)))
        return 0
    rows = asyncio.run(measure(asked.data))
    found = json.loads(asked.json.read_text("utf-8")) if asked.json.is_file() else {"default": {}, "bm25s": {}}
    more: dict[str, Any] = {"loadavg": os.getloadavg()[0], "python": sys.version.split()[0]}
    if rows.keys() >= set(MACRO):
        more["macro recall@5 of the first four"] = mean(rows[name]["recall@5"] for name in MACRO)
        print(f"{'macro of four':18}{more['macro recall@5 of the first four']:9.3f}")
    if (asked.data / "bfcl_irrelevance").is_dir():
        more["calibration"] = asyncio.run(calibration(asked.data / "bfcl_irrelevance"))
        print("calibration at 0.05:", {name: round(value, 4) for name, value in more["calibration"].items()})
    found["semantic"] = rows
    found.setdefault("more", {})["semantic"] = more
    print("\n".join(f"MISSED: {one}" for one in missed(rows)) or "all targets met")
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    print(f"written: {asked.json}")
    return 1 if missed(rows) and asked.strict else 0


if __name__ == "__main__":
    raise SystemExit(main())
