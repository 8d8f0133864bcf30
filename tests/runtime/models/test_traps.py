"""Every tag of the recordings that names a trap has a test here, over all recordings that bear it (contract 46, 61)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from callgate.runtime.models import codec
from callgate.runtime.models.wire.reply import Reply
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from tests.runtime.models.streaming import read
from tests.runtime.models.wires import CODEC_OF, exchanges, wire_of

pytestmark = pytest.mark.needs_data
RECORDED = list(exchanges()) or [("none", {"tags": []})]
KINDS = {
    *("single", "parallel", "stream", "tool_plus_text", "text_only", "doc_example", "sdk_fixture", "has_tool_results"),
    *("stop_tool_use", "finish_tool_calls", "finish_stop", "finish_function_call", "finish_1"),
    *("tool_choice:auto", "tool_choice:any", "tool_choice:tool", "tool_choice:required"),
}
"""Tags that only say what kind of exchange it is: the tests over all recordings cover them."""


def reply_of(name: str, recorded: dict[str, Any]) -> Reply:
    """The reply to a recorded exchange, streamed or not."""
    text = recorded.get("response_sse") or recorded.get("response_ndjson")
    wire = CODEC_OF[wire_of(name)]
    return codec(wire).reply(recorded["response"]) if text is None else read(wire, text.encode())


def empty_args(reply: Reply) -> None:
    """No arguments at all, where the first piece had null: they hydrate as an empty object."""
    assert [call.arguments for call in reply.calls] == [""]
    assert parse_arguments("").value == {}


def null_args(reply: Reply) -> None:
    """``arguments`` is left out: no arguments, and an object in the history."""
    assert [call.arguments for call in reply.calls] == [None]
    assert reply.messages[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def no_args(reply: Reply) -> None:
    """At least one call has none: whatever the spelling, it is an empty object."""
    assert any(parse_arguments(call.arguments).value == {} for call in reply.calls)


def invalid_json_args(reply: Reply) -> None:
    """Cut for length in the middle of the arguments: kept to the letter, truncated, refused, an object in the history."""
    (call,) = reply.calls
    assert call.truncated
    with pytest.raises(ParseError):
        parse_arguments(call.arguments, truncated=True)
    with pytest.raises(ValueError, match="line"):
        json.loads(call.arguments)
    assert reply.messages[0]["content"][-1]["input"] == {}


def cut(reply: Reply) -> None:
    """It stopped for length."""
    assert reply.truncated
    assert reply.stop in {"max_tokens", "length"}


def phantom_function_call(reply: Reply) -> None:
    """An empty ``function_call`` (and ``custom``, ``audio``) beside a real call: not read, and not sent back."""
    (call,) = reply.calls
    assert call.name == "get_weather"
    (message,) = reply.messages
    assert not {"function_call", "audio", "annotations", "refusal"} & set(message)
    assert set(message["tool_calls"][0]) == {"id", "type", "function"}


def legacy_function_call(reply: Reply) -> None:
    """It has no id; it goes back as a tool call under the id that its result will bear."""
    (call,) = reply.calls
    assert call.synthetic_id
    assert [sent["id"] for sent in reply.messages[0]["tool_calls"]] == [call.id]
    assert "function_call" not in reply.messages[0]


def same_tool_twice(reply: Reply) -> None:
    """Calls of one tool stay apart, each under an id of its own."""
    assert len({call.name for call in reply.calls}) < len(reply.calls)
    assert len({call.id for call in reply.calls}) == len(reply.calls)


def server_tool(reply: Reply) -> None:
    """A call that the provider ran itself is not a tool call, and goes back with its encrypted results."""
    assert [call.name for call in reply.calls] == ["output_structured_data"]
    kinds = [block["type"] for block in reply.messages[0]["content"]]
    assert kinds == ["server_tool_use", "web_search_tool_result", "tool_use"]
    assert reply.messages[0]["content"][1]["content"][0]["encrypted_content"] == "encrypteddata456"


def tool_not_in_tools_array(reply: Reply) -> None:
    """The call of a tool that was not offered is kept, for hydration to refuse (contract C10a)."""
    (call,) = reply.calls
    assert call.name in {"list_files", "lookup_refund_policy"}
    assert not call.truncated


def unexpected_tool_call(reply: Reply) -> None:
    """Gemini's word for it ends the answer well."""
    assert (reply.stop, reply.truncated, len(reply.calls)) == ("UNEXPECTED_TOOL_CALL", False, 1)


