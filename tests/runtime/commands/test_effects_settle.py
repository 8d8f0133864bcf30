"""``python -m callgate effects settle``: it settles unknown effects only, once, after a confirmation, and writes an audit row."""

from __future__ import annotations

import logging
import threading
import time
from io import StringIO
from typing import Any, Literal

import pytest

from callgate.errors import StoreError
from callgate.providers.stores.address import store_at
from callgate.runtime.commands import common as store_cli
from callgate.runtime.commands.audit import main as audit
from callgate.stores import EffectState
from callgate.testing import FaultyStore, faults_of
from tests.runtime.pipeline.ledgers import KEY, OTHER, address, call, effects, keep, ledger, notes, ran, sqlite
from tests.runtime.pipeline.listening import handled

__all__ = ["address", "sqlite"]  # fixtures


def test_what_took_place_is_settled_with_the_output_that_a_repeat_gets(address: str) -> None:
    """I4: the tool does not run again."""
    assert [one.outcome for one in call(address, "lost-1", "lost-1")] == ["error", "unknown"]
    key = ledger(address)[0][1].key
    code, told = effects(
        *("settle", address, key, "--committed", "--output", '"paid after all"', "--note", "the bank says so"),
        *("--by", "max", "--yes"),
    )
    assert (code, "committed" in told, "max" in told) == (0, True, True)
    (again,) = call(address, "lost-1")
    assert (again.outcome, again.replayed, again.output, ran) == ("success", True, "paid after all", ["lost-1"])


def test_what_did_not_take_place_is_settled_and_a_repeat_runs(address: str) -> None:
    """I4."""
    call(address, "lost-1")
    key = ledger(address)[0][1].key
    assert effects("settle", address, key[:12], "--no-effect", "--note", "no transfer is there", "--yes")[0] == 0
    assert [one.outcome for one in call(address, "lost-1")] == ["error"]
    assert ran == ["lost-1"] * 2


def test_who_settled_what_and_why_is_in_the_ledger_and_in_a_record_that_verifies(address: str) -> None:
    """Contract I17."""
    call(address, "lost-1")
    ((tenant, effect),) = ledger(address)
    effects("settle", address, effect.key, "--committed", "--note", "asked the bank", "--by", "max", "--yes")
    assert ledger(address)[0][1].note == "max: asked the bank"
    (row,) = notes(address)
    told = {name: row.body[name] for name in ("by", "note", "state", "effect_key", "tenant", "user", "tool", "call_id")}
    assert told == {
        "by": "max",
        "note": "asked the bank",
        "state": "committed",
        "effect_key": effect.key,
        "tenant": tenant,
        "user": "ann",
        "tool": "refund",
        "call_id": "c",
    }
    out = StringIO()
    assert audit(["verify", address], out) == 0, out.getvalue()


