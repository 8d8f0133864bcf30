"""Conversations: model, gate, results, until done. Contract 44-56, C10a; issue 5."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callgate import Gate, GateClosed, Hook, InvokeContext, Outcome, ToolCall, ToolDefinition, User, codec
from callgate.errors import ModelError, StreamCut
from callgate.runtime.conversation.converse import converse
from callgate.runtime.conversation.events import Ending
from callgate.runtime.models.wire.codec import Translation
from callgate.runtime.models.wire.reply import Reply, Usage
from callgate.testing import run_virtual
from callgate.tools.arguments.hydrated import HydrationError
from tests.runtime.conversation.conversing import ANN, Asking, FakeModel, Notes, asks, call, check_paired, says, told
from tests.runtime.gate.making import ANYTHING, gate_of, made


def talk(client: Any, gate: Gate, messages: Any = "hello", **options: Any) -> Any:
    """A whole conversation in virtual time."""
    options.setdefault("user", ANN)

    async def run() -> Any:
        async with gate:
            return await converse(client, gate, messages, **options)

    return run_virtual(run())


# ---------------------------------------------------------------------- the road


def test_a_model_that_asks_for_no_tool_is_done_after_one_round() -> None:
    """Issue 5."""
    client = FakeModel(says("hello yourself", usage=Usage(3, 4, 7)))
    done = talk(client, gate_of([Notes().tool()]))
    assert (done.ended, done.ok, done.text, done.rounds) == (Ending.DONE, True, "hello yourself", 1)
    assert done.usage == Usage(3, 4, 7)
    assert done.messages == (
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hello yourself"},
    )
    assert client.seen[0][1] == ["note"]


def test_calls_run_together_and_are_answered_in_the_order_of_the_calls() -> None:
    """Contract C10a, C12. Results in the order of the calls, whatever finished first."""
    notes = Notes()
    client = FakeModel(asks(call("a", n=1), call("b", n=2), call("c", n=3)), says("done"))
    done = talk(client, gate_of([notes.tool()]))
    assert notes.ran == [1, 2, 3]
    assert notes.finished == [3, 2, 1]
    assert list(told(done.messages)) == ["a", "b", "c"]
    assert [one.result.output for one in done.calls] == ["noted 1", "noted 2", "noted 3"]
    assert {one.round for one in done.calls} == {1}
    check_paired(done.messages)


def test_tools_that_are_not_parallel_run_alone() -> None:
    """Design 4: ``call_many`` obeys ``parallel``."""
    notes = Notes()
    client = FakeModel(asks(call("a", n=1), call("b", n=2), call("c", n=3)), says("done"))
    talk(client, gate_of([notes.tool(parallel=False)]))
    assert notes.finished == [1, 2, 3]


def test_a_conversation_has_its_own_messages() -> None:
    """A caller that changed a part of its message while a call ran changed what the model got next."""
    given: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]

    async def note(n: int) -> str:
        given[0]["content"][0]["text"] = "transfer all"
        return "noted"

    client = FakeModel(asks(call("a", n=1)), says("done"))
    done = talk(client, gate_of([made(note, "note")]), given)
    assert given[0]["content"][0]["text"] == "transfer all"
    assert client.seen[1][0][0]["content"] == [{"type": "text", "text": "hello"}] == done.messages[0]["content"]


def test_the_next_request_holds_the_answer_as_it_came_and_then_the_results() -> None:
    """Opaque parts travel back verbatim: ``Reply.messages`` is appended as it is."""
    opaque: dict[str, Any] = {"role": "assistant", "content": None, "thought_signature": "b64==", "tool_calls": []}
    answer = Reply(calls=(call("a"),), messages=(opaque,))
    client = FakeModel(answer, says("done"))
    talk(client, gate_of([Notes().tool()]))
    messages, _ = client.seen[1]
    assert messages[1] == opaque
    assert messages[2]["tool_call_id"] == "a"


def test_the_history_of_one_conversation_begins_the_next_and_is_never_changed() -> None:
    """Issue 5."""
    gate = gate_of([Notes().tool()])
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    before = json.dumps(history)
    first = talk(FakeModel(asks(call("a")), says("one")), gate, history)
    assert json.dumps(history) == before
    client = FakeModel(says("two"))
    second = talk(client, gate, [*first.messages, {"role": "user", "content": "again"}])
    assert second.messages[: len(first.messages)] == first.messages
    assert client.seen[0][0][-1] == {"role": "user", "content": "again"}


def test_usage_is_summed_and_what_is_not_counted_stays_unknown() -> None:
    """Issue 5."""
    first = Reply(calls=(call("a"),), messages=asks(call("a")).messages, usage=Usage(10, 5, None, 2))
    done = talk(FakeModel(first, says("x", usage=Usage(20, 1, 21))), gate_of([Notes().tool()]))
    assert done.usage == Usage(30, 6, 21, 2, None)


# ---------------------------------------------------------------------- what the model is told


BAD: dict[str, tuple[ToolCall, str]] = {
    "an unknown tool": (ToolCall(id="x", name="nothing_like_it", arguments={"n": 1}), "unknown_tool"),
    "no name at all": (ToolCall(id="x", name="", arguments={"n": 1}), "unknown_tool"),
    "a cut call": (ToolCall(id="x", name="note", arguments='{"n": 1', truncated=True), "invalid_json"),
    "a cut call that looks whole": (
        ToolCall(id="x", name="note", arguments='{"n": 1}', truncated=True),
        "invalid_json",
    ),
    "text that is no JSON": (ToolCall(id="x", name="note", arguments="n equals 987654321"), "invalid_json"),
    "no object": (ToolCall(id="x", name="note", arguments="[987654321]"), "invalid_arguments"),
    "the wrong type": (ToolCall(id="x", name="note", arguments={"n": "987654321"}), "invalid_arguments"),
    "an argument too many": (ToolCall(id="x", name="note", arguments={"n": 1, "m": 987654321}), "invalid_arguments"),
    "nothing": (ToolCall(id="x", name="note", arguments=None), "invalid_arguments"),
    "a denial": (ToolCall(id="x", name="note", arguments={"n": 987654321}), "denied"),
    "a failure": (ToolCall(id="x", name="note", arguments={"n": -987654321}), "tool_failed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_answered_with_text_without_values_and_the_model_may_mend_it(name: str) -> None:
    """Contract 49, 55, C10a; design 10.10."""
    bad, code = BAD[name]
    notes = Notes()
    client = FakeModel(asks(call("a", n=1), bad, call("b", n=2)), asks(call("again", n=3)), says("done"))
    done = talk(client, gate_of([notes.tool()], Asking(denies=[987654321])))
    check_paired(done.messages)
    answered = told(done.messages)
    assert answered["x"]["error"]["code"] == code
    assert "987654321" not in json.dumps(answered["x"])
    assert "secret" not in json.dumps(answered["x"])
    assert (answered["a"], answered["b"], answered["again"]) == ("noted 1", "noted 2", "noted 3")
    assert done.ok


class Records(Hook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []

    def did_audit(self, ctx: InvokeContext) -> None:
        self.seen.append((ctx.tool_call.name, ctx.outcome and ctx.outcome.value))


def test_only_what_is_offered_can_be_called_and_every_refusal_is_recorded() -> None:
    """Contract C29: what the model is not told of does not exist for it, even where the gate would allow it."""
    notes, records = Notes(), Records()
    gate = gate_of([notes.tool(), notes.tool("other")], records)
    client = FakeModel(asks(call("a", "other"), call("b", "note")), says("done"))
    done = talk(client, gate, tools=["note"])
    assert client.seen[0][1] == ["note"]
    assert told(done.messages)["a"]["error"]["code"] == "unknown_tool"
    assert notes.ran == [1]
    assert sorted(records.seen) == [("note", "success"), ("other", "invalid")]


class Switch(Hook):
    """Hides and refuses what is switched off."""

    guards = True

    def __init__(self) -> None:
        self.off: set[str] = set()

    def may_see(self, user: User, tool: ToolDefinition) -> bool:
        return tool.name not in self.off

    def will_authorize(self, ctx: InvokeContext) -> None:
        if ctx.tool_id in self.off:
            ctx.abort("off", code="off")


def test_a_tool_that_is_switched_off_between_rounds_is_gone_from_the_next() -> None:
    """Visibility is asked anew in each round: a kill switch works at once."""
    notes, switch = Notes(), Switch()

    def off(messages: Any, tools: Translation) -> Reply:
        switch.off.add("other")
        return asks(call("b", "other"))

    client = FakeModel(asks(call("a", "other")), off, asks(call("c", "other")), says("done"))
    done = talk(client, gate_of([notes.tool(), notes.tool("other")], switch))
    assert [names for _, names in client.seen] == [["note", "other"], ["note", "other"], ["note"], ["note"]]
    answered = told(done.messages)
    assert answered["a"] == "noted 1"
    assert answered["b"]["error"]["code"] == "off"  # offered still, and the gate decides at the call
    assert answered["c"]["error"]["code"] == "unknown_tool"
    assert notes.ran == [1]


def test_an_output_that_is_too_big_is_cut_for_the_model_and_says_so() -> None:
    """Outputs that the model reads are bounded; the result that the application gets is whole."""

    async def big() -> str:
        return "ü" * 4_000

    client = FakeModel(asks(ToolCall(id="a", name="work", arguments={})), says("done"))
    done = talk(client, gate_of([made(big, parameters=ANYTHING)]), max_result_bytes=1_001)
    shown = told(done.messages)["a"]
    assert shown == "ü" * 500 + "\n[cut: the first 1001 of 8000 bytes]"
    assert done.calls[0].result.output == "ü" * 4_000


# ---------------------------------------------------------------------- limits


def endless(tokens: int | None = None) -> FakeModel:
    def more(messages: Any, tools: Translation) -> Reply:
        at = len(messages)
        return asks(call(f"a{at}", n=at), call(f"b{at}", n=at + 100), tokens=tokens)

    return FakeModel(*[more] * 99)


def test_max_rounds_ends_it_after_the_calls_of_the_last_round() -> None:
    """Issue 5."""
    client, notes = endless(), Notes()
    done = talk(client, gate_of([notes.tool()]), max_rounds=3)
    assert (done.ended, done.ok, done.rounds, len(client.seen)) == (Ending.MAX_ROUNDS, False, 3, 3)
    assert len(notes.ran) == 6
    check_paired(done.messages)


def test_max_calls_ends_it_and_the_calls_beyond_are_answered_as_not_run() -> None:
    """Issue 5. Every call of an answer has its result, also where a limit stops in the middle."""
    client, notes = endless(), Notes()
    done = talk(client, gate_of([notes.tool()]), max_calls=3)
    assert (done.ended, len(client.seen), len(notes.ran)) == (Ending.MAX_CALLS, 2, 3)
    check_paired(done.messages)
    *_, last = told(done.messages).values()
    assert last["error"] == {
        "code": "max_calls",
        "message": "The call was not run: the conversation has reached its limit of calls.",
    }
    assert [one.result.outcome for one in done.calls] == [*[Outcome.SUCCESS] * 3, Outcome.CANCELLED]


def test_failures_in_a_row_end_it_and_a_success_starts_the_count_over() -> None:
    """Issue 5: a loop guard."""
    bad, good = asks(call("a", n=-1)), asks(call("a", n=1))
    done = talk(FakeModel(bad, bad, good, bad, bad, bad, says("no")), gate_of([Notes().tool()]), max_failures=3)
    assert (done.ended, done.rounds) == (Ending.FAILURES, 6)
    check_paired(done.messages)


def test_max_tokens_ends_it_before_the_calls_of_the_answer_that_goes_beyond() -> None:
    """Issue 5."""
    client, notes = endless(tokens=40), Notes()
    done = talk(client, gate_of([notes.tool()]), max_tokens=100)
    assert (done.ended, done.usage.total, len(client.seen), len(notes.ran)) == (Ending.TOKENS, 120, 3, 4)
    check_paired(done.messages)
    assert [one["error"]["code"] for one in list(told(done.messages).values())[4:]] == ["tokens", "tokens"]


def test_without_a_count_there_is_no_limit_of_tokens_and_parts_are_added_up_where_there_is_no_total() -> None:
    """Issue 5."""
    assert talk(endless(), gate_of([Notes().tool()]), max_tokens=1, max_rounds=4).ended == Ending.MAX_ROUNDS
    parts = Reply(calls=(call("a"),), messages=asks(call("a")).messages, usage=Usage(30, 20))
    assert talk(FakeModel(parts), gate_of([Notes().tool()]), max_tokens=50).ended == Ending.TOKENS


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 0},
        {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": -50},
        {"prompt_tokens": 30, "completion_tokens": 20},
        {"prompt_tokens": -9, "completion_tokens": 0, "total_tokens": 50},
        {"total_tokens": 50.0},
        {"total_tokens": "50"},
    ],
    ids=str,
)
def test_a_count_of_tokens_counts_in_every_form_that_servers_send_it(usage: dict[str, Any]) -> None:
    """Issue 5. A total of 0 beside its parts, and whole numbers as floats, left a conversation without its limit."""
    asked = asks(call("a"))
    choice = {"message": asked.messages[0], "finish_reason": "tool_calls"}
    reply = codec("openai_chat").reply({"choices": [choice], "usage": usage})
    assert talk(FakeModel(reply), gate_of([Notes().tool()]), max_tokens=50).ended == Ending.TOKENS
    assert talk(FakeModel(reply, says("done")), gate_of([Notes().tool()]), max_tokens=51).ok


def test_an_answer_without_calls_is_done_whatever_it_cost() -> None:
    """Issue 5."""
    done = talk(FakeModel(says("dear", usage=Usage(total=10_000))), gate_of([]), max_tokens=1)
    assert done.ok


def test_a_deadline_ends_the_wait_for_the_model_and_leaves_the_history_without_its_answer() -> None:
    """Issue 5."""
    client = FakeModel(says("too late"), pause=5)
    done = talk(client, gate_of([]), deadline=2)
    assert (done.ended, done.rounds, done.text) == (Ending.DEADLINE, 0, "")
    assert done.messages == ({"role": "user", "content": "hello"},)
    assert talk(FakeModel(says("in time"), pause=1), gate_of([]), deadline=2).ok


def test_a_deadline_ends_the_wait_for_a_repairer_and_its_calls_do_not_run() -> None:
    """Issue 5. A repairer that asks another model was waited for without a limit."""
    left: list[str] = []

    async def repair(found: ToolCall, error: HydrationError) -> dict[str, int]:
        try:
            await asyncio.sleep(wait)
        except asyncio.CancelledError:
            left.append(str(found.id))
            raise
        return {"n": 1}

    wait, notes = 1_000_000.0, Notes()
    client = FakeModel(asks(call("a", m=1), call("b", n=1), call("c", m=1)), says("no"))
    done = talk(client, gate_of([notes.tool()]), deadline=5, repair=repair)
    assert (done.ended, notes.ran, left) == (Ending.DEADLINE, [], ["a"])
    assert [one.result.error.code for one in done.calls] == ["deadline"] * 3
    check_paired(done.messages)
    wait = 1.0
    assert talk(FakeModel(asks(call("a", m=1)), says("no")), gate_of([notes.tool()]), deadline=5, repair=repair).pending


class Ticking:
    """The loop's clock, whichever loop that is."""

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:  # the gate is being made
            return 0.0

    def time(self) -> float:
        return 0.0


