"""How the tests run the worked example, and read what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lines_of_calls(printed: str) -> list[str]:
    wires = r"openai_chat|openai_compat|openai_responses\w*…?|anthropic|gemini|ollama"
    return [line for line in printed.splitlines() if re.match(rf"({wires})[ |]+\w", line)]


def as_in_a_pipe(environment: pytest.MonkeyPatch) -> None:
    """Output is neither as wide as a terminal nor in colour."""
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.delenv(name, raising=False)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR"}}
    return subprocess.run(
        [sys.executable, "-m", "examples.order_desk", *arguments],
        cwd=ROOT,
        env={**kept, "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    printed, complaint = capsys.readouterr()
    assert printed == ""
    assert complaint.count("\n") == 1
    return complaint
