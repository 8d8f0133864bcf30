"""Content blocks of a tool result, for the wires: each spells what its provider takes, and the rest becomes a text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias

from callgate.providers.content_json import (
    BINARY,
    blocks_of,
    decoded,
    is_textual,
    line_about,
    may_hold,
    replaced,
    size_of_data,
    with_data,
)
from callgate.runtime.models.wire.result_text import result_text, told_arguments
from callgate.tools.calls import ToolResult
from callgate.tools.values import dump

Block: TypeAlias = dict[str, Any]
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The images that models of all providers read."""
PDF = "application/pdf"
_NOT_TAKEN = "left out, because this model API takes none in tool results"
_NOT_KEPT = "not kept; an earlier call returned it"
_MARK = '"type":'


def text_and_blocks(result: ToolResult) -> tuple[str, list[Block] | None]:
    """Return a result as one text of JSON, and its content blocks; None for a failure and for an output without content.

    An output that has content inside of other JSON becomes a text, in which each block is a number, and then the blocks.
    """
    text, output = result_text(result), result.output
    if not result.ok or not isinstance(output, dict | list | tuple) or _MARK not in text:
        return text, None
    blocks = blocks_of(output)
    if blocks is None:
        blocks = [*with_data(output)] if may_hold(text.encode()) else []
        if not blocks:
            return text, None
        blocks.insert(0, {"type": "text", "text": dump(_numbered(output)).decode()})
    if result.ran_with is not None:
        blocks.append({"type": "text", "text": dump({"ran_with": told_arguments(result)}).decode()})
    return text, blocks


def _numbered(output: object) -> object:
    count = 0

    def number(block: Block) -> Block:
        nonlocal count
        count += 1
        size = size_of_data(block["data"])
        return {"type": block["type"], "mimeType": block["mimeType"], "size": size, "block": count}

    return replaced(output, number)


def block_text(block: Mapping[str, Any]) -> str:
    """Return the text that stands for a block: its own, that of a file of text, or a line about it."""
    kind = block["type"]
    if kind == "text":
        return str(block["text"])
    if kind == "resource_link":
        more = [str(block[name]) for name in ("title", "mimeType", "description") if block.get(name)]
        return f"[link {', '.join((repr(block['name']), *more))}: {block['uri']}]"
    if kind == "omitted":
        return line_about(block, _NOT_KEPT)
    if is_textual(block["mimeType"]):
        text = decoded(block["data"]).decode("utf-8", "replace")
        return f"{line_about(block, 'its text follows')}\n{text}"
    return line_about(block, _NOT_TAKEN)


def content_parts(
    result: ToolResult, spell: Callable[[Block], Any], as_text: Callable[[str], Any]
) -> str | list[dict[str, Any]]:
    """Return a result as text, or as the parts of a wire if its provider takes one of its blocks.

    *spell* returns None for a block that the provider does not take in a tool result.
    """
    text, blocks = text_and_blocks(result)
    if blocks is None:
        return text
    spelt = [(block, spell(block) if block["type"] in BINARY else None) for block in blocks]
    if all(made is None for _, made in spelt):
        return joined_texts(blocks)
    shown = ((made, "" if made is not None else block_text(block)) for block, made in spelt)
    return [as_text(words) if made is None else made for made, words in shown if made is not None or words]


def result_in_text(result: ToolResult) -> str:
    """Return a result as one text."""
    text, blocks = text_and_blocks(result)
    return text if blocks is None else joined_texts(blocks)


def taken(result: ToolResult, kinds: Collection[str]) -> tuple[str, list[Block] | None]:
    """Return the text of a result, and its blocks of these MIME types, which the text leaves out; None without content."""
    text, blocks = text_and_blocks(result)
    if blocks is None:
        return text, None
    own = [block for block in blocks if block["type"] in BINARY and block["mimeType"] in kinds]
    return joined_texts(block for block in blocks if block not in own), own


def joined_texts(blocks: Iterable[Block]) -> str:
    """Return the texts of blocks, one after another."""
    return "\n".join(text for block in blocks if (text := block_text(block)))


def data_url(block: Block) -> str:
    """Return the data of a block as a URL."""
    return f"data:{block['mimeType']};base64,{block['data']}"