async def slow(n: int) -> str:
    await asyncio.sleep(n)
    return "slept"


def test_a_deadline_ends_calls_as_their_own_and_those_behind_them_do_not_run() -> None:
    """Issue 5; contract C14. A tool's own deadline counts where it is earlier."""
    gate = gate_of([made(slow, "note", parallel=False, deadline=3)], clock=Ticking())
    client = FakeModel(asks(call("a", n=1), call("b", n=9), call("c", n=9), call("d", n=1)), says("no"))
    done = talk(client, gate, deadline=5)
    assert done.ended == Ending.DEADLINE
    answered = told(done.messages)
    assert answered["a"] == "slept"
    assert answered["b"]["error"]["code"] == answered["c"]["error"]["code"] == "deadline_exceeded"
    assert answered["d"]["error"]["code"] == "deadline"
    assert [round(one.result.duration or 0) for one in done.calls] == [1, 3, 1, 0]
    check_paired(done.messages)


# ---------------------------------------------------------------------- how else it ends


STOPS: dict[str, tuple[Reply, Ending]] = {
    "a refusal": (says("", stop="refusal", truncated=True), Ending.REFUSED),
    "a filter": (says("", stop="content_filter", truncated=True), Ending.REFUSED),
    "a filter in capitals": (says("", stop="SAFETY"), Ending.REFUSED),
    "too long": (says("half a", stop="length", truncated=True), Ending.TRUNCATED),
    "an error body": (Reply(error={"message": "overloaded"}), Ending.ERROR),
    "nothing at all": (Reply(), Ending.EMPTY),
}


