"""Structured concurrency: anyio by its public API where it serves, bare asyncio with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
