"""What the benchmarks of tool selection share: the sets of queries, the measures, and the file that figures go to.

The file is ``{"default": {SET: {...}}, "semantic": {SET: {...}}, "bm25s": {SET: {...}}, "calibration": {...}, "more":
{"default": {...}, "semantic": {...}}}``. A row of a set has the measures of ``MEASURES``. ``calibration`` is that of the
default scorer; that of meaning is ``more.semantic.calibration``. ``make bench-selection`` writes everything but what
stands under ``semantic``, ``make bench-semantic`` that alone: neither touches what the other wrote.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import DATA

OUT = Path(__file__).parent / "out" / "selection.json"
SETS = ("metatool", "livemcp", "bfcl_live", "stabletoolbench", "seal_tools")
CUTS = (1, 3, 5, 10)
MEASURES = (*(f"recall@{k}" for k in CUTS), "ndcg@5", "us_per_query")
LEAST = 0.05


@dataclass(frozen=True)
class Case:
    name: str
    catalog: list[dict[str, Any]]
    queries: list[dict[str, Any]]


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def read_cases(folder: Path) -> list[Case]:
    found = []
    for name in SETS:
        if (folder / name / "queries.jsonl").is_file():
            found.append(
                Case(name, read_lines(folder / name / "catalog.jsonl"), read_lines(folder / name / "queries.jsonl"))
            )
        else:
            print(f"SKIPPED: no {name} in {folder}", file=sys.stderr)
    return found


# ---------------------------------------------------------------------------------------------- measures


def recall(found: Sequence[str], gold: Sequence[str], k: int) -> float:
    return len(set(found[:k]) & set(gold)) / len(set(gold))


def ndcg(found: Sequence[str], gold: Sequence[str], k: int) -> float:
    right, seen = 0.0, set[str]()
    for place, name in enumerate(found[:k]):
        if name in gold and name not in seen:
            seen.add(name)
            right += 1 / math.log2(place + 2)
    return right / sum(1 / math.log2(place + 2) for place in range(min(k, len(set(gold)))))


def mean(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) / len(given)


def figures(case: Case, ranked: Sequence[Sequence[int]], us: float) -> tuple[dict[str, float], list[float]]:
    """The row of a set, and recall@5 query by query; *ranked* are places in the catalogue, best first."""
    names = [[case.catalog[place]["name"] for place in places] for places in ranked]
    pairs = [(found, query["gold"]) for found, query in zip(names, case.queries, strict=True)]
    row = {f"recall@{k}": mean(recall(found, gold, k) for found, gold in pairs) for k in CUTS}
    row["ndcg@5"] = mean(ndcg(found, gold, 5) for found, gold in pairs)
    row["us_per_query"] = us
    return row, [recall(found, gold, 5) for found, gold in pairs]


def compared(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, list[float]]:
    """The two halves of the queries, and the mean difference with its 95 % interval."""
    return {
        "halves": [mean(ours[::2]), mean(ours[1::2])],
        "difference": [mean(ours) - mean(theirs), *bootstrap(ours, theirs)],
    }


def bootstrap(ours: Sequence[float], theirs: Sequence[float], rounds: int = 2_000) -> tuple[float, float]:
    """The 95 % interval of the mean difference, query by query."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    chance = random.Random(1)
    found = sorted(mean(chance.choices(differences, k=len(differences))) for _ in range(rounds))
    return found[int(0.025 * rounds)], found[int(0.975 * rounds)]


Scored = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, float]]]
"""A row of the irrelevance set to the scores of its tools, by name."""


async def calibration(folder: Path, scored: Scored) -> dict[str, float]:
    """Scores of the tools offered with each query, and of those only: what is kept, and what is offered in vain."""
    relevant = [(row, await scored(row)) for row in read_lines(folder / "relevant.jsonl")]
    irrelevant = [
        max((await scored(row)).values(), default=0.0)
        for row in read_lines(folder / "irrelevant.jsonl")
        if row["offered"]
    ]
    gold = [scores.get(name, 0.0) for row, scores in relevant for name in row["gold"]]
    best = [max(scores.values(), default=0.0) for _, scores in relevant]
    return {
        "gold_kept": mean(score >= LEAST for score in gold),
        "irrelevant_offered": mean(score >= LEAST for score in irrelevant),
        "auroc": auroc(best, irrelevant),
    }


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """How often a positive lies above a negative; equal counts half."""
    return mean((p > n) + (p == n) / 2 for p in positive for n in negative)


# ---------------------------------------------------------------------------------------------- the report


def shown(name: str, row: Mapping[str, float], more: Mapping[str, Sequence[float]]) -> str:
    """One line: recall@5 of a row and of what it is compared with, the difference, the halves, microseconds."""
    gap, low, high = more["difference"]
    interval = f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]"
    halves = " ".join(f"{half:.3f}" for half in more["halves"])
    ours = row["recall@5"]
    return f"{name:18}{ours:10.3f}{ours - gap:10.3f}{interval:>28}{halves:>16}{row['us_per_query']:10.0f}"


def heading(ours: str, theirs: str) -> str:
    return f"{'recall@5':18}{ours:>10}{theirs:>10}{'difference, 95 %':>28}{'halves':>16}{'µs/query':>10}"


def machine() -> dict[str, Any]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"loadavg": os.getloadavg()[0], "python": python}


def parser(module: str, about: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    made.add_argument("--data", type=Path, default=DATA / "tool_selection", metavar="FOLDER")
    made.add_argument("--json", type=Path, default=OUT, metavar="PATH")
    made.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return made


def no_data(folder: Path) -> bool:
    """Whether there is none; then says so, loudly."""
    none = not any((folder / name / "queries.jsonl").is_file() for name in SETS)
    if none:
        print(f"SKIPPED: NO SAMPLE DATA at {folder}; set CALLGATE_DATA to the folder that holds tool_selection")
    return none


WRITERS = ("default", "semantic")
"""Who writes into the file: what they have beside the rows that are promised stands under ``more``, by these names."""


def finish(path: Path, writer: str, rows: dict[str, Any], more: Any, missed: Sequence[str], *, strict: bool) -> int:
    """Put *rows* into the file, and *more* under ``more``; keep the rest of it. Say what was missed; the exit code."""
    print("\n".join(f"MISSED: {one}" for one in missed) or "all targets met")
    try:
        before: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError:
        print(f"{path} was no JSON: written anew")
        before = {}
    whole: dict[str, Any] = {"default": {}, "semantic": {}, "bm25s": {}, "calibration": {}}
    whole |= {name: before[name] for name in whole if name in before} | rows
    whole["more"] = {name: before.get("more", {}).get(name, {}) for name in WRITERS} | {writer: more}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(whole, indent=2) + "\n", "utf-8")
    draft.replace(path)
    print(f"written: {path}")
    return 1 if missed and strict else 0