@pytest.mark.parametrize("name", STOPS)
def test_an_answer_without_calls_ends_it_by_what_it_is(name: str) -> None:
    """Issue 5."""
    reply, ending = STOPS[name]
    done = talk(FakeModel(reply), gate_of([]))
    assert done.ended == ending
    assert done.ok is (ending is Ending.DONE)
    assert (done.error is not None) is (ending is Ending.ERROR)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_provider_that_fails_in_the_middle_loses_nothing_that_was_done(stream: bool) -> None:
    """Issue 5: calls have run and are in the history; whoever goes on does not run them again."""
    failure = StreamCut("cut", reply=says("half")) if stream else ModelError("down", status=503)
    client = FakeModel(asks(call("a", n=1)), failure)
    done = talk(client, gate_of([Notes().tool()]), stream=stream)
    assert (done.ended, done.error, done.rounds) == (Ending.ERROR, failure, 1)
    assert list(told(done.messages)) == ["a"]
    check_paired(done.messages)
    assert talk(FakeModel(says("after all")), gate_of([]), done.messages).ok
    assert client.streams_open == 0


# ---------------------------------------------------------------------- how it is used


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rounds": 0},
        {"max_calls": -1},
        {"max_failures": 0},
        {"max_tokens": 0},
        {"deadline": 0},
        {"max_result_bytes": 0},
        {"at_once": 0},
        {"tools": ["nite"]},
        {"results": {"a": None}},
        {"messages": ""},
        {"messages": []},
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused_before_the_model_is_asked(wrong: dict[str, Any]) -> None:
    """Fail early: nothing is spent."""
    client = FakeModel(says("never"))
    with pytest.raises(ValueError, match=r".") as refused:
        talk(client, gate_of([Notes().tool()]), **wrong)
    assert client.seen == []
    if "tools" in wrong:
        assert "did you mean" in str(refused.value)


def test_names_are_given_in_a_list() -> None:
    """A text is a sequence of letters."""
    with pytest.raises(TypeError):
        talk(FakeModel(), gate_of([Notes().tool()]), tools="note")


async def test_a_closed_gate_is_refused_before_the_model_is_asked() -> None:
    """Issue 5."""
    client = FakeModel(says("never"))
    with pytest.raises(GateClosed):
        await converse(client, gate_of([]), "hello")
    assert client.seen == []


async def test_a_bound_gate_brings_its_user_and_session() -> None:
    """Design 4: ``gate.session`` is what a conversation holds."""
    seen: list[Any] = []

    class Who(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            seen.append((ctx.user, ctx.session_id))

    async with gate_of([Notes().tool()], Who()) as gate, gate.session("s-1", user=ANN) as bound:
        await converse(FakeModel(asks(call("a", n=999)), says("done")), bound, "hello")
        with pytest.raises(ValueError, match="another user's"):
            await converse(FakeModel(), bound, "hello", user=User("eve"))
    assert seen == [(ANN, "s-1")]
