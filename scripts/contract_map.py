"""Write ``docs/contract.md``: every item of the contract, in a line, with the tests that name it.

Items come from ``docs/contract.toml``. A test names an item in its docstring: ``Contract 91, C23.``, or a range,
``Contract 44-47, I2.``. ``python scripts/contract_map.py`` writes the page; ``tests/test_contract.py`` fails when it
is stale, and when an item in scope has no test.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "contract.toml"
PAGE = ROOT / "docs" / "contract.md"
_ID = r"[CI]?\d+[a-z]?"
_SPAN = rf"{_ID}(?:-{_ID})?\b"
_MENTION = re.compile(rf"\b(?i:contract)\s+({_SPAN}(?:\s*,\s*{_SPAN})*)")
_PARTS = re.compile(r"([CI]?)(\d+)([a-z]?)")
HEAD = """\
# The contract and its tests

<!-- Written by scripts/contract_map.py from contract.toml and the docstrings of the tests. Do not edit. -->

What Callgate has to do, an item a line, and the tests that prove it. A test names its items in its docstring, as
`Contract 91, C23.`; items with a C settle a point that the numbered ones leave open, items with an I promise something
about faults. To bring this page up to date run `python scripts/contract_map.py`. A test fails when it is stale, and
when an item has no test.
"""


@dataclass(frozen=True)
class Item:
    """One item: where it stands, what it says, and what it waits for when it is not in scope."""

    id: str
    part: str
    line: str
    waits_for: str | None = None
    promise: bool = False


@dataclass(frozen=True, order=True)
class Proof:
    """One test function: its file, relative to the checkout, and its name (``Class::name`` for a method)."""

    path: str
    name: str


def order(item_id: str) -> tuple[str, int, str]:
    """Sorts ids as people do: 9 before 10, C1 before C1a before C2."""
    found = _PARTS.fullmatch(item_id)
    if found is None:
        raise ValueError(f"{item_id!r} is no id of the contract")
    return found[1], int(found[2]), found[3]


def read_items(source: Path = SOURCE) -> dict[str, Item]:
    """All items by id, in the order of the file, each part in the order of ids.

    Raises:
        ValueError: an id is given twice, or is none.
    """
    items: dict[str, Item] = {}
    for part in tomllib.loads(source.read_text("utf-8"))["part"]:
        title, promise = part["title"], part.get("promises", False)
        found = [Item(key, title, line, promise=promise) for key, line in part.get("items", {}).items()]
        found += [Item(key, title, **entry, promise=promise) for key, entry in part.get("later", {}).items()]
        for item in sorted(found, key=lambda item: order(item.id)):
            if item.id in items:
                raise ValueError(f"{item.id} is in {source.name} twice")
            items[item.id] = item
    return items


def named_in(docstring: str) -> list[str]:
    """The ids that a docstring names, ranges written out."""
    spans = (span.strip() for mention in _MENTION.finditer(docstring) for span in mention[1].split(","))
    return [item_id for span in spans for item_id in _written_out(span)]


def _written_out(span: str) -> Iterator[str]:
    first, _, last = span.partition("-")
    yield first
    if last:
        letter, start, _ = order(first)
        end = order(last)[1]
        yield from (f"{letter}{number}" for number in range(start + 1, end))
        yield last


def find_tests(root: Path = ROOT) -> dict[str, list[Proof]]:
    """The tests that name each id, in the order of files and lines."""
    found: dict[str, list[Proof]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"), path)
        shown = path.relative_to(root).as_posix()
        for name, docstring in _functions(tree):
            for item_id in dict.fromkeys(named_in(docstring)):
                found.setdefault(item_id, []).append(Proof(shown, name))
    return found


def _functions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{prefix}{node.name}", ast.get_docstring(node) or ""


def holes(items: dict[str, Item], tests: dict[str, list[Proof]]) -> list[Item]:
    """Items in scope that no test names; promises are not counted: a fault is proved where it is looked for."""
    return [item for item in items.values() if not item.waits_for and not item.promise and item.id not in tests]


def unknown(items: dict[str, Item], tests: dict[str, list[Proof]]) -> dict[str, list[Proof]]:
    """Ids that tests name and that are no item."""
    return {item_id: named for item_id, named in tests.items() if item_id not in items}


def render(items: dict[str, Item], tests: dict[str, list[Proof]]) -> str:
    """The page."""
    scope = [item for item in items.values() if not item.waits_for]
    later = [item for item in items.values() if item.waits_for]
    parts = [HEAD]
    for title in dict.fromkeys(item.part for item in scope):
        rows = [(item.id, item.line, _links(tests.get(item.id, ()))) for item in scope if item.part == title]
        parts.append(f"## {title}\n\n{_table(('Item', 'What', 'Tests'), rows)}")
    waiting = [(item.id, item.line, item.waits_for or "", _links(tests.get(item.id, ()))) for item in later]
    parts.append(f"## Later\n\n{_table(('Item', 'What', 'Waits for', 'Tests so far'), waiting)}")
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _links(tests: Iterable[Proof]) -> str:
    return "<br>".join(f"[{test.path.removeprefix('tests/')}::{test.name}](../{test.path})" for test in tests) or "—"


def main() -> None:
    """Write the page and say what is missing."""
    items, tests = read_items(), find_tests()
    PAGE.write_text(render(items, tests), "utf-8")
    missing = holes(items, tests)
    print(f"{PAGE.relative_to(ROOT)}: {len(items)} items, {len(missing)} in scope without a test")
    for item in missing:
        print(f"  {item.id:<5} {item.line}")
    for item_id, named in unknown(items, tests).items():
        print(f"  {item_id} is no item: {', '.join(f'{test.path}::{test.name}' for test in named)}")


if __name__ == "__main__":
    main()
