"""Content in a conversation: the model gets the blocks, and the limit of a result is for its text."""

from __future__ import annotations

from typing import Any

from callgate import Effects, Gate, Outcome, ToolCall, ToolResult, codec, converse, tool
from callgate.content import Image, Text
from callgate.providers.content_json import encoded
from callgate.runtime.conversation.calls import shown
from tests.runtime.conversation.conversing import ANN, FakeModel, asks, call, says

DATA = bytes(range(256)) * 8


@tool(effect="read")
async def draw(words: int) -> list[Text | Image]:
    """Draw."""
    return [Text("word " * words), Image(DATA, "image/png")]


class Claude(FakeModel):
    """A model whose API takes images in tool results."""

    codec: Any = codec("anthropic")


async def asked(words: int) -> list[Any]:
    """Return the parts of the one result that the model reads."""
    model = Claude(asks(call("c1", "draw", words=words)), says("A cat."))
    async with Gate([draw], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        await converse(model, gate, "Draw.", user=ANN, max_result_bytes=500)
    ((block,),) = [one["content"] for one in model.seen[-1][0] if one["role"] == "user" and one["content"] != "Draw."]
    parts: list[Any] = block["content"]
    return parts


async def test_a_model_gets_the_blocks_of_a_result() -> None:
    text, image = await asked(1)
    assert text == {"type": "text", "text": "word "}
    assert image["source"]["data"] == encoded(DATA)


async def test_the_text_of_a_large_result_is_cut_and_its_image_stays_whole() -> None:
    text, image = await asked(1_000)
    assert text["text"].endswith("\n[cut: the first 500 of 5000 bytes]")
    assert image["source"]["data"] == encoded(DATA)


def test_changed_arguments_are_told_once() -> None:
    output = ["word " * 200, Image(DATA, "image/png").to_json()]
    result = ToolResult("c1", "draw", Outcome.SUCCESS, output, ran_with={"words": 2})
    (message,) = codec("anthropic").results([shown(ToolCall(id="c1", name="draw"), result, 500)])
    assert str(message).count("'arguments'") + str(message).count('"arguments"') == 1
