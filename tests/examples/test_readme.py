"""The README's code runs as it stands there and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_quick_start_prints_what_the_readme_says(tmp_path: Path) -> None:
    (program,) = blocks("python")
    said = README.split(program)[1]
    (printed,) = re.findall(r"^It prints:\n\n```text\n(.*?)^```$", said, re.DOTALL | re.MULTILINE)
    path = tmp_path / "quick_start.py"
    path.write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


def test_the_quick_start_stays_short() -> None:
    (program,) = blocks("python")
    assert len([line for line in program.splitlines() if line]) <= 30


def test_the_commands_of_the_readme_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    commands = re.findall(r"^\$ make ([a-z-]+)", "".join(blocks("console")), re.MULTILINE)
    assert {"run", "test"} <= set(commands)
    assert [command for command in commands if not re.search(rf"^{command}:", makefile, re.MULTILINE)] == []


def test_the_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