def test_without_a_name_it_is_who_runs_the_command(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I17."""
    call(sqlite)
    for key, user, expected in ((KEY, lambda: "ann", "ann"), (OTHER, _nobody, "unknown")):
        monkeypatch.setattr("getpass.getuser", user)
        keep(sqlite, key)
        effects("settle", sqlite, key, "--no-effect", "--note", "n", "--yes")
        assert notes(sqlite)[-1].body["by"] == expected


def _nobody() -> str:
    raise KeyError("no such user")


@pytest.mark.parametrize("state", [EffectState.RUNNING, EffectState.COMMITTED, EffectState.NO_EFFECT])
def test_what_is_not_unknown_is_not_settled(state: EffectState, address: str) -> None:
    """I4: what is recorded is not changed."""
    call(address)
    keep(address, KEY, state)
    before = ledger(address)
    code, told = effects("settle", address, KEY, "--committed", "--note", "n", "--yes")
    assert (code, told) == (1, f"{KEY[:16]} is {state}; only an unknown effect can be settled\n")
    assert (ledger(address), notes(address)) == (before, [])


def test_what_a_dead_process_was_running_is_settled_without_waiting_for_a_gate(address: str) -> None:
    """I3: its lease has expired, so its state is unknown."""
    call(address)
    keep(address, KEY, EffectState.RUNNING, lease_until=time.time() - 1)
    assert "running, overdue" in effects("list", address)[1]
    assert effects("settle", address, KEY, "--no-effect", "--note", "n", "--yes")[0] == 0
    assert ledger(address)[0][1].state is EffectState.NO_EFFECT


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_it_asks_before_it_writes_and_no_answer_is_a_no(answer: str, agreed: bool, sqlite: str) -> None:
    """Issue 7: both for settling and for pruning."""
    call(sqlite)
    keep(sqlite, KEY)
    keep(sqlite, OTHER, EffectState.COMMITTED, at=0.0)
    code, told = effects("settle", sqlite, KEY, "--no-effect", "--note", "n", answers=answer)
    assert (code, "refund for ann of tenant 'acme'" in told) == (0 if agreed else 1, True)
    assert effects("prune", sqlite, "--older-than", "1h", answers=answer)[0] == code
    assert told.count("Go on? [y/N]") == 1
    assert ("nothing was changed" in told) is not agreed
    assert [one.state for _, one in ledger(sqlite)] == (["no_effect"] if agreed else ["unknown", "committed"])


def test_who_was_faster_wins_and_the_other_is_told(sqlite: str) -> None:
    """I4: one end, one row about it."""
    call(sqlite)
    keep(sqlite, KEY)

    class Slow:
        def readline(self) -> str:  # while the one is thinking, another says what happened
            faster = threading.Thread(
                target=lambda: effects("settle", sqlite, KEY, "--committed", "--note", "first", "--yes")
            )
            faster.start()
            faster.join()
            return "y\n"

    code, told = effects("settle", sqlite, KEY, "--no-effect", "--note", "second", answers=Slow())
    assert (code, "another person has settled it" in told) == (1, True)
    assert (ledger(sqlite)[0][1].state, [row.body["note"] for row in notes(sqlite)]) == ("committed", ["first"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_whichever_operation_fails_the_end_and_its_record_are_there_together_or_not_at_all(
    when: Literal["before", "after"], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I20."""

    def settle(key: str, fails_at: int) -> int:
        """The exit code; how many operations there were is in the list."""
        made: list[Any] = []

        def faulty(at: str, *, migrate: bool) -> Any:
            made.append(
                FaultyStore(
                    store_at(at, migrate=migrate), fails_at or (), when=when, error=StoreError("the line is down")
                )
            )
            return made[0]

        monkeypatch.setattr(store_cli, "store_at", faulty)
        code, _ = effects("settle", address, key, "--committed", "--note", "n", "--yes")
        calls.append(faults_of(made[0]).calls)
        return code

    call(address)
    keep(address, KEY)
    calls: list[int] = []
    assert settle(KEY, 0) == 0
    assert calls[0] > 5
    for n in range(1, calls[0]):  # the last one closes the store
        key = f"{n:02d}" * 32
        keep(address, key)
        assert settle(key, n) == 2
        state = next(one.state for _, one in ledger(address) if one.key == key)
        recorded = [row for row in notes(address) if row.body["effect_key"] == key]
        assert (state, len(recorded)) in {("unknown", 0), ("committed", 1)}, f"operation {n}"
    out = StringIO()
    assert audit(["verify", address], out) == 0, out.getvalue()


def test_the_log_names_an_effect_as_the_command_takes_it(sqlite: str) -> None:
    """I3: the key in the log settles an unknown effect."""
    heard: list[dict[str, Any]] = []

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.__dict__["callgate"])

    with handled(Hears()):
        call(sqlite, "lost-1")
    (event,) = [one for one in heard if one["event"] == "effect.unknown"]
    assert effects("settle", sqlite, event["key"], "--no-effect", "--note", "n", "--yes")[0] == 0
