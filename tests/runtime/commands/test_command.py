"""The command ``callgate``: its help, unknown commands, and the extras that the README lists."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from callgate.__main__ import BROKEN_PIPE, COMMANDS
from callgate.stores import SqlStore

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


# ------------------------------------------------------------------ streams

SNOW = '[{"name": "snow_\u2603", "description": "find the snow"}]'
PICK = ("pick", "find the snow", "--catalog", "tools.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.json").write_text(SNOW, "utf-8")
    (tmp_path / "broken.json").write_text("{", "utf-8")
    (tmp_path / "app.py").write_text("from callgate import Gate\ngate = Gate()\nnumber = 5\n", "utf-8")
    store = SqlStore(f"sqlite:///{tmp_path}/s.db")
    asyncio.run(_opened(store))
    return tmp_path


async def _opened(store: SqlStore) -> None:
    await store.open()
    await store.close()


READING = [
    PICK,
    (*PICK, "--json"),
    ("jobs", "list", "sqlite:///s.db"),
    ("effects", "list", "sqlite:///s.db", "--json"),
    ("audit", "verify", "sqlite:///s.db"),
    ("stores", "show", "--store", "sqlite:///s.db"),
    ("--help",),
]


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_as_a_shell_expects(
    arguments: tuple[str, ...], folder: Path, *, buffered: bool
) -> None:
    """``callgate jobs list ADDRESS | head`` was a traceback with exit code 1, and 1 means that there are problems."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(
            [CALLGATE, *arguments], stdout=gone, stderr=subprocess.PIPE, cwd=folder, env=environment, check=False
        )
    failed = arguments[0] == "audit"  # it has nothing to write, and says why on standard error
    assert (done.returncode, b"Traceback" in done.stderr) == (1 if failed else BROKEN_PIPE, False)
    assert failed or done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [PICK, ("jobs", "list", "sqlite:///s.db"), ("--help",)], ids=" ".join)
def test_an_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...], folder: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([CALLGATE, *arguments], stdout=full, stderr=subprocess.PIPE, cwd=folder, check=False)
    assert (done.returncode, done.stderr.count(b"\n"), b"No space left" in done.stderr) == (2, 1, True)


def test_a_terminal_of_another_encoding_gets_escapes(folder: Path) -> None:
    """A tool with another letter was a ``UnicodeEncodeError``, with exit code 1: no tool fits."""
    for encoding, shown in (("ascii", rb"snow_\u2603"), ("utf-8", "snow_\u2603".encode())):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run([CALLGATE, *PICK], capture_output=True, cwd=folder, env=environment, check=False)
        assert (done.returncode, shown in done.stdout, done.stderr) == (0, True, b"")


def test_closed_streams_are_no_errors(folder: Path) -> None:
    def shell(redirected: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        line = ["sh", "-c", f'exec "$0" "$@" {redirected}', str(CALLGATE), *arguments]
        return subprocess.run(line, capture_output=True, cwd=folder, check=False)

    assert (shell(">&-", *PICK).returncode, shell(">&-", *PICK).stderr) == (0, b"")
    unanswered = shell("<&-", "jobs", "prune", "sqlite:///s.db", "--older-than", "1h")
    assert (unanswered.returncode, unanswered.stderr) == (1, b"nothing was changed\n")


FAILING: list[tuple[int, tuple[str, ...]]] = [
    (1, ("jobs", "show", "sqlite:///s.db", "no-such-job", "--json")),
    (1, ("audit", "verify", "sqlite:///s.db")),
    (2, ("effects", "list", "sqlite:///missing.db", "--json")),
    (2, ("effects", "list", "sqlite:///s.db", "--limit", "0")),
    (2, ("jobs", "list", "sqlite:///s.db", "--limit", "-5")),
    (2, ("jobs", "list", "sqlite:///s.db", "--limit", "99999999999999999999")),
    (2, ("pick", "x", "--catalog", "broken.json", "--json")),
    *((2, ("worker", "--app", app)) for app in ("", ":gate", "./app.py", "app.py:gate", "app:number", ".")),
    *((2, ("mcp", app)) for app in ("", ":gate", "./app.py", "app:number")),
    *((2, ("worker", "--app", "app:gate", "--health", port)) for port in ("0", "-1", "65536", "x")),
    *((2, ("mcp", "app:gate", "--http", port)) for port in ("0", "-1", "65536", "x")),
    (2, ("mcp", "app:gate", "--user", "")),
    *((2, ("worker", "--app", "app:gate", "--grace", grace)) for grace in ("nan", "inf", "-1")),
]


@pytest.mark.parametrize(("code", "arguments"), FAILING, ids=[" ".join(one[1]) for one in FAILING])
def test_a_failure_is_on_standard_error_and_leaves_the_output_empty(
    code: int, arguments: tuple[str, ...], folder: Path
) -> None:
    """Another program reads the output; and ``--limit 0`` listed nothing, as if there was nothing."""
    done = subprocess.run([CALLGATE, *arguments], capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (code, "", False)
    assert done.stderr.strip()


def test_the_table_of_extras_in_the_readme_has_each_of_them_once() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"].keys()
    install = (ROOT / "README.md").read_text("utf-8").partition("## Install")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z0-9]+)` \| \w.* \|$", install, re.MULTILINE) == sorted(extras)
