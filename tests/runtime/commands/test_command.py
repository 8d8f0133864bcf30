"""The command ``callgate``: its help, unknown commands, and the extras that the README lists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from callgate.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
CALLGATE = Path(sys.executable).with_name("callgate")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CALLGATE, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_the_help_names_every_command(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"callgate {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(("name", "near"), [("effect", "effects"), ("xyz", None)])
def test_an_unknown_command_exits_with_2_and_names_the_commands(name: str, near: str | None) -> None:
    done = run(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert ("did you mean" in done.stderr) is (near is not None)
    assert near is None or repr(near) in done.stderr
    assert all(command in done.stderr for command in COMMANDS)


def test_the_module_is_the_same_command() -> None:
    module = subprocess.run([sys.executable, "-m", "callgate", "xyz"], capture_output=True, text=True, check=False)
    assert (module.returncode, module.stderr) == (2, run("xyz").stderr)


def test_the_table_of_extras_in_the_readme_has_each_of_them_once() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"].keys()
    install = (ROOT / "README.md").read_text("utf-8").partition("## Install")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z0-9]+)` \| \w.* \|$", install, re.MULTILINE) == sorted(extras)
