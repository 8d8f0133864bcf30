"""Random conversations against a model of them in a few lines. Issue 5; contract C10a, C10b."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import Outcome, ToolCall
from callgate.runtime.conversation.converse import converse
from callgate.runtime.conversation.events import Conversation
from callgate.testing import run_virtual
from tests.runtime.conversation.conversing import ANN, Asking, FakeModel, Notes, asks, check_paired, says, told
from tests.runtime.gate.making import gate_of

KINDS = ("fine", "alone", "fails", "denied", "waits", "unknown", "malformed", "truncated", "invalid")
RUN = {"fine", "alone", "fails", "waits"}
GOOD = {"fine", "alone", "waits"}


@dataclass(frozen=True)
class Limits:
    max_rounds: int
    max_calls: int
    max_failures: int
    max_tokens: int | None


@dataclass
class Expected:
    """What ought to come of a script: by the documentation, and by nothing else."""

    ended: str = ""
    ran: list[int] = field(default_factory=list)
    admitted: int = 0
    rounds: int = 0

    @classmethod
    def of(cls, script: list[tuple[list[str], int]], limits: Limits) -> Expected:
        self, spent, failures, number = cls(), 0, 0, 0
        for kinds, tokens in script:
            if self.rounds == limits.max_rounds:
                self.ended = "max_rounds"
                return self
            self.rounds += 1
            spent += tokens
            if not kinds:
                break
            if limits.max_tokens is not None and spent >= limits.max_tokens:
                self.ended = "tokens"
                return self
            for kind in kinds:
                number += 1
                if self.admitted == limits.max_calls:
                    self.ended = "max_calls"
                    continue
                self.admitted += 1
                failures = 0 if kind in GOOD else failures + 1
                if kind in RUN:
                    self.ran.append(-number if kind == "fails" else number)
            if self.ended:
                return self
            if failures >= limits.max_failures:
                self.ended = "failures"
                return self
        self.ended = "done"
        return self


def written(kind: str, number: int) -> ToolCall:
    name, arguments = "note", {"n": number}
    more: dict[str, Any] = {}
    if kind == "alone":
        name = "alone"
    elif kind == "fails":
        arguments = {"n": -number}
    elif kind == "unknown":
        name = "no_such_tool"
    raw: Any = arguments
    if kind == "malformed":
        raw = '{"n": oops'
    elif kind == "truncated":
        raw, more = '{"n": 1', {"truncated": True}
    elif kind == "invalid":
        raw = {"n": "text"}
    return ToolCall(id=f"c_{number}", name=name, arguments=raw, **more)


def play(script: list[tuple[list[str], int]], limits: dict[str, Any], **more: Any) -> tuple[Any, Notes, FakeModel]:
    """The conversation, resumed in a fresh gate whenever it is suspended."""
    numbers, kinds_of, turns = iter(range(1, 10_000)), {}, []
    for kinds, tokens in script:
        calls = []
        for kind in kinds:
            number = next(numbers)
            kinds_of[number] = kind
            calls.append(written(kind, number))
        turns.append(asks(*calls, tokens=tokens) if calls else says("end"))
    waiting = {number for number, kind in kinds_of.items() if kind == "waits"}
    denied = {number for number, kind in kinds_of.items() if kind == "denied"}
    notes, client = Notes(), FakeModel(*turns)

    def gate(suspends: set[int]) -> Any:
        return gate_of([notes.tool(), notes.tool("alone", parallel=False)], Asking([*suspends], [*denied]))

    async def main() -> Conversation:
        async with gate(waiting) as first:
            done = await converse(client, first, "go", user=ANN, **limits, **more)
        while done.ended == "suspended":
            check_paired(done.messages)
            assert not waiting & set(notes.ran)
            state = json.loads(json.dumps(done.state))
            waiting.difference_update(now(done))
            async with gate(waiting) as again:
                done = await converse(client, again, resume=state, user=ANN, **limits, **more)
        return done

    def now(done: Conversation) -> set[int]:
        return {int(result.call_id.rsplit("_", 1)[1]) for result in done.pending}

    return run_virtual(main()), notes, client


SCRIPTS = st.lists(
    st.tuples(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5), st.integers(0, 30)), max_size=7
).map(lambda rounds: [*rounds, ([], 0)])
LIMITS = st.builds(Limits, st.integers(1, 9), st.integers(1, 25), st.integers(1, 12), st.none() | st.integers(1, 150))


@settings(max_examples=150, deadline=None)
@given(SCRIPTS, LIMITS, st.booleans())
def test_every_call_has_one_result_right_after_it_and_what_runs_is_what_was_allowed(
    script: list[tuple[list[str], int]], limits: Limits, stream: bool
) -> None:
    """Issue 5; contract C10a: one result a call, in order; no limit is exceeded; no other body runs, none runs twice."""
    expected = Expected.of(script, limits)
    options = {"max_rounds": limits.max_rounds, "max_calls": limits.max_calls, "max_failures": limits.max_failures}
    done, notes, client = play(script, {**options, "max_tokens": limits.max_tokens}, stream=stream)
    check_paired(done.messages)
    for asked, _ in client.seen:
        check_paired(asked)
    assert done.ended == expected.ended
    assert sorted(notes.ran) == sorted(expected.ran)
    assert done.rounds == len(client.seen) == expected.rounds <= limits.max_rounds
    not_run = [one for one in told(done.messages).values() if "error" in one and one["error"]["code"] == "max_calls"]
    assert len(told(done.messages)) - len(not_run) <= limits.max_calls or done.ended == "tokens"
    assert (done.ended == "max_calls") is bool(not_run)


@settings(max_examples=80, deadline=None)
@given(SCRIPTS, st.floats(0.01, 4.0), st.booleans())
def test_whenever_time_is_over_the_history_is_one_that_a_provider_takes(
    script: list[tuple[list[str], int]], limit: float, stream: bool
) -> None:
    """Issue 5: also where a deadline stops in the middle."""
    done, notes, _ = play(script, {"deadline": limit, "max_failures": 99}, stream=stream)
    check_paired(done.messages)
    assert done.ended in {"done", "deadline"}
    assert len(notes.ran) == len(set(notes.ran))
    assert {one.result.outcome for one in done.calls} <= {*Outcome}


def test_the_check_of_histories_finds_what_providers_refuse() -> None:
    """Control."""
    fine = [*asks(written("fine", 1), written("fine", 2)).messages]
    results = [{"role": "tool", "tool_call_id": f"c_{n}", "content": ""} for n in (1, 2)]
    check_paired([*fine, *results])
    for broken in ([*fine, results[0]], [*fine, *results[::-1]], results, [*fine, *results, results[1]]):
        try:
            check_paired(broken)
        except AssertionError:
            continue
        raise AssertionError(broken)
