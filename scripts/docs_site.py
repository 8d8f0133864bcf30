"""Make the site: lay the pages out in ``build/docs``, then let zensical build them. Run by ``make docs``.

A page that is read in the checkout links to files that are no pages: sources, tests, examples. In the site such a link
becomes its text. What lies beside ``docs/`` and is worth a page (the changelog and its like) becomes one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_CODE = r"^```.*?^```$|`[^`\n]+`(?!\])"  # what looks like a link in code is none
_LINK = re.compile(rf"{_CODE}|(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)", re.DOTALL | re.MULTILINE)


def pages() -> dict[Path, str]:
    """Every page of the site: where its text lies, and its place in the site."""
    inside = {path: path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))}
    return inside | {ROOT / name: name for name in BESIDE}


def for_the_site(page: Path, text: str) -> str:
    """The text of a page with each link leading to a page of the site, or gone."""
    places = pages()
    here = Path(places[page]).parent

    def mend(link: re.Match[str]) -> str:
        if link[2] is None or "://" in link[2]:
            return link[0]
        place = places.get((page.parent / link[2]).resolve())
        if place is None:
            return link[1]
        return f"[{link[1]}]({Path(os.path.relpath(place, here)).as_posix()}{link[3] or ''})"

    return _LINK.sub(mend, text)


def lay_out(into: Path) -> None:
    """Write every page of the site to a folder."""
    shutil.rmtree(into, ignore_errors=True)
    for page, place in pages().items():
        (into / place).parent.mkdir(parents=True, exist_ok=True)
        (into / place).write_text(for_the_site(page, page.read_text("utf-8")), "utf-8")


def main() -> int:
    """Build ``site/``; the exit code is zensical's."""
    lay_out(ROOT / "build" / "docs")
    zensical = Path(sys.executable).with_name("zensical")
    return subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, check=False).returncode  # noqa: S603  (ours, with fixed arguments)


if __name__ == "__main__":
    sys.exit(main())
