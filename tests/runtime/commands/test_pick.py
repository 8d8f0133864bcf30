"""``callgate pick``: scores and reasons for catalogues in the forms that there are."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from callgate.runtime.commands import pick as pick_cli
from callgate.runtime.commands.pick import main

TOOLS = [{"name": "get.weather", "description": "Weather of a city."}, {"name": "send\x1b[31m", "description": "Mail."}]
FORMS = {
    "lines": "\n".join(json.dumps(one) for one in TOOLS),
    "array": json.dumps(TOOLS, indent=1),
    "server": json.dumps({"server": "s", "tools": TOOLS}),
    "servers": json.dumps({"servers": [{"server": "s", "tools": TOOLS}]}),
    "answer": json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": TOOLS}}),
    "wrapped": json.dumps([{"type": "function", "function": one} for one in TOOLS]),
}


def run(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(arguments, out), out.getvalue()


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_of_catalogue_is_read(form: str, tmp_path: Path) -> None:
    """Issue 6."""
    path = tmp_path / "catalog.json"
    path.write_text(FORMS[form], "utf-8")
    code, said = run("weather in a city", "--catalog", str(path))
    assert code == 0
    assert said.splitlines()[0].startswith("0.")
    assert "matched keywords in get.weather" in said
    assert said.splitlines()[-1] == "1 of 2 tools"


def test_it_reads_gzip_and_writes_json(tmp_path: Path) -> None:
    """Issue 6."""
    path = tmp_path / "catalog.jsonl.gz"
    path.write_bytes(gzip.compress(FORMS["lines"].encode()))
    code, said = run("weather", "--catalog", str(path), "--json", "--scorer", "overlap")
    assert code == 0
    assert [one["name"] for one in json.loads(said)["picks"]] == ["get.weather"]


def test_what_a_terminal_would_obey_is_not_written(tmp_path: Path) -> None:
    """Catalogues come from outside."""
    path = tmp_path / "c.json"
    path.write_text(FORMS["array"], "utf-8")
    code, said = run("mail", "--catalog", str(path))
    assert code == 0
    assert "\x1b" not in said


def test_when_nothing_fits_it_says_so(tmp_path: Path) -> None:
    """Contract 67."""
    path = tmp_path / "c.json"
    path.write_text(FORMS["array"], "utf-8")
    assert run("zzz", "--catalog", str(path)) == (1, "no tool of 2 fits\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a', "is not JSON"),
        ('{"name": "a"}\n{"b', "line 2 is not JSON"),
        ("[1]", "entry 1 is no tool"),
        ("[]", "holds no tools"),
        ('[{"description": "x"}]', "it has no name"),
    ],
    ids=["broken", "broken line", "no object", "empty", "nameless"],
)
def test_a_bad_catalogue_is_a_clear_error(text: str, said: str, tmp_path: Path) -> None:
    """Issue 6: clear errors."""
    path = tmp_path / "c.json"
    path.write_text(text, "utf-8")
    code, out = run("x", "--catalog", str(path))
    assert code == 2
    assert said in out
    assert "c.json" in out


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    """Issue 6: clear errors."""
    code, out = run("x", "--catalog", str(tmp_path / "none.json"))
    assert (code, out.startswith("cannot pick: ")) == (2, True)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 6: bounded memory, packed or not."""
    monkeypatch.setattr(pick_cli, "MAX_BYTES", 1_000)
    long = FORMS["lines"].encode() + b" " * 1_000_000
    for name, content in (("c.jsonl", long), ("c.jsonl.gz", gzip.compress(long))):
        (tmp_path / name).write_bytes(content)
        code, out = run("x", "--catalog", str(tmp_path / name))
        assert (code, "larger than" in out) == (2, True)


PACKED = gzip.compress(FORMS["lines"].encode() * 100)
BROKEN = {
    "cut short": PACKED[:-20],
    "one byte changed": PACKED[:30] + bytes([PACKED[30] ^ 255]) + PACKED[31:],
    "not packed": FORMS["lines"].encode(),
    "nothing": b"",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_packed_file_that_is_broken_is_a_clear_error(how: str, tmp_path: Path) -> None:
    """Issue 6: clear errors."""
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(BROKEN[how])
    code, out = run("x", "--catalog", str(path))
    assert (code, out.startswith("cannot pick: ")) == (2, True)


@pytest.mark.parametrize("opening", ["[", '{"tools":['], ids=["lists", "tools"])
def test_a_file_that_nests_without_end_is_a_clear_error(opening: str, tmp_path: Path) -> None:
    """Issue 6: clear errors."""
    path = tmp_path / "c.json"
    closing = "]" if opening == "[" else "]}"
    for depth in (300, 100_000):
        path.write_text(opening * depth + closing * depth, "utf-8")
        code, out = run("x", "--catalog", str(path))
        assert (code, out.startswith("cannot pick: ")) == (2, True)


def test_what_no_terminal_can_show_is_escaped_as_json(tmp_path: Path) -> None:
    """Issue 6: half a surrogate, and control characters beyond ASCII that some terminals obey."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps([{"name": "a\ud800\x9b", "description": "mail 天"}]), "utf-8")
    code, out = run("mail", "--catalog", str(path), "--json")
    assert code == 0
    assert out.isascii()
    assert json.loads(out)["picks"][0]["name"] == "a\ud800\x9b"
    code, out = run("mail", "--catalog", str(path))
    assert "a??" in out


@pytest.mark.needs_data
def test_real_catalogues_are_read(shared_data: Path) -> None:
    """Issue 6: the forms of the sample data."""
    for path in sorted((shared_data / "mcp_catalogs").glob("*.json")):
        assert run("read a file", "--catalog", str(path))[0] in {0, 1}, path.name
    assert run("weather", "--catalog", str(shared_data / "tool_selection/bfcl_live/catalog.jsonl"))[0] == 0
