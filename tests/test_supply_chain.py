"""What the project contains and depends on is checked: pins with hashes, weak code, secrets, and licences."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from scripts import supply_chain
from scripts.supply_chain import (
    HASHES,
    PINS,
    ROOT,
    Suspect,
    judged,
    refused,
    settings,
    suspects,
    weak_code,
    with_hashes,
)


def hashed(text: str) -> dict[str, list[str]]:
    """The hashes of each pin; a line that is neither a pin nor a hash is an error."""
    found: dict[str, list[str]] = {}
    pin = ""
    for line in text.splitlines():
        words = line.removesuffix("\\").split()
        if re.fullmatch(r"[a-z0-9.-]+==[^ ]+", words[0]):
            found[pin := words.pop(0)] = []
        for word in words:
            assert re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word), line
            found[pin].append(word)
    return found


def problems(pins: str, hashes: str) -> list[str]:
    """The pins without a hash, and the hashes without a pin."""
    found = hashed(hashes)
    wanted = set(pins.split())
    return sorted(wanted ^ set(found)) + sorted(pin for pin, each in found.items() if not each)


def test_every_pin_has_the_hashes_of_its_artefacts_and_nothing_else_is_in_the_file() -> None:
    """`make hashes` writes the file anew."""
    assert problems(PINS.read_text("utf-8"), HASHES.read_text("utf-8")) == []


def test_control_a_pin_that_changed_after_the_hashes_is_found() -> None:
    pins = PINS.read_text("utf-8")
    changed = pins.replace("\nanyio==", "\nanyio==9")
    assert changed != pins
    assert len(problems(changed, HASHES.read_text("utf-8"))) == 2


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def tiny_wheel(folder: Path, code: str) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_part-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_part.py", code)
        archive.writestr("tiny_part-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-part\nVersion: 1.0\n")
        archive.writestr("tiny_part-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_part-1.0.dist-info/RECORD", "")
    return wheel


def taken(pins: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Ask pip for the artefacts that a file pins, from one folder and no index, into a new folder."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-index"]
    command += ["--find-links", str(folder), "--dest", mkdtemp(dir=folder.parent), "-r", str(pins), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_artefact_that_was_replaced_after_the_hashes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name and version with other content. Without the hashes, pip takes it: the control."""
    folder = tmp_path / "index"
    wheel = tiny_wheel(folder, "SAFE = True\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    listing = f'<a href="../../{wheel.name}#sha256={digest}">{wheel.name}</a>'
    write(folder / "simple" / "tiny-part" / "index.html", f"<!DOCTYPE html><html><body>{listing}</body></html>")
    monkeypatch.setenv("UV_DEFAULT_INDEX", (folder / "simple").as_uri())
    pins, hashes = tmp_path / "pins.txt", tmp_path / "hashes.txt"
    pins.write_text("tiny-part==1.0\n", "utf-8")
    hashes.write_text(with_hashes(pins), "utf-8")
    assert hashed(hashes.read_text("utf-8")) == {"tiny-part==1.0": [f"--hash=sha256:{digest}"]}
    assert taken(hashes, folder, "--require-hashes").returncode == 0

    tiny_wheel(folder, "SAFE = False\n")
    done = taken(hashes, folder, "--require-hashes")
    assert (done.returncode, "DO NOT MATCH" in done.stderr) == (1, True)
    assert taken(pins, folder).returncode == 0


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import subprocess\n\ndef run(x: str) -> None:\n    subprocess.run(x, shell=True)\n", "B602"),
        ("import pickle\n\ndef read(x: bytes) -> object:\n    return pickle.loads(x)\n", "B301"),
        ("def read(x: str) -> object:\n    return eval(x)\n", "B307"),
        ("import ssl\n\ncontext = ssl._create_unverified_context()\n", "B323"),
        ("import hashlib\n\ndef digest(x: bytes) -> bytes:\n    return hashlib.md5(x).digest()\n", "B324"),
        ("USER = 1  # \u202e an order that a reader does not see\n", "B613"),
        ("def add(a: int, b: int) -> int:\n    return a + b\n", None),
    ],
)
def test_planted_weak_code_is_found_and_plain_code_is_not(source: str, rule: str | None, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(source, "utf-8")
    found = weak_code([path])
    assert [line.split()[1] for line in found if rule is None or rule in line] == ([] if rule is None else [rule])


# Each is made of parts, so that this file does not look as if it had one.
PLANTED = {
    "AWS Access Key": "AKIA" + "IOSFODNN7EXAMPLX",
    "Basic Auth Credentials": "postgres://ann:" + "b4tt3ry@db/shop",
    "GitHub Token": "ghp_" + "a1B2" * 9,
    "Hex High Entropy String": "'9f86d081 884c7d65 9a2feaa0 c55ad015'".replace(" ", ""),
    "JSON Web Token": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r_wW1gFWFOEjXk0",
    "OpenAI Token": "sk-" + "a1B2" * 5 + "T3BlbkFJ" + "a1B2" * 5,
    "Private Key": "-----BEGIN " + "PRIVATE KEY-----",
    "Slack Token": "xoxb-" + "123456789012-abcdefghijkl",
    "Stripe Access Key": "sk_live_" + "a1B2" * 6,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_secret_is_found_and_its_text_is_not_printed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text(f"Text.\n\nkey = {PLANTED[kind]}\n", "utf-8")
    found = [one for one in suspects([path], tmp_path, skip=settings()["secrets"]["skip"]) if one.kind == kind]
    assert [str(one) for one in found] == [f"notes.md:3: {kind}"]
    path.write_text("Text.\n\nkey = read from the environment\n", "utf-8")
    assert suspects([path], tmp_path) == []


@pytest.mark.parametrize(
    ("entry", "lines"),
    [
        ({"type": "Token", "paths": ["a.py"]}, []),
        ({"type": "Token", "values": ["x"]}, []),
        ({"type": "Other", "paths": ["a.py"]}, ["a.py:1: Token", "nothing is found for 'a.py'"]),
        ({"type": "Token", "paths": ["b.py"]}, ["a.py:1: Token", "nothing is found for 'b.py'"]),
        ({"type": "Token", "values": ["x", "y"]}, ["nothing is found for 'y'"]),
    ],
)
def test_an_accepted_secret_is_exact_and_an_entry_without_a_finding_is_reported(
    entry: dict[str, Any], lines: list[str]
) -> None:
    found = judged([Suspect("a.py", 1, "Token", "x")], [entry])
    assert len(found) == len(lines)
    assert all(line in one for line, one in zip(lines, found, strict=True))


def test_every_accepted_finding_has_its_reason() -> None:
    rules = settings()
    entries = [*rules["secrets"]["accepted"], *rules["licences"]["accepted"]]
    assert [entry for entry in entries if len(entry["reason"].split()) < 5] == []


@pytest.mark.parametrize(
    ("licence", "fine"),
    [
        ("MIT", True),
        ("Apache Software License; MIT License", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("LGPL-3.0-only", False),
        ("UNKNOWN", False),
        ("", False),
    ],
)
def test_a_licence_that_is_not_on_the_list_is_refused(licence: str, fine: bool) -> None:
    assert (refused({"planted": licence}, settings()["licences"]) == []) is fine


def test_a_licence_is_accepted_for_the_packages_of_its_entry_alone() -> None:
    rules = settings()["licences"]
    assert refused({"psycopg": "LGPL-3.0-only"}, rules) == []
    assert len(refused({"psycopg": "GPL-3.0-only", "other": "LGPL-3.0-only"}, rules)) == 2


def test_make_check_runs_each_check_and_a_finding_fails_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = re.findall(r"scripts/supply_chain\.py (code .*)", (ROOT / "Makefile").read_text("utf-8"))
    assert line.split() == ["code", "secrets", "licences"]
    found: dict[str, list[str]] = {"weak_code": [], "suspects": [], "licences_installed": []}
    monkeypatch.setattr(supply_chain, "weak_code", lambda paths: found["weak_code"])
    monkeypatch.setattr(supply_chain, "suspects", lambda *given, **named: found["suspects"])
    monkeypatch.setattr(supply_chain, "judged", lambda all_of_them, accepted: list(all_of_them))
    monkeypatch.setattr(supply_chain, "licences_installed", lambda: dict.fromkeys(found["licences_installed"], "GPL"))
    assert supply_chain.main(line.split()) == 0
    for name, each in found.items():
        each.append("planted")
        assert supply_chain.main(line.split()) == 1, name
        assert "planted" in capsys.readouterr().out
        each.clear()


def test_the_installed_packages_have_licences_from_the_list() -> None:
    """pip-licenses runs, and finds what the tests run with."""
    found = supply_chain.licences_installed()
    assert {"pydantic", "anyio", "pytest"} <= set(found)
    assert refused(found, settings()["licences"]) == []
