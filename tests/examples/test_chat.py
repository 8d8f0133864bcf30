"""The example of a conversation: what it prints is what happened, over every wire; and how it is told which model."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from callgate.testing import Call, Fault, Say, ScriptedModel
from examples.chat import app
from examples.chat.app import CLIENTS, main
from examples.chat.library import READER, Shelves, library
from examples.chat.transcript import Transcript

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = ("CALLGATE_PROVIDER", "CALLGATE_MODEL", "CALLGATE_BASE_URL", "CALLGATE_API_KEY", "OPENAI_API_KEY")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, piped: None) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def lines(printed: str) -> list[tuple[str, str]]:
    """Who, and what."""
    found = (re.match(r"(\w+) +(.*)", line) for line in printed.splitlines())
    return [(line[1], line[2]) for line in found if line]


@pytest.mark.parametrize("wire", CLIENTS)
def test_the_conversation_shows_a_denial_and_a_mended_mistake(wire: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 5."""
    assert main(["--wire", wire]) == 0
    printed, complaint = capsys.readouterr()
    assert complaint == ""
    said = lines(printed)
    whats = [what for who, what in said if who in {"calls", "success", "invalid", "denied"}]
    assert [who for who, _ in said if who in {"calls", "success", "invalid", "denied"}] == [
        *("calls", "calls", "success", "success"),
        *("calls", "calls", "invalid", "denied"),
        *("calls", "success"),
    ]
    assert "three weeks" in whats[4]
    assert "expected integer, got string" in whats[6]
    assert "at most 28 days" in whats[7]
    assert whats[9] == '1. {"book_id": "B-1", "title": "Solaris", "days": 21}'
    assert "tools: find_book, lend" in printed
    assert "discard" not in printed
    assert "(done: 4 rounds, 5 calls, 48 tokens in, 28 out)" in printed


def test_it_runs_from_the_command_line_without_network_and_key() -> None:
    """``make example-chat``."""
    kept = {name: value for name, value in os.environ.items() if name not in {*VARIABLES, "COLUMNS", "FORCE_COLOR"}}
    done = subprocess.run(
        [sys.executable, "-m", "examples.chat", "--message", "Is The Invincible in?"],
        cwd=ROOT,
        env={**kept, "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "The Invincible is out." in done.stdout
    assert re.search(r"^example-chat:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("wire", CLIENTS)
def test_any_of_the_wires_is_chosen_by_the_environment(
    wire: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 5: the key of ``CALLGATE_API_KEY`` goes where ``CALLGATE_BASE_URL`` says, and is never shown."""
    with ScriptedModel([Call("find_book", {"title": "solaris"}), Say("It is.")]) as model:
        monkeypatch.setenv("CALLGATE_PROVIDER", wire)
        monkeypatch.setenv("CALLGATE_MODEL", "tiny")
        monkeypatch.setenv("CALLGATE_BASE_URL", model.url)
        monkeypatch.setenv("CALLGATE_API_KEY", "sk-secret")
        assert main(["--message", "Is Solaris in?"]) == 0
    printed, _ = capsys.readouterr()
    assert printed.startswith(f"tiny over {wire}, tools: find_book, lend")
    assert "It is." in printed
    assert "sk-secret" not in printed
    assert (model.refusals, {asked.model for asked in model.requests}, model.requests[0].key) == ([], {"tiny"}, True)


def test_the_keys_of_providers_stay_at_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key is sent where it belongs."""
    with ScriptedModel([Say("Hello.")]) as model:
        monkeypatch.setenv("CALLGATE_PROVIDER", "openai_chat")
        monkeypatch.setenv("CALLGATE_MODEL", "tiny")
        monkeypatch.setenv("CALLGATE_BASE_URL", model.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-at-home")
        assert main(["--message", "Hello?"]) == 0
    assert not model.requests[0].key


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no such provider": ({"CALLGATE_PROVIDER": "hal"}, "choose one of openai_chat,"),
    "no model": ({"CALLGATE_PROVIDER": "openai_chat"}, "set CALLGATE_MODEL"),
    "no key": ({"CALLGATE_PROVIDER": "openai_chat", "CALLGATE_MODEL": "tiny"}, "OPENAI_API_KEY"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_missing_is_said_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2."""
    environment, complaint = WRONG[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert main([]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert complaint in printed.err


def test_a_provider_that_fails_is_told_and_the_status_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1."""
    with ScriptedModel([Fault.http(400, "no such model")]) as model:
        monkeypatch.setenv("CALLGATE_PROVIDER", "anthropic")
        monkeypatch.setenv("CALLGATE_MODEL", "tiny")
        monkeypatch.setenv("CALLGATE_BASE_URL", model.url)
        assert main(["--message", "Hello?"]) == 1
    printed, _ = capsys.readouterr()
    assert "(error: 0 rounds, 0 calls)" in printed
    assert "no such model" in printed


def test_at_a_terminal_the_person_goes_on_talking(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until an empty line."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    typed = iter(["Is Solaris in?", "What can you do?", "  "])
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    assert main([]) == 0
    printed, _ = capsys.readouterr()
    assert "Solaris is out." in printed  # it was lent before: the history and the shelves are the same
    assert "I am a script." in printed


def test_an_end_of_input_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an empty line does."""

    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert app.ask() == ""


def test_what_a_model_writes_cannot_steer_the_terminal() -> None:
    """Control characters are replaced."""
    from callgate.runtime.conversation.events import CallFinished, CallsStarted
    from callgate.runtime.models.wire.reply import TextDelta
    from callgate.tools.calls import Outcome, ToolCall, ToolResult

    written = io.StringIO()
    shown = Transcript(Console(file=written, markup=False, highlight=False, width=100))
    evil: Any = "\x1b[2J[red]\x07"
    shown.said(evil)
    shown.show(TextDelta(evil))
    shown.show(CallsStarted(1, (ToolCall(id="a", name=evil, arguments=evil),)))
    shown.show(CallFinished(1, ToolResult("a", evil, Outcome.SUCCESS, evil)))
    assert "\x1b" not in written.getvalue()
    assert "[red]" in written.getvalue()


def test_a_reader_is_not_told_of_what_only_librarians_may_do() -> None:
    """Contract C29."""
    gate = library(Shelves())
    assert [one.name for one in gate.tools_for(READER)] == ["find_book", "lend"]
