"""Suspended conversations: a state in plain JSON, picked up in the same or another process. Issue 5."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate import ErrorInfo, Outcome, ToolCall, ToolResult, User
from callgate.runtime.conversation.converse import converse, converse_events
from callgate.runtime.conversation.events import CallFinished, CallsStarted, Conversation, Ending
from callgate.runtime.conversation.state import VERSION, StateRefused
from callgate.runtime.models.wire.reply import Usage
from callgate.testing import run_virtual
from callgate.tools import Issue
from tests.runtime.conversation.conversing import ANN, Asking, FakeModel, Notes, asks, call, check_paired, says, told
from tests.runtime.gate.making import gate_of

ROOT = Path(__file__).resolve().parents[3]
ASKS = asks(call("a", n=1), call("b", n=7), call("c", n=-1), call("d", n=8), tokens=10)


def run(client: Any, gate: Any, messages: Any = (), **options: Any) -> Conversation:
    options.setdefault("user", ANN)

    async def main() -> Conversation:
        async with gate:
            return await converse(client, gate, messages, **options)

    return run_virtual(main())


def suspended(notes: Notes | None = None, **options: Any) -> Conversation:
    """Of four calls one succeeds, one fails, and two wait."""
    gate = gate_of([(notes or Notes()).tool()], Asking(suspends=[7, 8]))
    return run(FakeModel(ASKS), gate, "hello", **options)


def state() -> Any:
    """The state after a journey as text."""
    return json.loads(json.dumps(suspended().state))


def done(call_id: str, output: Any = "agreed") -> ToolResult:
    return ToolResult(call_id, "note", Outcome.SUCCESS, output)


def test_calls_that_wait_end_the_turn_once_the_others_are_done() -> None:
    """Issue 5."""
    notes = Notes()
    ended = suspended(notes)
    assert (ended.ended, ended.ok, ended.rounds) == (Ending.SUSPENDED, False, 1)
    assert [(result.call_id, result.pending.kind, result.pending.prompt) for result in ended.pending] == [
        ("b", "approval", "May I note 7?"),
        ("d", "approval", "May I note 8?"),
    ]
    assert sorted(notes.ran) == [-1, 1]
    assert ended.state == json.loads(json.dumps(ended.state))
    assert ended.state is not None
    assert ended.state["version"] == VERSION


def test_whoever_does_not_resume_has_a_history_to_go_on_with() -> None:
    """The model is told that the calls wait; every call has its result."""
    ended = suspended()
    check_paired(ended.messages)
    assert told(ended.messages)["b"]["error"]["code"] == "suspended"
    assert run(FakeModel(says("fine")), gate_of([]), ended.messages).ok


def test_only_what_waited_runs_when_it_is_resumed_and_the_results_keep_their_order() -> None:
    """Issue 5: the results already made are not run again. The gate decides anew."""
    notes, asking = Notes(), Asking()
    client = FakeModel(says("done", usage=Usage(total=5)))
    ended = run(client, gate_of([notes.tool()], asking), resume=state())
    assert (ended.ended, ended.rounds, ended.usage.total) == (Ending.DONE, 2, 15)
    assert asking.calls == notes.ran == [7, 8]
    check_paired(ended.messages)
    assert list(told(ended.messages)) == ["a", "b", "c", "d"]
    assert told(ended.messages)["c"]["error"]["code"] == "tool_failed"
    assert [one.result.outcome for one in ended.calls] == ["success", "success", "error", "success"]
    assert client.seen[0][0] == list(ended.messages[:-1])


def test_results_from_elsewhere_take_the_place_of_calls_that_waited() -> None:
    """Client-executed tools, and people who say no; the other call is put to the gate."""
    notes = Notes()
    no = ToolResult("x", "x", Outcome.DENIED, error=ErrorInfo("declined", "The person said no."))
    ended = run(FakeModel(says("ok")), gate_of([notes.tool()]), resume=state(), results={"b": no})
    assert notes.ran == [8]
    answered = told(ended.messages)
    assert answered["b"]["error"] == {"code": "declined", "message": "The person said no."}
    assert answered["d"] == "noted 8"
    both = run(FakeModel(says("ok")), gate_of([]), resume=state(), results={"b": done("b", {"x": 1}), "d": done("d")})
    assert (told(both.messages)["b"], told(both.messages)["d"]) == ({"x": 1}, "agreed")


def test_it_may_wait_again_and_what_is_done_meanwhile_is_kept() -> None:
    """One at a time."""
    notes = Notes()
    gate = gate_of([notes.tool()], Asking(suspends=[8]))
    again = run(FakeModel(), gate, resume=state())
    assert again.ended is Ending.SUSPENDED
    assert [result.call_id for result in again.pending] == ["d"]
    ended = run(FakeModel(says("ok")), gate_of([notes.tool()]), resume=again.state, results={"d": done("d")})
    assert notes.ran == [7]
    assert list(told(ended.messages).values())[1] == "noted 7"
    assert ended.ok
    check_paired(ended.messages)


def test_a_tool_that_was_switched_off_meanwhile_does_not_run() -> None:
    """Resuming is a new decision: what the user may no longer see does not exist."""
    notes = Notes()
    gate = gate_of([notes.tool("other")])
    ended = run(FakeModel(says("ok")), gate, resume=state())
    assert told(ended.messages)["b"]["error"]["code"] == "unknown_tool"
    assert notes.ran == []


def test_events_of_a_resumed_conversation_tell_of_what_runs_now() -> None:
    """Not of what was told before."""

    kept = state()

    async def main() -> list[Any]:
        async with gate_of([Notes().tool()]) as gate:
            events = converse_events(FakeModel(says("ok")), gate, user=ANN, resume=kept, results={"b": done("b")})
            return [event async for event in events]

    seen = run_virtual(main())
    assert isinstance(seen[0], CallsStarted)
    assert [one.id for one in seen[0].calls] == ["d"]
    assert [event.result.call_id for event in seen if isinstance(event, CallFinished)] == ["d"]


def test_limits_count_on_over_a_suspension() -> None:
    """Rounds, calls, tokens and failures are those of the whole conversation; a deadline is of one run."""
    kept = state()
    assert (kept["rounds"], kept["called"], kept["tokens"]) == (1, 4, 10)
    notes = Notes()
    assert run(FakeModel(), gate_of([notes.tool()]), resume=kept, max_rounds=1).ended is Ending.MAX_ROUNDS
    assert notes.ran == [7, 8]  # they were admitted before
    assert run(FakeModel(asks(call("e"))), gate_of([notes.tool()]), resume=kept, max_calls=4).ended is Ending.MAX_CALLS
    tired = run(FakeModel(asks(call("e"), tokens=90)), gate_of([Notes().tool()]), resume=kept, max_tokens=100)
    assert tired.ended is Ending.TOKENS
    failing = ToolResult("b", "note", Outcome.ERROR, error=ErrorInfo("x", "x"))
    given = {"b": failing, "d": failing}
    assert run(FakeModel(), gate_of([]), resume=kept, results=given, max_failures=3).ended is Ending.FAILURES


def test_a_limit_that_cut_the_answer_short_still_holds_after_it() -> None:
    """Calls that were not run stay so."""
    first = run(FakeModel(ASKS), gate_of([Notes().tool()], Asking(suspends=[7])), "hello", max_calls=2)
    assert first.ended is Ending.SUSPENDED
    notes = Notes()
    ended = run(FakeModel(), gate_of([notes.tool()]), resume=first.state, max_calls=2)
    assert ended.ended is Ending.MAX_CALLS
    assert notes.ran == [7]
    check_paired(ended.messages)


def test_what_had_no_time_before_a_suspension_runs_after_it() -> None:
    """A deadline is of one run."""
    notes = Notes()
    gate = gate_of([notes.tool(parallel=False)], Asking(suspends=[7]))
    first = run(FakeModel(asks(call("a", n=7), call("b", n=0), call("c", n=2))), gate, "hello", deadline=0.9)
    assert first.ended is Ending.SUSPENDED
    assert told(first.messages)["c"]["error"]["code"] == "deadline"
    again = Notes()
    ended = run(FakeModel(says("ok")), gate_of([again.tool()]), resume=first.state)
    assert (ended.ended, again.ran) == (Ending.DONE, [7, 2])
    check_paired(ended.messages)


def test_issues_and_flags_survive_the_journey() -> None:
    """What the model is told of a failure is the same as without a suspension."""
    bad = ToolCall(id="bad", name="note", arguments={"n": "x"})
    cut = ToolCall(id="cut", name="note", arguments="{", synthetic_id=True, truncated=True)
    gate = gate_of([Notes().tool()], Asking(suspends=[7]))
    ended = run(FakeModel(asks(bad, cut, call("b", n=7))), gate, "hello")
    before = told(ended.messages)
    after = told(run(FakeModel(says("ok")), gate_of([Notes().tool()]), resume=ended.state).messages)
    assert after["bad"] == before["bad"]
    assert after["cut"] == before["cut"]
    assert before["bad"]["error"]["issues"][0]["pointer"] == "/n"
    assert ended.calls[0].result.error is not None
    assert isinstance(ended.calls[0].result.error.issues[0], Issue)


# ---------------------------------------------------------------------- what is refused


def test_a_state_is_for_its_user_only() -> None:
    """It holds what was read on their behalf. Tenants count."""
    for other in (User("eve", "acme"), User("ann", "globex"), User("ann")):
        with pytest.raises(StateRefused, match="another user's"):
            run(FakeModel(), gate_of([]), resume=state(), user=other)


def damaged() -> dict[str, tuple[Any, str]]:
    whole = state()
    lacking = {f"without {name}": ({k: v for k, v in whole.items() if k != name}, ".") for name in whole}
    return lacking | {
        "nothing": ({}, "takes the state"),
        "a text": ("state", "takes the state"),
        "a list": ([], "takes the state"),
        "a later version": ({**whole, "version": VERSION + 1}, "version 2"),
        "another wire": ({**whole, "wire": "anthropic"}, "speaks 'openai_chat'"),
        "no calls": ({**whole, "calls": []}, "damaged"),
        "the same call twice": ({**whole, "calls": whole["calls"] * 2}, "damaged"),
        "results of no call": ({**whole, "calls": whole["calls"][2:]}, "damaged"),
        "calls of a list": ({**whole, "calls": [{**whole["calls"][1], "tool": ["x"]}]}, "damaged"),
        "a field too many": ({**whole, "calls": [{**one, "chunk": 1, "x": 2} for one in whole["calls"]]}, "damaged"),
        "no such outcome": ({**whole, "results": [{**whole["results"][0], "outcome": "fine"}]}, "damaged"),
        "a negative count": ({**whole, "called": -9}, "damaged"),
        "a count that is none": ({**whole, "rounds": "1"}, "damaged"),
        "a count that is true": ({**whole, "rounds": True}, "damaged"),
        **{
            f"tokens that are {value!r}": ({**whole, "usage": {**whole["usage"], "total": value}}, "damaged")
            for value in ("5", -5, 0.5, True)
        },
        "messages that are none": ({**whole, "messages": ["x"]}, "damaged"),
    }


DAMAGED = damaged()


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_state_is_refused_before_anything_runs(name: str) -> None:
    """Fail closed."""
    broken, says_why = DAMAGED[name]
    notes, client = Notes(), FakeModel(says("never"))
    with pytest.raises(StateRefused, match=says_why):
        run(client, gate_of([notes.tool()]), resume=broken)
    assert (notes.ran, client.seen) == ([], [])


WRONG: dict[str, dict[str, Any]] = {
    "a call that is done": {"a": done("a")},
    "no call at all": {"z": done("z")},
    "no result": {"b": {"output": "agreed"}},
    "no JSON": {"b": done("b", object())},
    "no finite number": {"b": done("b", float("nan"))},
}


@pytest.mark.parametrize("name", WRONG)
def test_results_that_answer_nothing_are_refused(name: str) -> None:
    """Fail closed."""
    with pytest.raises(StateRefused, match="results"):
        run(FakeModel(), gate_of([]), resume=state(), results=WRONG[name])


@pytest.mark.parametrize(
    "unreadable",
    [
        done("b", {"text": "\ud800"}),
        done("b", "\ud800"),
        done("b", {1}),
        ToolResult("b", "note", Outcome.ERROR, error=ErrorInfo("refused", "\ud800")),
        ToolResult("b", "note", Outcome.SUCCESS, "noted", ran_with={"n": object()}),
        ToolResult("b", "note", Outcome.ERROR, error="The person refused."),
        ToolResult("b", "note", "success", "noted"),  # type: ignore[arg-type]
    ],
)
def test_a_result_that_no_model_can_read_is_refused_before_another_call_runs(unreadable: ToolResult) -> None:
    """The call that waits beside it would run, and the error behind it would lose its result."""
    notes = Notes()
    with pytest.raises(StateRefused, match="results: give a ToolResult for 'b'"):
        run(FakeModel(says("done")), gate_of([notes.tool()]), resume=state(), results={"b": unreadable})
    assert notes.ran == []


def test_messages_and_a_state_do_not_go_together() -> None:
    """One or the other."""
    with pytest.raises(ValueError, match="not both"):
        run(FakeModel(), gate_of([]), "hello", resume=state())


def test_the_state_holds_no_handle_and_nothing_of_the_client() -> None:
    """No secrets: the handle of a suspension resumes it, so it stays with whoever asks the person."""
    ended = suspended()
    text = json.dumps(ended.state)
    assert all(result.pending.handle not in text for result in ended.pending)
    assert set(ended.state or ()) == {
        *("version", "wire", "user", "messages", "calls", "results"),
        *("rounds", "called", "failures", "tokens", "usage"),
    }


ELSEWHERE = """
import asyncio, json, sys
from callgate.runtime.conversation.converse import converse
from tests.runtime.gate.making import gate_of
from tests.runtime.conversation.conversing import ANN, FakeModel, Notes, says

async def main():
    notes = Notes()
    async with gate_of([notes.tool()]) as gate:
        ended = await converse(FakeModel(says("done")), gate, user=ANN, resume=json.load(sys.stdin))
    print(json.dumps({"ended": ended.ended, "ran": notes.ran, "messages": ended.messages}))

asyncio.run(main())
"""


def test_another_process_goes_on() -> None:
    """Issue 5."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=json.dumps(state()),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["ended"], printed["ran"]) == ("done", [7, 8])
    check_paired(printed["messages"])
