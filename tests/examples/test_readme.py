"""The README's code runs as it stands there and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


PROGRAMS = dict(zip(("a first tool", "the quick start"), blocks("python"), strict=True))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_prints_what_the_readme_says(program: str, tmp_path: Path) -> None:
    said = README.split(program)[1]
    printed = re.findall(r"^It prints:\n\n```text\n(.*?)^```$", said, re.DOTALL | re.MULTILINE)[0]
    path = tmp_path / "program.py"
    path.write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    if "development" in program:
        assert "development mode, not for production" in done.stderr
        assert "plan of add 1" in done.stderr
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_stays_short(program: str) -> None:
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
