"""Calls that a model wrote into its text: read only where the client asks for it, and only if each is whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate import RegistrationError
from callgate.models import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from callgate.runtime.models import codec
from callgate.runtime.models.wire.base import BaseCodec
from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.runtime.models.wire.reply import Reply
from tests.runtime.models.streaming import read, sse

PAY: dict[str, Any] = {"name": "pay", "arguments": {"cents": 5}}
ONE = json.dumps(PAY)
TEXTS = {
    "hermes": f"<tool_call>\n{ONE}\n</tool_call>",
    "list": f"<tool_calls>[{ONE}]</tool_calls>",
    "function_call": f"<function_call>{ONE}</function_call>",
    "llama": '<|python_tag|>{"name": "pay", "parameters": {"cents": 5}}<|eom_id|>',
    "llama tag": '<function=pay>{"cents": 5}</function>',
    "mistral": f"[TOOL_CALLS] [{ONE}]</s>",
    "mistral 13": '[TOOL_CALLS]pay[ARGS]{"cents": 5}</s>',
    "deepseek 3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>pay\n```json\n"
    '{"cents": 5}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
    "deepseek 3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>pay<｜tool▁sep｜>"
    '{"cents": 5}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.pay:0<|tool_call_argument_begin|>"
    '{"cents": 5}<|tool_call_end|><|tool_calls_section_end|>',
}
BROKEN = {
    "two names": '<tool_call>{"name": "refund", "arguments": {}, "name": "look_up"}</tool_call>',
    "two arguments": '<tool_call>{"name": "refund", "arguments": {"cents": 5}, "arguments": {}}</tool_call>',
    "two words for arguments": '<tool_call>{"name": "f", "parameters": {"cents": 5}, "arguments": {}}</tool_call>',
    "cut": f"<tool_call>{ONE[:-3]}",
    "no end": f"<tool_call>{ONE}",
    "no JSON": "<tool_call>pay 5</tool_call>",
    "no name": '<tool_call>{"arguments": {}}</tool_call>',
    "arguments": '<tool_call>{"name": "pay", "arguments": "5"}</tool_call>',
    "one of two": f"<tool_call>{ONE}</tool_call><tool_call>{{</tool_call>",
    "deep": f"<tool_call>{'[' * 20_000}{']' * 20_000}</tool_call>",
    "many": f"<tool_call>{ONE}</tool_call>" * 65,
    "never ends": "<tool_call>" * 20_000,
    "long": f"<tool_call>{ONE}</tool_call>{' ' * 300_000}",
}


def reading(wire: str) -> BaseCodec:
    found = codec(wire)
    assert isinstance(found, BaseCodec)
    return found.with_text_calls()


def body(wire: str, text: str, reason: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    if wire == "ollama":
        return {"model": "m", "message": message, "done": True, "done_reason": reason}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}


def streamed(text: str) -> Reply:
    chunks = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in (text[:7], text[7:])]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    decoder = reading("openai_chat").decoder()
    events = [*decoder.feed(sse(*chunks, end)), *decoder.end()]
    return events[-1].reply  # type: ignore[union-attr]


@pytest.mark.parametrize("form", TEXTS)
def test_a_call_in_a_text_is_a_call_only_where_the_client_asks_for_it(form: str) -> None:
    text = f"I pay. {TEXTS[form]}"
    replies = [reading("openai_chat").reply(body("openai_chat", text)), streamed(text)]
    replies.append(reading("ollama").reply(body("ollama", text)))
    for reply in replies:
        (call,) = reply.calls
        arguments = json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments
        assert (call.name, arguments, call.truncated) == ("pay", {"cents": 5}, False)
        assert (reply.text, reply.ending, reply.looks_like_call) == ("I pay.", ReplyEnding.CALLS, False)
        assert reply.messages[0]["content"] == "I pay."
        assert len(reply.messages[0]["tool_calls"]) == 1
    for wire in ("openai_chat", "ollama"):
        plain = codec(wire).reply(body(wire, text))
        assert (plain.calls, plain.text, plain.looks_like_call) == ((), text, True)
    assert read("openai_chat", sse(body("openai_chat", text))).calls == ()


@pytest.mark.parametrize("form", BROKEN)
@pytest.mark.parametrize("wire", ["openai_chat", "ollama"])
def test_a_text_with_a_call_that_is_not_whole_runs_nothing(wire: str, form: str) -> None:
    reply = reading(wire).reply(body(wire, BROKEN[form]))
    assert (reply.calls, reply.looks_like_call, reply.text) == ((), True, BROKEN[form])


def test_a_call_in_the_text_of_an_answer_that_was_cut_or_refused_does_not_run() -> None:
    for reason in ("length", "content_filter", "unheard"):
        reply = reading("openai_chat").reply(body("openai_chat", TEXTS["hermes"], reason))
        assert [call.truncated for call in reply.calls] == [True]


@pytest.mark.parametrize("client", [Anthropic, Gemini, OpenAIResponses])
def test_a_wire_whose_servers_read_all_calls_refuses_the_option(client: Any) -> None:
    with pytest.raises(RegistrationError, match="text_calls"):
        client(model="m", api_key="k", text_calls=True)


@pytest.mark.parametrize("client", [OpenAIChat, Ollama])
def test_the_option_of_a_client_is_its_own(client: Any) -> None:
    assert client(model="m", api_key="k", text_calls=True).codec.text_calls
    assert not client(model="m", api_key="k").codec.text_calls