def error(reply: Reply) -> None:
    """An error body, or an error in a stream: no calls, nothing for the history."""
    assert reply.error
    assert reply.error["message"]
    assert (reply.calls, reply.messages, reply.text) == ((), (), "")


def thinking(reply: Reply) -> None:
    """Visible reasoning is read; otherwise there is an encrypted blob."""
    assert reply.reasoning or "encrypted_content" in json.dumps(reply.messages) or reply.usage.reasoning


def thought_signature(reply: Reply) -> None:
    """Every signature goes back on its part."""
    sent = {part["thoughtSignature"] for part in reply.messages[0]["parts"] if "thoughtSignature" in part}
    assert sent
    assert all(blob in json.dumps(dict(reply.body)) for blob in sent)


TRAPS: dict[str, Callable[[Reply], None]] = {
    "empty_args": empty_args,
    "null_args": null_args,
    "no_args": no_args,
    "invalid_json_args": invalid_json_args,
    "stop_max_tokens": cut,
    "finish_length": cut,
    "phantom_function_call": phantom_function_call,
    "legacy_function_call": legacy_function_call,
    "same_tool_twice": same_tool_twice,
    "server_tool": server_tool,
    "tool_not_in_tools_array": tool_not_in_tools_array,
    "finish_UNEXPECTED_TOOL_CALL": unexpected_tool_call,
    "error": error,
    "http_400": error,
    "thinking": thinking,
    "thought_signature": thought_signature,
}


@pytest.mark.parametrize("tag", TRAPS, ids=list(TRAPS))
def test_trap(tag: str) -> None:
    """Contract 46, 61, C10a, C10b."""
    found = [(name, recorded) for name, recorded in RECORDED if tag in recorded["tags"]]
    assert found
    for name, recorded in found:
        TRAPS[tag](reply_of(name, recorded))


def test_every_tag_is_a_trap_with_a_test_or_a_mere_kind() -> None:
    tags = {tag for _, recorded in RECORDED for tag in recorded["tags"]}
    assert tags == set(TRAPS) | KINDS
    assert not set(TRAPS) & KINDS


def test_all_recorded_exchanges_are_read() -> None:
    """99 of them; where the expected calls are wrong the reason is given by name (``plain-prism``: test_recordings)."""
    calls = 0
    for name, recorded in RECORDED:
        reply = reply_of(name, recorded)
        got = [(call.name, call.arguments, None if call.synthetic_id else call.id) for call in reply.calls]
        assert got == [(call["name"], call["arguments"], call["id"]) for call in recorded["expect_calls"]], name
        calls += len(got)
    print(f"exchanges: {len(RECORDED)}, calls: {calls}")
    assert len(RECORDED) >= 99
    assert calls >= 120


BLOBS = ("signature", "encrypted_content", "thoughtSignature", "thought_signature", "data")


def blobs(node: Any) -> list[str]:
    """Every opaque blob in a tree, in order."""
    if isinstance(node, dict):
        own = [value for key, value in node.items() if key in BLOBS and isinstance(value, str) and value]
        return own + [blob for value in node.values() for blob in blobs(value)]
    return [blob for item in node for blob in blobs(item)] if isinstance(node, list) else []


def test_every_opaque_blob_of_a_recording_goes_back_to_the_letter() -> None:
    """Signatures, thoughts and encrypted reasoning, of answers in one piece and of streams."""
    seen = 0
    for name, recorded in RECORDED:
        reply = reply_of(name, recorded)
        text = recorded.get("response_sse")
        if reply.error:
            continue
        sent = blobs(list(reply.messages))
        if text is None:
            assert sent == blobs(recorded["response"].get("output") or recorded["response"]), name
        else:
            chunks = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data: {")]
            whole = set(blobs(chunks))
            assert set(sent) <= whole, name
            assert sent or not whole, name
        seen += len(sent)
    print(f"opaque blobs sent back: {seen}")
    assert seen >= 15
