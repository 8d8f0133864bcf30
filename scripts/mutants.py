"""Measure how many small faults in the code the tests find: ``python scripts/mutants.py --seed 1 --count 30``.

A mutant changes one place: a comparison, a constant or a ``not``, or it leaves out a statement. For each mutant of a
random sample, pytest runs the tests of the same room in a copy of the tree until one fails. The same seed gives the same
sample for the same code. ``--tests TREE`` takes the tests of another tree, to compare two states of them.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOM = ("tests/runtime/pipeline", "tests/hooks", "--ignore=tests/hooks/stock")
ROOMS = {
    "hooks/*.py": ROOM,
    "hooks/state/*.py": ROOM,
    "runtime/pipeline/*.py": ROOM,
    "runtime/pipeline/standalone.py": (
        "tests/runtime/pipeline/test_standalone.py",
        "tests/runtime/pipeline/test_standalone_effects.py",
    ),
}
"""The files that are mutated, and the tests of each."""
OTHERS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
OTHERS |= {"in": "not in", "not in": "in"}
Edit = tuple[int, int, str]
"""Where the text of a place begins and ends, in bytes, and the text of the mutant."""


def _edit(node: ast.AST, text: bytes, starts: list[int]) -> Edit | None:
    """Return how *node* is changed; None where no mutant changes it."""

    def span(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> tuple[int, int]:
        return starts[first.lineno] + first.col_offset, starts[last.end_lineno or 0] + (last.end_col_offset or 0)

    match node:
        case ast.Compare(left=left, comparators=[right]):
            begin, end = span(left, left)[1], span(right, right)[0]
            found = re.fullmatch(rb"([\s)\\]*)(is not|not in|[<>=!]=|[<>]|is|in)([\s(]*)", text[begin:end])
            return found and (begin, end, found[1].decode() + OTHERS[found[2].decode()] + found[3].decode())
        case ast.Constant(value=bool(value)):
            return *span(node, node), str(not value)
        case ast.Constant(value=int(value) | float(value)):
            return *span(node, node), str(value + 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return *span(node, node), f"({text[slice(*span(operand, operand))].decode()})"
        case ast.Expr(value=ast.Constant()):
            return None  # a docstring
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Assign(targets=[ast.Attribute()]):
            return *span(node, node), "pass"
        case _:
            return None


def edits(source: str) -> Iterator[Edit]:
    """Yield each mutant of *source*, in the order of the syntax tree; annotations have none."""
    text, tree = source.encode(), ast.parse(source)
    starts = [0, 0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            for node in value if isinstance(value, list) else [value]:
                if field not in ("annotation", "returns") and isinstance(node, ast.AST):
                    found = _edit(node, text, starts)
                    if found:
                        yield found


def ends(tree: Path, path: str, tests: tuple[str, ...], limit: float) -> str | None:
    """Run *tests* in *tree*, those named after *path* first; return what ended them, None where all pass."""
    named = {str(test.relative_to(tree)) for test in tree.glob(f"tests/**/test_{Path(path).stem}*.py")}
    order = [*sorted(name for name in named if name.startswith(tests)), *tests]
    options = ["-qx", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=60"]
    data = os.environ.get("CALLGATE_DATA") or str(ROOT.parent / "shared" / "data")
    environ = {**os.environ, "PYTHONPATH": str(tree / "src"), "CALLGATE_DATA": data}
    command = [sys.executable, "-m", "pytest", *options, *order]
    pipes = {"cwd": tree, "env": environ, "capture_output": True, "text": True, "timeout": limit, "check": False}
    try:
        ran = subprocess.run(command, **pipes)  # type: ignore[call-overload]  # noqa: S603, PLW1510
    except subprocess.TimeoutExpired:
        return "the time limit"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    return None if not ran.returncode else failed[0] if failed else f"pytest, with {ran.returncode}"


def main() -> int:
    """Run the sample, and print each mutant and the share that the tests kill."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=30)
    options.add_argument("--limit", type=float, default=900, help="seconds for the tests of one mutant")
    options.add_argument("--trust", action="store_true", help="do not first run the tests without a mutant")
    options.add_argument("--without", nargs="*", default=[], help="tests to leave out, such as those of real time")
    options.add_argument("--tests", type=Path, default=ROOT, help="the tree whose tests are run")
    given = options.parse_args()
    sources = {str(file.relative_to(ROOT)): tests for room, tests in ROOMS.items() for file in sorted(ROOT.glob(room))}
    places = [(path, edit) for path in sources for edit in edits((ROOT / path).read_text("utf-8"))]
    sample = random.Random(given.seed).sample(places, given.count)  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "tests"))
        shutil.copytree(given.tests / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        left_out = tuple(f"--deselect={test}" for test in given.without)
        for tests in {sources[path] for path, _ in sample if not given.trust}:
            if end := ends(tree, "", (*tests, *left_out), given.limit):
                print(f"the tests fail without a mutant: {end}")
                return 1
        killed = 0
        for path, (begin, finish, after) in sample:
            text = (tree / path).read_bytes()
            (tree / path).write_bytes(text[:begin] + after.encode() + text[finish:])
            end = ends(tree, path, (*sources[path], *left_out), given.limit)
            (tree / path).write_bytes(text)
            killed += end is not None
            line, before = len(text[: begin + 1].splitlines()), text[begin:finish].decode().strip().splitlines()[0]
            outcome = f"killed by {end}" if end else "ALIVE"
            print(f"{path}:{line}: {before} -> {after.strip()}: {outcome}", flush=True)
    print(f"seed {given.seed}: {killed} of {len(sample)} killed; {len(places)} places")
    return 0


if __name__ == "__main__":
    sys.exit(main())
