"""``--input FILE``: recorded exchanges run through a gate of their own tools, or it says why not, in one line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.order_desk.app import main
from examples.order_desk.recorded import STAND_IN
from tests.conftest import DATA
from tests.examples.running import lines_of_calls, one_line, run

WHOLE: dict[str, Any] = {"provider": "anthropic", "request": None, "response": {"content": []}}
BAD: dict[str, tuple[str | bytes, str]] = {
    "not JSON": ("{", "is not JSON"),
    "empty": ("", "is not JSON"),
    "binary": (b"\xff\xfe\x00", "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "a list": ("[]", "is no recorded exchange"),
    "no provider": ('{"response": {}}', "is no recorded exchange"),
    "provider of a wrong type": ('{"provider": 5, "response": {}}', "is no recorded exchange"),
    "a provider without a codec": (
        json.dumps({**WHOLE, "provider": "abacus"}),
        "'abacus'; there are codecs for anthropic",
    ),
    "control characters": (json.dumps({**WHOLE, "provider": "\x1b[2J"}), "'\\x1b[2J'"),
    "no answer": (json.dumps({"provider": "ollama"}), "has no `response`"),
    "an answer of a wrong type": (json.dumps({**WHOLE, "response": [1]}), "has no `response`"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_recording_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, reason = BAD[name]
    path = tmp_path / "recording.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["--input", str(path)]) == 2
    assert reason in one_line(capsys)


@pytest.mark.parametrize(("name", "reason"), [("nothing.json", "there is no file"), ("", "is a directory")])
def test_a_path_that_is_no_file_is_one_line(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--input", str(tmp_path / name)]) == 2
    assert reason in one_line(capsys)


def recording(tmp_path: Path, offered: list[Any], *calls: tuple[str, Any]) -> str:
    path = tmp_path / "recording.json"
    content = [
        {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": arguments}
        for index, (name, arguments) in enumerate(calls)
    ]
    response = {"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use"}
    path.write_text(json.dumps({"provider": "anthropic", "request": {"tools": offered}, "response": response}))
    return str(path)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.usefixtures("piped")
def test_recorded_calls_are_judged_by_the_recorded_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offered = [
        {"name": "weather", "description": "", "input_schema": CITY},
        {"name": "news", "type": "custom", "input_schema": CITY},
        {"name": "web_search", "type": "web_search_20250305"},  # runs at the provider
        {"name": "far", "input_schema": {"type": "object", "properties": {"a": {"$ref": "https://far.example/a"}}}},
        "no tool at all",
    ]
    calls = [("weather", {"city": "Turin"}), ("weather", {"city": 7}), ("news", {}), ("far", {}), ("nobody", {})]
    assert main(["--input", recording(tmp_path, offered, *calls)]) == 0
    printed = capsys.readouterr().out
    outcomes = [line.split()[3:5] for line in lines_of_calls(printed)]
    assert [outcome for outcome, _ in outcomes] == ["success", "invalid", "invalid", "invalid", "invalid"]
    assert [code for _, code in outcomes[3:]] == ["unknown_tool", "unknown_tool"]
    assert " ".join(printed.split()).count(STAND_IN) >= 2, "at the top, and in the answer that goes back"
    assert printed.count("not registered") == 3
    assert printed.rstrip().endswith("5 calls: 1 success, 4 invalid")


@pytest.mark.usefixtures("piped")
def test_what_a_recording_says_cannot_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["\x1b[31mred", "[bold]x[/bold]", "\ud800", "a\nollama b", "\u202egnp"]
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    calls = [(name, {name: name}) for name in names]
    assert main(["--input", recording(tmp_path, tools, *calls)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "[bold]x[/bold]" in printed
    assert len(lines_of_calls(printed)) == len(names)


RECORDINGS = sorted((DATA / "recordings").glob("*/*.json"))


@pytest.mark.needs_data
@pytest.mark.usefixtures("piped")
def test_every_recording_runs_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    codes: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    assert RECORDINGS
    for path in RECORDINGS:
        recorded = json.loads(path.read_text("utf-8"))
        code = main(["--input", str(path)])
        codes[code] += 1
        assert code == 0, path
        printed, complaint = capsys.readouterr()
        assert complaint == "", path
        calls = recorded["expect_calls"]
        lines = lines_of_calls(printed)
        shown = [line.split()[2].removesuffix("…") for line in lines]  # a long name is cut
        assert len(lines) == len(calls), path
        assert all(call["name"].startswith(name) for name, call in zip(shown, calls, strict=True)), path
        outcomes.update(line.split()[3] for line in lines)
    with capsys.disabled():
        print(f"\nrecordings: {codes[0]} ran; calls: {dict(outcomes)}")
    assert codes[0] >= 40
    assert outcomes["success"] >= 40


@pytest.mark.needs_data
@pytest.mark.parametrize("path", RECORDINGS[:: max(1, len(RECORDINGS) // 4)], ids=lambda path: path.stem)
def test_a_recording_runs_as_a_user_runs_it(path: Path) -> None:
    done = run("--input", str(path))
    assert done.returncode in {0, 2}
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == (done.returncode == 2)
