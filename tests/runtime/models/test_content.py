"""Content blocks in each wire's spelling: what a provider takes is sent whole, and of the rest the model reads a text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from callgate import Outcome, ToolResult
from callgate.content import Omitted
from callgate.providers.content_json import digested, encoded
from callgate.runtime.models import codec
from tests.runtime.models.official import message_types
from tests.tools.content.making import BLOCKS, PDF, PNG, WAV, blocks

WIRES = ("anthropic", "gemini", "ollama", "openai_chat", "openai_responses")
PICTURE = BLOCKS["image"].to_json()
WHOLE: dict[str, set[str]] = {
    "anthropic": {"image", "pdf"},
    "gemini": {"image", "pdf"},
    "ollama": {"image"},
    "openai_chat": set(),
    "openai_responses": {"image", "pdf"},
}
"""The blocks whose data a wire sends in a tool result."""
DATA = {"image": PNG, "other image": PNG, "audio": WAV, "pdf": PDF, "file": b"\x00\xff"}
READ = {
    "text": "hello",
    "text file": "a;b\n1;2\n",
    "link": "[link 'a.pdf', application/pdf, The bill: https://files.example/a.pdf]",
    "other image": f"[image 'scan.tiff', image/tiff, {len(PNG)} bytes: left out",
    "image": f"[image, image/png, {len(PNG)} bytes: left out",
    "audio": f"[audio, audio/wav, {len(WAV)} bytes: left out",
    "pdf": f"[file 'a.pdf', application/pdf, {len(PDF)} bytes: left out",
    "file": "[file 'a.bin', application/octet-stream, 2 bytes: left out",
}
"""What a model reads of a block that is not sent whole."""


def answered(output: Any, **more: Any) -> ToolResult:
    return replace(ToolResult("c1", "draw", Outcome.SUCCESS, output), **more)


def message(wire: str, result: ToolResult) -> dict[str, Any]:
    """The one message with a result, as the provider's own package reads it, too."""
    (made,) = codec(wire).results([result])
    read(wire, json.loads(json.dumps(made)))
    return made


def read(wire: str, made: dict[str, Any]) -> Any:
    """Read a message as the package does, with its lazy parts."""
    if "images" in made and wire == "ollama":
        made["images"] = [ollama.Image(value=one) for one in made["images"]]  # as its client does
    return whole(message_types(wire).validate_python(made))


def whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: whole(part) for name, part in value.items()}
    return value if isinstance(value, str | BaseModel) or not isinstance(value, Iterable) else [*map(whole, value)]


def texts(value: Any) -> str:
    """All texts in a message."""
    if isinstance(value, dict):
        return "\n".join(map(texts, value.values()))
    return "\n".join(map(texts, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("wire", WIRES)
def test_each_block_is_sent_whole_or_read_as_a_text(wire: str, name: str) -> None:
    sent = texts(message(wire, answered([BLOCKS[name].to_json()])))
    if name in WHOLE[wire]:
        assert encoded(DATA[name]) in sent
        assert "left out" not in sent
        return
    assert READ[name] in sent
    assert encoded(DATA.get(name, b"no data")) not in sent


def test_each_provider_gets_its_own_spelling() -> None:
    output = ["Cats:", PICTURE, BLOCKS["pdf"].to_json()]
    data, pdf = encoded(PNG), encoded(PDF)
    (block,) = message("anthropic", answered(output))["content"]
    assert block["content"] == [
        {"type": "text", "text": "Cats:"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": pdf},
            "title": "a.pdf",
        },
    ]
    assert message("openai_responses", answered(output))["output"] == [
        {"type": "input_text", "text": "Cats:"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
    ]
    (part,) = message("gemini", answered(output))["parts"]
    assert part["functionResponse"] == {
        "id": "c1",
        "name": "draw",
        "response": {"output": "Cats:"},
        "parts": [
            {"inlineData": {"mimeType": "image/png", "data": data}},
            {"inlineData": {"mimeType": "application/pdf", "data": pdf}},
        ],
    }
    local = message("ollama", answered(output))
    assert (local["images"], local["content"].splitlines()[0]) == ([data], "Cats:")
    chat = message("openai_chat", answered(output))["content"]
    assert chat.splitlines() == [
        "Cats:",
        f"[image, image/png, {len(PNG)} bytes: left out, because this model API takes none in tool results]",
        f"[file 'a.pdf', application/pdf, {len(PDF)} bytes: left out, because this model API takes none in tool results]",
    ]


@pytest.mark.parametrize("wire", WIRES)
def test_content_inside_of_other_json_is_numbered_in_its_text(wire: str) -> None:
    sent = texts(message(wire, answered({"title": "Cats", "chart": PICTURE, "more": [BLOCKS["text"].to_json()]})))
    text = {
        "title": "Cats",
        "chart": {"type": "image", "mimeType": "image/png", "size": len(PNG), "block": 1},
        "more": [{"type": "text", "text": "hello"}],
    }
    assert json.dumps(text, separators=(",", ":")) in sent
    assert (encoded(PNG) in sent) == ("image" in WHOLE[wire])


@pytest.mark.parametrize("wire", WIRES)
def test_the_digest_of_an_earlier_result_is_a_text(wire: str) -> None:
    block = Omitted("image", "image/png", 10, "0" * 64).to_json()
    assert "[image, image/png, 10 bytes: not kept; an earlier call returned it]" in texts(
        message(wire, answered([block]))
    )


@pytest.mark.parametrize("wire", WIRES)
def test_changed_arguments_are_told_beside_content(wire: str) -> None:
    sent = texts(message(wire, answered([PICTURE], ran_with={"of": "cats"})))
    assert '"arguments":{"of":"cats"}' in sent


@pytest.mark.parametrize("wire", WIRES)
def test_a_failure_shows_no_content(wire: str) -> None:
    failed = replace(answered([PICTURE]), outcome=Outcome.DENIED)
    assert encoded(PNG) not in texts(message(wire, failed))


@pytest.mark.parametrize("wire", WIRES)
@given(output=st.lists(blocks | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)) | blocks)
def test_any_content_is_a_message_that_the_providers_package_reads(wire: str, output: Any) -> None:
    parts = output if isinstance(output, list) else [output]
    shown = [part if isinstance(part, str) else part.to_json() for part in parts]
    message(wire, answered(shown if isinstance(output, list) else shown[0]))
    message(wire, answered(digested(shown)))


def test_a_message_that_a_provider_would_refuse_is_found() -> None:
    """The control."""
    with pytest.raises(ValueError, match=r"Input should be .text."):
        read("openai_chat", {"role": "tool", "tool_call_id": "c", "content": [PICTURE]})
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "aGk="}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    with pytest.raises(ValueError, match="media_type"):
        read("anthropic", {"role": "user", "content": [result]})
