"""Print the figures of the structure: frames of a call, sizes, levels of each room, private reads and ``Any``.

``tests/test_house.py`` holds each figure to its limit. Usage: ``python scripts/house.py [--json]``.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import io
import json
import sys
import tempfile
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from callgate import Gate

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("hooks", "tools", "providers", "runtime")
CALL = ("hooks", "hooks/state", "runtime/gate", "runtime/options", "runtime/pipeline", "runtime/sync")
"""The folders, without those in them, whose code makes, plans and runs one call."""
KNOWN_READS = {
    "providers/container_overrides.py": "dependency-injector has no public way from an option to its configuration",
    "providers/log_events.py": "the value of an enum, which costs less without its property",
    "runtime/hosts/mcp/server.py": "the SDK has no public way to the connection of a request",
    "runtime/lifespan/loop_watch.py": "sys._current_frames is the documented way to the frames of other threads",
    "runtime/models/anthropic.py": "namedtuple._replace is public in spite of its name",
    "runtime/pipeline/interrupts.py": "a signal handler asks for the loop of asyncio, and there may be none",
    "runtime/pipeline/shield.py": "the one place that hands a future from one awaiter to another; it has a canary test",
}
"""The files that read private attributes, and why."""


class Frames(NamedTuple):
    """The Python frames of the package in one warm call, and their files."""

    frames: int
    files: int


def modules() -> Iterator[Path]:
    """Yield the source files of the four folders."""
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


# ---------------------------------------------------------------------- sizes and types


def lines_of(folders: Iterable[str]) -> int:
    """Return the lines of the files that lie directly in *folders*."""
    return sum(path.read_text("utf-8").count("\n") for folder in folders for path in (ROOT / folder).glob("*.py"))


def any_per_1000() -> float:
    """Return how often ``Any`` occurs in 1,000 lines."""
    found = lines = 0
    for path in modules():
        text = path.read_text("utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found += sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens)
        lines += text.count("\n")
    return 1000 * found / lines


def private_reads() -> dict[str, list[str]]:
    """Return the private attributes that a file reads of other objects, and that it does not define, by file."""
    return {
        str(path.relative_to(ROOT)): names for path in modules() if (names := sorted(_foreign_private(_tree(path))))
    }


def _foreign_private(tree: ast.Module) -> set[str]:
    own: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name):
            own.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            own.add(node.value)  # in __slots__
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            base = node.value
            is_own = isinstance(base, ast.Name) and base.id in ("self", "cls")
            (own if is_own else read).add(node.attr)
    return read - own


# ---------------------------------------------------------------------- levels


def levels() -> dict[str, int]:
    """Return, by room, how many of its files stand on each other at most."""
    rooms: dict[str, dict[str, set[str]]] = {}
    for path in modules():
        room = str(path.parent.relative_to(ROOT))
        rooms.setdefault(room, {})[path.stem] = set(_siblings(path, f"callgate.{room.replace('/', '.')}"))
    return {room: _deepest(arrows) for room, arrows in rooms.items() if len(arrows) > 1}


def _siblings(path: Path, package: str) -> Iterator[str]:
    for node in _tree(path).body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module == package:
            yield from (name.name for name in node.names)
        elif node.module.startswith(f"{package}."):
            yield node.module.removeprefix(f"{package}.").split(".")[0]


def _deepest(arrows: dict[str, set[str]]) -> int:
    known: dict[str, int] = {}

    def level(name: str, above: frozenset[str]) -> int:
        if name not in known:
            below = (level(one, above | {name}) for one in arrows[name] if one in arrows and one not in above)
            known[name] = 1 + max(below, default=0)
        return known[name]

    return max(level(name, frozenset()) for name in arrows)


# ---------------------------------------------------------------------- frames


def frames() -> dict[str, Frames]:
    """Return the frames of one warm call: without hooks, with seven stock hooks, with an effect on SQLite and audit."""
    return asyncio.run(_frames())


async def _frames() -> dict[str, Frames]:
    from callgate import Gate, tool
    from callgate.hooks import Audit, Authorize, Cache, Concurrency, Metrics, OutputPolicy, Quota

    @tool(effect="read")
    async def look(item: str) -> dict[str, int]:
        """Look something up."""
        return {"found": len(item)}

    @tool(effect="irreversible", key=("item",))
    async def order(item: str) -> dict[str, int]:
        """Order something."""
        return {"ordered": len(item)}

    keys = map(str, range(1_000_000))
    stock = [
        *(Authorize(roles={"clerk"}), Quota("1000000/hour"), Concurrency(100)),
        *(Cache(3600, vary_by=[lambda _: next(keys)]), OutputPolicy(100_000), Audit(), Metrics()),
    ]
    found = {
        "no hooks": await _counted(Gate([look]), "look"),
        "seven stock hooks": await _counted(Gate([look], stock), "look"),
    }
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate([order], [Audit()], allow_unguarded=True, store=f"sqlite:///{folder}/calls.db")
        found["an effect on SQLite, with audit"] = await _counted(gate, "order")
    return found


async def _counted(gate: Gate, name: str) -> Frames:
    from callgate import User

    user, items = User("ann", roles={"clerk"}), map(str, range(1000))
    calls: list[Frames] = []
    async with gate:
        for _ in range(20):
            await gate.invoke(name, {"item": next(items)}, user=user)
        for _ in range(5):
            seen: list[str] = []
            sys.setprofile(partial(_note, seen))
            try:
                await gate.invoke(name, {"item": next(items)}, user=user)
            finally:
                sys.setprofile(None)
            ours = [file for file in seen if _is_ours(file)]
            calls.append(Frames(len(ours), len(set(ours))))
    return min(calls)  # a background task of the gate may run beside a call


def _note(seen: list[str], frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        seen.append(frame.f_code.co_filename)


def _is_ours(file: str) -> bool:
    """Return True for a source file of the package; generated code has no file, such as ``<string>``."""
    path = Path(file).resolve()
    return (
        not file.startswith("<") and path.is_relative_to(ROOT) and path != Path(__file__) and ".venv" not in path.parts
    )


# ---------------------------------------------------------------------- the table


class Figure(NamedTuple):
    """One figure, with the limit that holds now and the target."""

    name: str
    value: float
    limit: float
    target: float


def figures() -> list[Figure]:
    """Return all figures."""
    calls, deepest = frames(), levels()
    effect = "an effect on SQLite, with audit"
    return [
        Figure("frames of a warm call: no hooks", calls["no hooks"].frames, 14, 14),
        Figure("files of a warm call: no hooks", calls["no hooks"].files, 8, 8),
        Figure("frames of a warm call: seven stock hooks", calls["seven stock hooks"].frames, 90, 90),
        Figure(f"frames of a warm call: {effect}", calls[effect].frames, 150, 150),
        Figure("lines that make, plan and run one call", lines_of(CALL), 13_880, 7000),
        Figure("`Any` in 1,000 lines", round(any_per_1000(), 1), 11.8, 12),
        Figure("files that read private attributes of others", len(private_reads()), len(KNOWN_READS), 0),
        Figure("levels of the deepest room", max(deepest.values()), 8, 8),
    ]


def main() -> None:
    """Print the figures as a table, or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    if parser.parse_args().json:
        print(json.dumps([one._asdict() for one in figures()], indent=1))
        return
    for one in figures():
        print(f"{one.value:>8g}  at most {one.limit:<6g} target {one.target:<6g} {one.name}")
    print("\nlevels by room:", ", ".join(f"{room} {n}" for room, n in sorted(levels().items()) if n > 4))
    for file, names in private_reads().items():
        print("private:", file, ", ".join(names))


if __name__ == "__main__":
    main()
