"""``python -m callgate effects``: what it shows of a ledger, what it forgets, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from callgate.runtime.commands.common import SEARCHED
from callgate.stores import EffectState
from tests.providers.stores.backends import REDIS, keyspace
from tests.runtime.pipeline.ledgers import KEY, OTHER, address, call, effects, keep, ledger, sqlite

__all__ = ["address", "sqlite"]  # fixtures


def test_list_shows_what_is_in_the_ledger_by_state_tool_and_tenant(address: str) -> None:
    """I3, I4: the newest first; unknown effects can be listed alone."""
    call(address, "A-1", "no-1", "lost-1")
    call(address, "A-2", tenant=None)
    code, told = effects("list", address)
    lines = told.splitlines()
    assert (code, lines[0].split()) == (0, ["key", "state", "tool", "tenant", "user", "began", "note"])
    assert [line.split()[1] for line in lines[1:-1]] == ["committed", "unknown", "committed", "committed"]
    assert lines[-1] == "4 effects"
    assert effects("list", address, "--state", "unknown")[1].splitlines()[-1] == "1 effect"
    assert (
        effects("list", address, "--tenant", "acme", "--state", "unknown", "--state", "no_effect")[1].count("acme") == 1
    )
    assert effects("list", address, "--tenant", "")[1].splitlines()[-1] == "1 effect"
    assert effects("list", address, "--tool", "pay") == (0, "0 effects\n")
    assert effects("list", address, "--limit", "2")[1].splitlines()[-1] == "2 effects, and perhaps more: --limit"
    rows = json.loads(effects("list", address, "--json")[1])
    assert [(row["tenant"], row["state"], row["receipt"]) for row in rows] == [
        ("", "committed", "A-2 is paid"),
        ("acme", "unknown", None),
        ("acme", "committed", {**rows[2]["receipt"], "code": "tool_error", "public": "No."}),
        ("acme", "committed", "A-1 is paid"),
    ]


def test_show_tells_all_of_one_effect_by_its_key_or_its_beginning(address: str) -> None:
    """I4."""
    call(address, "A-1")
    ((_, effect),) = ledger(address)
    for given in (effect.key, effect.key[:8]):
        code, told = effects("show", address, given)
        assert code == 0
        facts = dict(line.split(maxsplit=1) for line in told.splitlines())
        assert (facts["key"], facts["state"], facts["tenant"]) == (effect.key, "committed", "acme")
        assert (facts["receipt"], facts["input_hash"]) == ("A-1 is paid", effect.input_hash)
        assert facts["began_at"].endswith("+00:00")
    assert json.loads(effects("show", address, effect.key, "--json")[1])["token"] == 1


def test_a_beginning_has_to_tell_one_effect_of_one_tenant(address: str) -> None:
    """B8: a key is unique within a tenant."""
    call(address)
    keep(address, KEY)
    keep(address, KEY, tenant="globex")
    keep(address, OTHER)
    code, told = effects("show", address, KEY[:10])
    assert (code, "there are 3 such effects" in told) == (1, True)
    assert effects("show", address, KEY)[0] == 1
    assert effects("show", address, KEY, "--tenant", "globex")[0] == 0
    assert effects("show", address, OTHER)[0] == 0
    assert effects("show", address, OTHER, "--tenant", "globex")[0] == 1
    assert "8 characters" in effects("show", address, KEY[:7])[1]
    assert f"among the newest {SEARCHED:,}" in effects("show", address, "c" * 64)[1]


def test_what_a_terminal_would_obey_is_not_written(sqlite: str) -> None:
    """B10: names and notes may come from anywhere."""
    call(sqlite)
    evil = "\x1b[2J\u202e\r\n"
    keep(sqlite, KEY, tool=f"t{evil}", user=f"u{evil}", tenant=f"x{evil}", call_id=evil)
    settled = effects("settle", sqlite, KEY, "--no-effect", "--note", f"n{evil}", "--by", f"b{evil}", "--yes")
    for code, told in (
        settled,
        effects("list", sqlite),
        effects("show", sqlite, KEY),
        effects("show", sqlite, evil * 4),
    ):
        assert code in {0, 1}
        assert [letter for letter in told if not letter.isprintable() and letter != "\n"] == []


# ---------------------------------------------------------------------- forgetting


def test_prune_forgets_what_is_over_for_long_enough_and_nothing_else(address: str) -> None:
    """I4: what is unknown stays, however old."""
    call(address)
    day = 86_400.0
    for number, (state, age) in enumerate(
        [
            (EffectState.COMMITTED, 91 * day),
            (EffectState.NO_EFFECT, 91 * day),
            (EffectState.UNKNOWN, 91 * day),
            (EffectState.COMMITTED, 89 * day),
        ]
    ):
        keep(address, f"{number}" * 64, state, at=time.time() - age, began_at=time.time() - age)
    code, told = effects("prune", address, "--older-than", "90d", "--yes")
    assert (code, told) == (0, "deleted: 2 effects, 0 suspended calls\n")
    assert [one.key[0] for _, one in ledger(address)] == ["2", "3"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["prune", "--older-than", "90"],
        ["prune", "--older-than", "59m"],
        ["prune", "--older-than", "-1d"],
        ["prune"],
        ["settle", KEY, "--note", "n"],
        ["settle", KEY, "--no-effect", "--note", ""],
        ["settle", KEY, "--no-effect", "--note", "n", "--by", " "],
        ["settle", KEY, "--committed", "--no-effect", "--note", "n"],
        ["settle", KEY, "--committed"],
        ["settle", KEY, "--committed", "--output", "paid", "--note", "n"],
        ["list", "--state", "gone"],
        ["end"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_refused_before_the_store_is_touched(wrong: list[str], sqlite: str) -> None:
    """Exit status 2."""
    with pytest.raises(SystemExit) as refused:
        effects(wrong[0], sqlite, *wrong[1:])
    assert refused.value.code == 2
    assert not Path(sqlite.removeprefix("sqlite:///")).exists()


def test_an_output_without_an_effect_is_refused(sqlite: str) -> None:
    """Exit status 1."""
    code, told = effects("settle", sqlite, KEY, "--no-effect", "--output", "1", "--note", "n", "--yes")
    assert (code, "--output goes with --committed" in told) == (1, True)


# ---------------------------------------------------------------------- stores


@pytest.mark.parametrize("verb", [["list"], ["show", KEY], ["prune", "--older-than", "1d", "--yes"]], ids=" ".join)
@pytest.mark.parametrize("at", ["nothing://here", "sqlite:////no/folder/f.db", "postgresql://u:hunter22@127.0.0.1:1/x"])
def test_a_store_out_of_reach_is_one_line_without_its_password(verb: list[str], at: str) -> None:
    """Exit status 2."""
    code, told = effects(verb[0], at, *verb[1:])
    assert (code, told.count("\n"), "hunter22" in told) == (2, 1, False)


def test_a_store_that_keeps_no_ledger_says_so() -> None:
    """I20."""
    with keyspace():
        code, told = effects("list", REDIS)
    assert (code, told.count("\n")) == (2, 1)


def test_a_file_that_is_not_there_is_not_made(sqlite: str) -> None:
    """A mistyped address."""
    code, told = effects("list", sqlite)
    assert (code, "there are no tables" in told) == (2, True)
    assert not Path(sqlite.removeprefix("sqlite:///")).exists()


def test_it_runs_as_an_operator_runs_it(sqlite: str) -> None:
    """``python -m callgate effects``, and its line in the help."""
    call(sqlite, "A-1")
    asked = [sys.executable, "-m", "callgate", "effects", "list", sqlite]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr, "committed" in done.stdout) == (0, "", True)
    told = subprocess.run(asked[:3], capture_output=True, text=True, timeout=300, check=False)
    assert "callgate effects list" in told.stdout
