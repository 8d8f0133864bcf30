"""The command ``callgate``: its help, unknown commands, and stores that are not there."""

from __future__ import annotations

import io
import re
import sqlite3
import subprocess
import sys
import tomllib
from importlib import import_module
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


READING = {
    "audit verify": ["audit", "verify"],
    "audit export": ["audit", "export", "--cursor", "c", "--file", "rows.jsonl"],
    "effects list": ["effects", "list"],
    "effects prune": ["effects", "prune", "--older-than", "90d", "--yes"],
    "jobs list": ["jobs", "list"],
    "jobs prune": ["jobs", "prune", "--older-than", "90d", "--yes"],
    "stores check": ["stores", "check", "--store"],
}


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("there", ["nothing", "a folder", "another file", "another database"])
def test_a_reading_command_refuses_a_store_that_is_not_there_and_creates_none(
    name: str, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = tmp_path / "typo.db"
    if there == "a folder":
        at.mkdir()
    elif there == "another file":
        at.write_text("this is no database\n" * 100)
    elif there == "another database":
        with sqlite3.connect(at) as other:
            other.execute("create table orders (id)")
        other.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    out = io.StringIO()
    command, *words = READING[name]
    monkeypatch.chdir(tmp_path)
    assert import_module(f"callgate.runtime.commands.{command}").main([*words, f"sqlite:///{at}"], out) in {1, 2}
    assert "sqlite" in out.getvalue()
    assert "no problems" not in out.getvalue()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_the_table_of_extras_in_the_readme_names_them_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"].keys()
    install = (ROOT / "README.md").read_text("utf-8").partition("## Install")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z0-9]+)` \|", install, re.MULTILINE)) == set(extras) - {"dev", "docs"}
