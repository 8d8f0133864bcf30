"""Structure: bare asyncio has its reason, rooms import in one direction, and what is private to a gate stays private."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from callgate import Gate

ROOT = Path(__file__).parents[1]
BARE = re.compile(
    r"(?<!`)(asyncio\.(create_task|ensure_future|gather|to_thread|Semaphore|Queue|TaskGroup)\(|\.create_task\()"
)


def unexplained(text: str) -> list[str]:
    """The lines that use asyncio's structure, without a comment on them or shortly before."""
    lines, found = text.splitlines(), []
    for number, line in enumerate(lines):
        if not BARE.search(line) or line.lstrip().startswith(("#", '"')):
            continue
        if not any("# asyncio: " in near for near in lines[max(0, number - 3) : number + 1]):
            found.append(line.strip())
    return found


def test_structure_by_bare_asyncio_says_why() -> None:
    """Issue 15, C10."""
    files = [path for folder in ("runtime", "tools") for path in (ROOT / folder).rglob("*.py")]
    ours = [path for path in files if "testing" not in path.parts]
    assert {str(path): found for path in ours if (found := unexplained(path.read_text("utf-8")))} == {}


@pytest.mark.parametrize(
    "line", ["task = asyncio.create_task(x())", "await asyncio.gather(a, b)", "q = asyncio.Queue()"]
)
def test_a_line_without_a_reason_is_found(line: str) -> None:
    """The control."""
    assert unexplained(f"x = 1\n\n\n\n{line}\n") == [line]
    assert unexplained(f"# asyncio: it outlives the call\n{line}\n") == []


# ---------------------------------------------------------------------- rooms

FACES = {"hosts/mcp/face", "pipeline/shield", "remote/mcp/face", "remote/mcp/mounted", "remote/mcp/oauth_storage"}
"""Modules whose circles the import linter lists: they import on first use."""


def imported(room: Path) -> dict[str, set[str]]:
    """The modules of a room, each with those of the room that it imports, also inside functions."""
    prefix = ".".join(("callgate", *room.relative_to(ROOT).parts, ""))
    found: dict[str, set[str]] = {}
    for path in room.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        found[path.stem] = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return found


@pytest.mark.parametrize(
    "room",
    [str(one.relative_to(ROOT)) for one in sorted((ROOT / "runtime").rglob("*/")) if (one / "__init__.py").exists()],
)
def test_the_modules_of_a_room_have_an_order(room: str) -> None:
    """Issue 37 §1."""
    modules = imported(ROOT / room)
    for name in modules:
        if f"{room}/{name}".removeprefix("runtime/") in FACES:
            modules[name] = set()
    assert list(TopologicalSorter(modules).static_order())


def test_a_circle_is_found() -> None:
    """The control: what the queue of jobs imports must not import the queue."""
    modules = imported(ROOT / "runtime/jobs")
    assert {"submission", "running"} <= modules["jobs"]
    modules["submission"].add("jobs")
    with pytest.raises(CycleError):
        list(TopologicalSorter(modules).static_order())


OWNERS = {"engine", "gate", "jobs", "plans", "queue", "records"}


def private_reads(text: str) -> list[str]:
    """The reads of a private attribute of a gate or of one of its parts, by the name of the variable."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            of = node.value
            name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            if name.lstrip("_") in OWNERS:
                found.append(f"{node.lineno}: {name}.{node.attr}")
    return found


def test_what_is_private_to_a_gate_is_read_by_no_other_room() -> None:
    """Issue 37 §1."""
    files = [path for folder in ("runtime", "hooks", "tools", "providers") for path in (ROOT / folder).rglob("*.py")]
    assert {str(path): found for path in files if (found := private_reads(path.read_text("utf-8")))} == {}


@pytest.mark.parametrize("line", ["gate._engine.store", "self._gate._context(call)", "self.system.gate._now()"])
def test_a_private_read_is_found(line: str) -> None:
    """The control."""
    assert len(private_reads(line)) == 1
    assert private_reads("self._gate.engine, gate.__class__") == []


def test_a_gate_is_made_of_classes_with_a_state_of_their_own() -> None:
    """Issue 37 §1: no mixin that only splits a file. Each class sets what it reads in its own constructor."""
    for kind in Gate.__mro__[:-1]:
        assert "__init__" in vars(kind), kind
        assert vars(kind).get("__annotations__", {}) == {}, kind
