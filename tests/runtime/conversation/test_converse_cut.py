"""An answer that breaks off before any of its calls ran: the model may be asked again, once in each round."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from callgate.errors import ModelError, StreamCut
from callgate.models import OpenAIChat
from callgate.providers.logs import configure_logging
from callgate.runtime.conversation.converse import converse, converse_events
from callgate.runtime.conversation.events import Conversation, Ended, Ending, RoundRestarted, RoundStarted
from callgate.runtime.models.wire.codec import Translation
from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.runtime.models.wire.reply import CallReady, Reply, ReplyEvent, Usage
from callgate.testing import Call, Fault, Say, ScriptedModel, VirtualTime
from tests.runtime.conversation.conversing import ANN, FakeModel, Notes, asks, call, check_paired, says
from tests.runtime.gate.making import gate_of
from tests.runtime.models.providers import KEY, Piece, Pieces, Wire, each_wire, quick

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    configure_logging(events.append)
    yield events
    configure_logging()


def broken(tokens: int | None = None, *, retry_after: int | None = None) -> StreamCut:
    reply = Reply(calls=(call("lost", n=7),), truncated=True, usage=Usage(total=tokens))
    return StreamCut("it broke off", reply=reply, provider="openai_chat", retry_after=retry_after)


class Hasty(FakeModel):
    """Says that a call is ready, and breaks off."""

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Translation
    ) -> AsyncGenerator[ReplyEvent, None]:
        if len(self.seen) == 0:
            yield CallReady(call("hasty", n=7))
        async for event in super().stream(messages, tools):
            yield event


def talk(client: Any, notes: Notes, **options: Any) -> tuple[Conversation, list[Any], float]:
    """The conversation, its events and its virtual seconds."""

    async def run() -> list[Any]:
        async with gate_of([notes.tool()]) as gate:
            return [event async for event in converse_events(client, gate, "hello", user=ANN, **options)]

    with VirtualTime() as time:
        events = time.run(run())
        last = events[-1]
        assert isinstance(last, Ended)
        return last.conversation, events, time.elapsed


@both_ways
@pytest.mark.parametrize("kind", [FakeModel, Hasty])
def test_a_round_that_broke_off_is_asked_again_and_its_calls_run_once(
    kind: type[FakeModel], stream: bool, logged: list[dict[str, Any]]
) -> None:
    notes = Notes()
    client = kind(broken(5), asks(call("a", n=1), tokens=10), says("done", usage=Usage(total=20)))
    done, events, _ = talk(client, notes, stream=stream, retry_cut=True)
    assert (done.ended, done.text, done.rounds, notes.ran) == (Ending.DONE, "done", 2, [1])
    assert client.seen[0] == client.seen[1], "the same request"
    assert done.usage.total == 35, "the provider bills what broke off"
    check_paired(done.messages)
    (restarted,) = [event for event in events if isinstance(event, RoundRestarted)]
    assert (restarted.round, str(restarted.error)) == (1, "it broke off")
    assert [event.round for event in events if isinstance(event, RoundStarted)] == [1, 2]
    assert [(one["provider"], one["round"]) for one in logged if one["event"] == "model.retried"] == [
        ("openai_chat", 1)
    ]


@both_ways
def test_by_default_an_answer_that_broke_off_ends_the_conversation(stream: bool) -> None:
    client = FakeModel(broken(), says("never"))
    done, events, _ = talk(client, Notes(), stream=stream)
    assert (done.ended, len(client.seen), type(done.error)) == (Ending.ERROR, 1, StreamCut)
    assert not [event for event in events if isinstance(event, RoundRestarted)]


@both_ways
def test_each_round_is_asked_again_once(stream: bool) -> None:
    notes = Notes()
    client = FakeModel(
        broken(), asks(call("a", n=1)), broken(), asks(call("b", n=2)), broken(), broken(), says("never")
    )
    done, _, _ = talk(client, notes, stream=stream, retry_cut=True)
    assert (done.ended, done.rounds, len(client.seen), notes.ran) == (Ending.ERROR, 2, 6, [1, 2])
    check_paired(done.messages)


@both_ways
def test_a_lost_answer_is_asked_for_again_too(stream: bool) -> None:
    lost = asks(call("lost", n=7), tokens=5, judged=ReplyEnding.LOST, problem="a second answer followed")
    notes = Notes()
    done, events, _ = talk(FakeModel(lost, asks(call("a", n=1)), says("done")), notes, stream=stream, retry_cut=True)
    assert (done.ended, notes.ran, done.usage.total) == (Ending.DONE, [1], 5)
    assert [str(one.error) for one in events if isinstance(one, RoundRestarted)] == ["a second answer followed"]
    check_paired(done.messages)
    done, _, _ = talk(FakeModel(lost, lost, says("never")), notes, stream=stream, retry_cut=True)
    assert (done.ended, str(done.error), notes.ran) == (Ending.LOST, "a second answer followed", [1])
    done, _, _ = talk(FakeModel(lost, says("never")), notes, stream=stream)
    assert (done.ended, notes.ran) == (Ending.LOST, [1])


@both_ways
@pytest.mark.parametrize("call_id", ["a", ""])
def test_an_answer_whose_calls_share_an_id_is_lost(stream: bool, call_id: str) -> None:
    """Results are given by id: the model would read the later one for both."""
    notes = Notes()
    shared = asks(call(call_id, n=1), call(call_id, n=2))
    done, _, _ = talk(FakeModel(asks(call("z", n=0)), shared, says("never")), notes, stream=stream)
    assert (done.ended, str(done.error), notes.ran) == (Ending.LOST, "two calls of the answer have the same id", [0])
    check_paired(done.messages)


@both_ways
def test_an_answer_that_did_not_begin_is_not_asked_for_again(stream: bool) -> None:
    """A request without a response may have run; the client itself repeats those that did not."""
    client = FakeModel(ModelError("no response: ReadTimeout"), says("never"))
    done, _, _ = talk(client, Notes(), stream=stream, retry_cut=True)
    assert (done.ended, len(client.seen)) == (Ending.ERROR, 1)


def test_limits_on_tokens_and_time_and_the_wait_of_the_provider_hold() -> None:
    done, _, _ = talk(FakeModel(broken(50)), Notes(), retry_cut=True, max_tokens=50)
    assert (done.ended, done.usage.total) == (Ending.TOKENS, 50)
    done, _, took = talk(FakeModel(broken(retry_after=9_000), says("done")), Notes(), retry_cut=True)
    assert (done.ended, 9 <= took < 10) == (Ending.DONE, True)
    done, _, took = talk(FakeModel(broken(retry_after=9_000), says("never")), Notes(), retry_cut=True, deadline=5)
    assert (done.ended, took < 1) == (Ending.DEADLINE, True)
    done, _, took = talk(FakeModel(broken(retry_after=61_000), says("never")), Notes(), retry_cut=True)
    assert (done.ended, took < 1) == (Ending.ERROR, True)


@both_ways
@each_wire
def test_a_real_answer_cut_at_any_place_is_asked_for_again(wire: Wire, stream: bool) -> None:
    for place in range(1, 9):
        notes, sent = Notes(), 0

        def provider(_: httpx.Request, place: int = place) -> httpx.Response:
            nonlocal sent
            sent += 1
            asked = [("note", {"n": 1})] if sent < 3 else []
            text = "" if asked else "done"
            body = b"".join(wire.chunks(text, asked)) if stream else wire.whole(text, *asked).content
            pieces: list[Piece] = [body[: len(body) * place // 10], httpx.ReadError("gone")] if sent == 1 else [body]
            media = wire.media if stream else "application/json"
            return httpx.Response(200, headers={"content-type": media}, stream=Pieces(pieces))

        done, _, _ = talk(wire.make(provider), notes, stream=stream, retry_cut=True)
        assert (done.ended, done.text, sent, notes.ran) == (Ending.DONE, "done", 3, [1]), place


async def test_a_stream_cut_by_a_server_is_asked_for_again_over_a_socket() -> None:
    notes = Notes()
    script: list[Any] = [[Say("Hm"), Fault.cut(events=1)], [Call("note", {"n": 99})], Say("done")]
    async with (
        ScriptedModel(script) as model,
        OpenAIChat(model.url, model="m", api_key=KEY, retries=quick()) as client,
        gate_of([notes.tool()]) as gate,
    ):
        done = await converse(client, gate, "hello", user=ANN, stream=True, retry_cut=True)
    assert (done.ended, done.text, notes.ran, model.left) == (Ending.DONE, "done", [99], 0)
