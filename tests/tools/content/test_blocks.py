"""Content blocks: their JSON form, the annotations that are content, and what is refused where."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, ConfigDict, TypeAdapter

from callgate import DefinitionError, tool
from callgate.content import Audio, Content, File, Image, ResourceLink, Text, from_json
from callgate.providers.content_json import blocks_of, decoded, digested, measured, restored, with_data
from callgate.tools.content import is_content, is_content_schema
from tests.tools.content.making import BLOCKS, PNG, blocks


@given(blocks)
def test_a_block_is_the_same_after_a_trip_through_json(block: Any) -> None:
    assert from_json(json.loads(json.dumps(block.to_json()))) == block


@given(blocks)
def test_a_block_is_what_pydantic_writes_and_reads(block: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(type(block))
    assert adapter.dump_python(block, mode="json") == block.to_json()
    assert adapter.validate_python(block.to_json()) == block


@given(st.lists(blocks | st.text(max_size=5), min_size=1))
def test_a_digest_has_no_data_and_takes_it_back(parts: list[Any]) -> None:
    output = [part if isinstance(part, str) else part.to_json() for part in parts]
    found = [*with_data(output)]
    shown = digested(output)
    assert [*with_data(shown)] == []
    assert measured(output)[1] == sum(len(decoded(block["data"])) for block in found)
    data = [part.data for part in parts if isinstance(part, Image | Audio | File)]
    back = restored(shown, {sha256(one).hexdigest(): one for one in data})
    assert [decoded(one["data"]) for one in with_data(back)] == data


NO_BLOCKS: list[Any] = [
    None,
    [],
    ["a text"],
    {"type": "image"},
    {"type": "image", "data": 1, "mimeType": "image/png"},
    {"type": "image", "data": "no base64", "mimeType": "image/png"},
    {"type": "image", "data": "aGk=", "mimeType": "image/png", "colour": "red"},
    {"type": ["image"], "data": "aGk=", "mimeType": "image/png"},
    {"type": "order", "text": "x"},
    {"type": "text", "text": "x", "lines": 3},
    {"type": "resource", "resource": {"uri": "a:b", "blob": "aGk=", "text": "hi"}},
    [{"type": "text", "text": "x"}, {"type": "text"}],
]


@pytest.mark.parametrize("output", NO_BLOCKS, ids=str)
def test_an_object_with_other_members_is_no_block(output: Any) -> None:
    assert blocks_of(output) is None


CONTENT = [
    *(Text, Image, Audio, File, ResourceLink, bytes, Content),
    *(list[Image], list[str | Image], tuple[Text, ...], Sequence[Image] | None, Image | None, list[bytes]),
]
OTHER = [str, None, list[str], dict[str, Image], list[dict[str, Any]], int | Image, list[int | Image], list]


@pytest.mark.parametrize("hint", CONTENT, ids=str)
def test_an_annotation_of_blocks_is_content(hint: Any) -> None:
    made = _returning(hint)
    assert is_content(hint)
    assert is_content_schema(made.definition.output_schema)


@pytest.mark.parametrize("hint", OTHER, ids=str)
def test_an_annotation_of_other_values_is_no_content(hint: Any) -> None:
    assert not is_content(hint)
    assert hint is None or not is_content_schema(TypeAdapter(hint).json_schema())


def test_parts_may_be_content() -> None:
    @tool(effect="read")
    async def draws() -> AsyncIterator[Image]:
        """Draw."""
        yield Image(PNG, "image/png")

    for made in (draws, _returning(Iterator[bytes])):
        assert is_content_schema(made.definition.output_schema)


class Encoded(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    scan: bytes


class Own(BaseModel):
    scan: Base64Bytes


class Plain(BaseModel):
    scan: bytes | None


class Outer(BaseModel):
    inner: list[Plain]


@pytest.mark.parametrize("hint", [Plain, Outer, dict[str, bytes], list[int | bytes]], ids=str)
@pytest.mark.parametrize("schema", [None, False])
def test_bytes_without_a_json_form_are_refused_when_the_tool_is_declared(hint: Any, schema: Any) -> None:
    """The refusal has the line to write, and following it helps."""
    with pytest.raises(DefinitionError, match=r"File of callgate.content instead of bytes.*ser_json_bytes"):
        _returning(hint, output_schema=schema)
    _returning(Encoded, output_schema=schema)
    _returning(Own, output_schema=schema)
    _returning(dict[str, File], output_schema=schema)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Image("aGk=", "image/png"),  # type: ignore[arg-type]
            "data is bytes, not str; decode base64 first",
        ),
        (lambda: Image(PNG, "png"), 'a MIME type such as "image/png"'),
        (lambda: Image(PNG, "application/pdf"), r"write File\(data, 'application/pdf'\)"),
        (lambda: Audio(PNG, "image/png"), "not one of audio"),
        (lambda: Text(3), "text is a text, not int"),  # type: ignore[arg-type]
        (lambda: from_json({"type": "image"}), "no content block"),
    ],
)
def test_a_block_that_cannot_be_read_is_not_made(make: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        make()


def test_a_change_of_a_buffer_does_not_reach_the_block() -> None:
    buffer = bytearray(PNG)
    block = Image(buffer, "image/png")  # type: ignore[arg-type]
    buffer[:] = b"other"
    assert block.data == PNG


@pytest.mark.parametrize("block", BLOCKS.values(), ids=str)
def test_the_data_of_a_block_is_not_in_its_repr(block: Any) -> None:
    assert "data" not in repr(block)


def _returning(hint: Any, **options: Any) -> Any:
    async def gives():  # type: ignore[no-untyped-def]
        """Give."""

    gives.__annotations__["return"] = hint
    return tool(effect="read", **options)(gives)
