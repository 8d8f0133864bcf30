"""The type checker sees the engine: it finds each misspelt attribute of a context, a run and a plan."""

import ast
import io
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("hooks", "runtime", "tools", "providers")
ROOMS = ("hooks", "runtime/pipeline", "runtime/effects", "runtime/suspensions")
"""The folders of the engine."""
OBJECTS = {"ctx", "_ctx", "inner", "part", "plan", "run", "state"}
FOUND = re.compile(r'^(?P<path>\S+?):(?P<line>\d+): error: .* has no attribute "(?P<name>\w+)"')
UNTYPED = "runtime/pipeline/untyped.py"


def misspelt(name: str) -> str:
    """The name with two letters swapped, or with one more."""
    swapped = name[:-2] + name[-1] + name[-2]
    return swapped if swapped != name and len(name) > 3 else f"{name}x"


def attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes of contexts, their runs, and plans, the outermost of each chain that no other leads on from.

    Positions inside of f-strings are unknown to ``ast``.
    """
    if isinstance(node, ast.Attribute) and node.attr not in OBJECTS:
        of = node.value.value if isinstance(node.value, ast.Attribute) and node.value.attr == "run" else node.value
        name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
        if name in OBJECTS:
            yield node
            return
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from attributes(child)


def with_misspellings(text: str) -> tuple[str, set[tuple[int, str]]]:
    """The text with each of these attributes misspelt, and the line and name of each."""
    lines, wrong = [line.encode() for line in text.split("\n")], set[tuple[int, str]]()
    places = {(node.end_lineno or 0, node.end_col_offset or 0): node.attr for node in attributes(ast.parse(text))}
    for (number, end), name in sorted(places.items(), reverse=True):
        line = lines[number - 1]
        lines[number - 1] = line[: end - len(name)] + misspelt(name).encode() + line[end:]
        wrong.add((number, misspelt(name)))
    return b"\n".join(lines).decode(), wrong


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("misspelt")
    shutil.copytree(ROOT / "src", made / "src", ignore=shutil.ignore_patterns(*SOURCES, "__pycache__"))
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, made / "src" / "callgate" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", made)
    return made


def test_mypy_finds_each_misspelt_attribute_of_a_context_a_run_and_a_plan(copy: Path) -> None:
    """The control, a module with ``ctx: Any``, hides each of its own."""
    package, wrong = copy / "src" / "callgate", dict[str, set[tuple[int, str]]]()
    control = package / UNTYPED
    control.write_text((package / "runtime/pipeline/units.py").read_text().replace(": InvokeContext", ": Any"))
    modules = [path for room in ROOMS for path in sorted((package / room).rglob("*.py"))]
    for path in modules:
        text, names = with_misspellings(path.read_text())
        if names:
            path.write_text(text)
            wrong[f"src/callgate/{path.relative_to(package)}"] = names
    assert len(wrong) > 50
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache" / "misspelt"), *wrong]
    answer = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    found = dict[str, set[tuple[int, str]]]()
    for line in answer.stdout.splitlines():
        if match := FOUND.match(line):
            found.setdefault(match["path"], set()).add((int(match["line"]), match["name"]))
    hidden = f"src/callgate/{UNTYPED}"
    missed = {path: names - found.get(path, set()) for path, names in wrong.items() if path != hidden}
    assert {path: names for path, names in missed.items() if names} == {}
    assert len(wrong[hidden] - found.get(hidden, set())) > 5


ANY_LIMIT = 12
"""The maximum of ``Any`` for 1,000 lines of the sources; ``scripts/house.py`` has the figure of today."""


def test_any_does_not_become_more_frequent() -> None:
    """Issue 33 §0: where a type exists, it is written; ``object`` for what is only passed on."""
    counts: dict[str, list[int]] = {}
    for path in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        room = "/".join(path.relative_to(ROOT).parts[:2][: max(len(path.relative_to(ROOT).parts) - 1, 1)])
        of = counts.setdefault(room, [0, 0])
        of[0] += sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens)
        of[1] += text.count("\n")
    found, lines = (sum(of[i] for of in counts.values()) for i in (0, 1))
    rooms = {room: round(1000 * n / total) for room, (n, total) in sorted(counts.items()) if total}
    assert 1000 * found / lines <= ANY_LIMIT, rooms
