"""Write ``docs/contract.md``: the contract's own sentence for every item, with the tests that name it.

Items come from ``docs/contract.toml``. A test names an item in its docstring: ``Contract 91, C23.``, or a range,
``Contract 44-47.``; a promise (``I2``) counts wherever it stands in the docstring. ``python scripts/contract_map.py`` writes the page. ``tests/test_contract.py`` fails when the
page is stale, when an item has neither a test nor an entry ``open``, and when a sentence differs from the contract's.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "contract.toml"
PAGE = ROOT / "docs" / "contract.md"
_ID = r"[CI]?\d+[a-z]?"
_SPAN = rf"{_ID}(?:-{_ID})?\b"
_PROMISE = re.compile(r"\bI\d+[a-z]?\b")
_MENTION = re.compile(rf"\b(?i:contract)\s+({_SPAN}(?:\s*,\s*{_SPAN})*)")
_PARTS = re.compile(r"([CI]?)(\d+)([a-z]?)")
_NUMBERED = re.compile(r"^(?P<id>\d+)\. (?P<demand>.+)$", re.MULTILINE)
_SETTLED = re.compile(r"^\*\*(?P<id>C\d+[a-z]?)\. (?P<demand>.+?)(?=\n\*\*C\d|\n#|\Z)", re.MULTILINE | re.DOTALL)
_PROMISED = re.compile(r"^\| (?P<id>I\d+[a-z]?) \| (?P<demand>[^|]+) \|", re.MULTILINE)
HEAD = """\
# The contract and its tests

<!-- Written by scripts/contract_map.py from contract.toml and the docstrings of the tests. Do not edit. -->

This page is for maintainers. Each row holds one demand in the contract's own words, and the tests that prove it. A test
names its items in its docstring, as `Contract 91, C23.`. Numbered items are demands of the source documents: `[000]` to
`[004]` name the document. Items with a C settle contradictions between them: what follows the arrow is what Callgate does.
Items with an I are promises about faults.

[Open items](#open) are the demands that Callgate does not meet in full, or that no test proves in full. Some demands are
[met in another way](#met-in-another-way), where the design or a later decision differs from the sentence. To write this
page again, run `python scripts/contract_map.py`. A test fails when the page is stale, when a sentence differs from the
contract, and when an item has neither a test nor a reason for being open.
"""


@dataclass(frozen=True)
class Item:
    """One item: its part of the contract and its sentence there.

    ``open`` says what falls short of the sentence. ``instead`` says what Callgate does differently on purpose, and why.
    """

    id: str
    part: str
    demand: str
    open: str | None = None
    instead: str | None = None


@dataclass(frozen=True, order=True)
class Proof:
    """One test function: its file, relative to the checkout, and its name (``Class::name`` for a method)."""

    path: str
    name: str


def order(item_id: str) -> tuple[str, int, str]:
    """Sort key of an id: 9 before 10, C1 before C1a before C2."""
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
        found = [
            Item(key, part["title"], **{field: " ".join(text.split()) for field, text in entry.items()})
            for key, entry in part["items"].items()
        ]
        for item in sorted(found, key=lambda item: order(item.id)):
            if item.id in items:
                raise ValueError(f"{item.id} is in {source.name} twice")
            items[item.id] = item
    return items


def demands_in(contract: str, invariants: str = "") -> dict[str, str]:
    """The sentence of every item, on one line and without marks for bold type.

    Numbers count only before the settled points: a later list of the contract numbers other things.
    """
    numbered, _, _ = contract.partition("\n# Part B")
    found = [*_NUMBERED.finditer(numbered), *_SETTLED.finditer(contract), *_PROMISED.finditer(invariants)]
    return {match["id"]: " ".join(match["demand"].replace("**", "").split()) for match in found}


def differences(items: Mapping[str, str], demands: Mapping[str, str]) -> dict[str, str]:
    """Where the sentences of ``items`` are not those of ``demands``, by id, word by word; empty when all agree."""
    found: dict[str, str] = {}
    for item_id in sorted({*items, *demands}, key=order):
        ours, theirs = items.get(item_id), demands.get(item_id)
        if ours is None:
            found[item_id] = "is missing"
        elif theirs is None:
            found[item_id] = "is not in the contract"
        elif ours.split() != theirs.split():
            found[item_id] = _changed(theirs.split(), ours.split())
    return found


def _changed(theirs: list[str], ours: list[str]) -> str:
    changes = SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes()
    return "; ".join(
        f"says {' '.join(ours[c:d])!r}, the contract {' '.join(theirs[a:b])!r}"
        for kind, a, b, c, d in changes
        if kind != "equal"
    )


def named_in(docstring: str) -> list[str]:
    """The ids that a docstring names, ranges written out, each once."""
    spans = (span.strip() for mention in _MENTION.finditer(docstring) for span in mention[1].split(","))
    found = [item_id for span in spans for item_id in _written_out(span)]
    return list(dict.fromkeys([*found, *_PROMISE.findall(docstring)]))


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
    """Items that neither name what is open nor have a test that names them."""
    return [item for item in items.values() if not item.open and item.id not in tests]


def unknown(items: dict[str, Item], tests: dict[str, list[Proof]]) -> dict[str, list[Proof]]:
    """Ids that tests name and that are no item."""
    return {item_id: named for item_id, named in tests.items() if item_id not in items}


def render(items: dict[str, Item], tests: dict[str, list[Proof]]) -> str:
    """The page."""
    unmet = [(item.id, item.open) for item in items.values() if item.open]
    differs = [(item.id, item.instead) for item in items.values() if item.instead]
    parts = [HEAD, f"## Open\n\n{_table(('Item', 'What falls short'), unmet)}"]
    parts.append(f"## Met in another way\n\n{_table(('Item', 'What Callgate does instead'), differs)}")
    for title in dict.fromkeys(item.part for item in items.values()):
        rows = [_row(item, tests.get(item.id, ())) for item in items.values() if item.part == title]
        parts.append(f"## {title}\n\n{_table(('Item', 'Demand', 'Tests'), rows)}")
    return "\n".join(parts)


def _row(item: Item, tests: Iterable[Proof]) -> tuple[str, str, str]:
    marks = [" ([open](#open))"] * bool(item.open) + [" ([instead](#met-in-another-way))"] * bool(item.instead)
    return item.id + "".join(marks), item.demand, _links(tests)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _links(tests: Iterable[Proof]) -> str:
    return "<br>".join(f"[{test.path.removeprefix('tests/')}::{test.name}](../{test.path})" for test in tests) or "—"


def main() -> None:
    """Write the page and say what is missing."""
    items, tests = read_items(), find_tests()
    PAGE.write_text(render(items, tests), "utf-8")
    missing, unmet = holes(items, tests), sum(1 for item in items.values() if item.open)
    print(f"{PAGE.relative_to(ROOT)}: {len(items)} items, {unmet} open, {len(missing)} without a test")
    for item in missing:
        print(f"  {item.id:<5} {item.demand[:80]}")
    for item_id, named in unknown(items, tests).items():
        print(f"  {item_id} is no item: {', '.join(f'{test.path}::{test.name}' for test in named)}")


if __name__ == "__main__":
    main()
