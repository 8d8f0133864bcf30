"""Print the test files that read the sample data, themselves or through a module that they import, on one line.

``.ci/run`` runs them with an empty folder, as they run in a clone that has no sample data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_READS = re.compile(r"\b(CALLGATE_DATA|DATA|HAS_DATA|needs_data|shared_data)\b")
_SHARED = "tests.conftest"  # every test has it: a test that reads the data names a part of it


def modules(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each module that tests import from the checkout, by its dotted name."""
    files = [
        path for folder in ("benchmarks", "examples", "scripts", "tests") for path in (root / folder).rglob("*.py")
    ]
    return {".".join(path.relative_to(root).with_suffix("").parts): path.read_text("utf-8") for path in files}


def _imports(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def readers(texts: Mapping[str, str]) -> set[str]:
    """Return the modules that read the data, and those that import one of them at any distance."""
    imported = {name: set(_imports(text)) for name, text in texts.items()}
    found = {name for name, text in texts.items() if name != _SHARED and _READS.search(text)}
    while more := {name for name, names in imported.items() if name not in found and names & found}:
        found |= more
    return found


def data_tests(root: Path = ROOT) -> list[str]:
    """Return the paths of the tests among them."""
    names = sorted(name for name in readers(modules(root)) if name.rpartition(".")[2].startswith("test_"))
    return [f"{name.replace('.', '/')}.py" for name in names]


if __name__ == "__main__":
    print(*data_tests())
