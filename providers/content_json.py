"""Content blocks in their JSON form: text, images, audio, files and links, as MCP spells them. Pure.

A block is a JSON object, so stores, caches, jobs and hosts carry it as they carry every output. ``callgate.content`` has
the classes for tools. The functions here find blocks in an output, measure them, and replace their data.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

BINARY = frozenset({"image", "audio", "file"})
"""The kinds whose ``data`` is base64."""
REQUIRED: dict[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "image": frozenset({"data", "mimeType"}),
    "audio": frozenset({"data", "mimeType"}),
    "file": frozenset({"data", "mimeType"}),
    "resource_link": frozenset({"uri", "name"}),
    "omitted": frozenset({"kind", "mimeType", "size", "sha256"}),
}
"""The members that each kind has."""
_OPTIONAL: dict[str, frozenset[str]] = {
    "text": frozenset(),
    "image": frozenset({"name"}),
    "audio": frozenset({"name"}),
    "file": frozenset({"name", "uri"}),
    "resource_link": frozenset({"title", "description", "mimeType", "size", "icons"}),
    "omitted": frozenset({"name", "uri"}),
}
_ALWAYS = frozenset({"type", "annotations", "_meta"})
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_TEXTUAL = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-yaml|javascript)\b", re.ASCII)
_MIME, _BLOB = b'"mimeType":', b'"blob":'


def may_hold(data: bytes) -> bool:
    """Return False if JSON without white space has no block with data. It is fast; True is no proof."""
    return data[:1] != b'"' and (_MIME in data or _BLOB in data)


def block_in(value: object) -> dict[str, Any] | None:
    """Return a JSON value as a block, or None if it is none. MCP's embedded resource becomes a file."""
    if not isinstance(value, Mapping):
        return None
    kind = value.get("type")
    if kind == "resource":
        return _file_in(value.get("resource"))
    if not isinstance(kind, str) or kind not in REQUIRED or not REQUIRED[kind] <= value.keys():
        return None
    if not value.keys() <= REQUIRED[kind] | _OPTIONAL[kind] | _ALWAYS:
        return None
    texts = (REQUIRED[kind] | _OPTIONAL[kind]) - {"size", "icons"}
    if not all(isinstance(value[name], str) for name in texts & value.keys()):
        return None
    if kind in BINARY and not _is_base64(value["data"]):
        return None
    return dict(value)


def _file_in(resource: object) -> dict[str, object] | None:
    if not isinstance(resource, Mapping) or not isinstance(uri := resource.get("uri"), str):
        return None
    text, blob = resource.get("text"), resource.get("blob")
    if isinstance(text, str) and blob is None:
        kind, data = resource.get("mimeType") or "text/plain", encoded(text.encode("utf-8", "replace"))
    elif isinstance(blob, str) and text is None and _is_base64(blob):
        kind, data = resource.get("mimeType") or "application/octet-stream", blob
    else:
        return None
    if not isinstance(kind, str):
        return None
    return {"type": "file", "data": data, "mimeType": kind, "name": uri.rpartition("/")[2] or uri, "uri": uri}


def _is_base64(data: str) -> bool:
    return len(data) % 4 == 0 and _BASE64.fullmatch(data) is not None


def blocks_of(output: object) -> list[dict[str, Any]] | None:
    """Return an output that is content: a block, or a list of blocks and texts with at least one block; else None."""
    if isinstance(output, Mapping):
        one = block_in(output)
        return None if one is None else [one]
    if not isinstance(output, list | tuple) or not output:
        return None
    found = [{"type": "text", "text": part} if isinstance(part, str) else block_in(part) for part in output]
    if all(isinstance(part, str) for part in output):
        return None
    blocks = [part for part in found if part is not None]
    return blocks if len(blocks) == len(found) else None


def with_data(value: object) -> Iterator[dict[str, Any]]:
    """Yield the blocks in a JSON value that have data, at any depth."""
    waiting: list[object] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            found = binary_in(one)
            if found is None:
                waiting += reversed([*one.values()])
            else:
                yield found
        elif isinstance(one, list | tuple):
            waiting += reversed(one)


def binary_in(value: Mapping[object, object]) -> dict[str, object] | None:
    """Return an object as a block with data, or None."""
    kind = value.get("type")
    if kind != "resource" and not (isinstance(kind, str) and kind in BINARY):
        return None
    return block_in(value)


def replaced(value: object, change: Callable[[dict[str, object]], object]) -> object:
    """Return a JSON value with *change* applied to each block with data; the same object where nothing changes.

    *change* returns None to keep a block as it is.
    """
    if isinstance(value, Mapping):
        found = binary_in(value)
        if found is not None:
            made = change(found)
            return value if made is None else made
        parts = {key: replaced(part, change) for key, part in value.items()}
        return parts if any(parts[key] is not value[key] for key in parts) else value
    if isinstance(value, list | tuple):
        items = [replaced(part, change) for part in value]
        return items if any(one is not other for one, other in zip(items, value, strict=True)) else value
    return value


def digest_of(block: Mapping[str, object]) -> dict[str, object]:
    """Return the record of a block without its data: kind, MIME type, size and SHA-256."""
    data = decoded(str(block["data"]))
    made = {"type": "omitted", "kind": block["type"], "mimeType": block["mimeType"], "size": len(data)}
    made["sha256"] = sha256(data).hexdigest()
    return made | _named(block)


def _named(block: Mapping[str, object]) -> dict[str, object]:
    return {name: block[name] for name in ("name", "uri") if name in block}


def digested(value: object) -> object:
    """Return a JSON value with its blocks' data replaced by digests, for records."""
    return replaced(value, digest_of)


def restored(value: object, parts: Mapping[str, bytes]) -> object:
    """Return a JSON value whose digests have their data again, as far as *parts* has it by SHA-256."""
    if isinstance(value, Mapping):
        if value.get("type") == "omitted" and value.get("sha256") in parts and block_in(value) is not None:
            made = {"type": value["kind"], "data": encoded(parts[value["sha256"]]), "mimeType": value["mimeType"]}
            return made | _named(value)
        return {key: restored(part, parts) for key, part in value.items()}
    return [restored(part, parts) for part in value] if isinstance(value, list | tuple) else value


def of_data(data: bytes, mime_type: str, name: str | None) -> dict[str, object]:
    """Return the block of some data: an image, audio or a file, as the MIME type says."""
    kind = mime_type.partition("/")[0]
    made: dict[str, object] = {"type": kind if kind in BINARY else "file", "data": encoded(data), "mimeType": mime_type}
    return made | ({"name": name} if name else {})


def size_of_data(text: str) -> int:
    """Return the size in bytes of what a base64 text stands for."""
    return len(text) // 4 * 3 - text[-2:].count("=")


def measured(value: object) -> tuple[int, int, int]:
    """Return the bytes of the largest block with data in a JSON value, those of all, and the characters of their base64."""
    largest = total = characters = 0
    for block in with_data(value):
        size = size_of_data(block["data"])
        largest, total, characters = max(largest, size), total + size, characters + len(block["data"])
    return largest, total, characters


def decoded(text: str) -> bytes:
    """Decode base64; a text that a hook has damaged gives no bytes."""
    try:
        return binascii.a2b_base64(text)
    except binascii.Error:
        return b""


def encoded(data: bytes) -> str:
    """Encode as base64."""
    return base64.b64encode(data).decode("ascii")


def is_textual(mime_type: str) -> bool:
    """Return True for MIME types of texts, whose data hooks mask like other texts."""
    return _TEXTUAL.match(mime_type) is not None


def data_member(value: Mapping[object, object]) -> str | None:
    """Return the member of an object that is base64, for objects with a block's data; None for others."""
    kind = value.get("type")
    if isinstance(kind, str) and kind in BINARY:
        return None if block_in(value) is None else "data"
    return "blob" if "blob" in value and _file_in(value) is not None else None


def masked_text(data: str, mime_type: object, mask: Callable[[str], str]) -> str:
    """Return the base64 of a file of text whose text *mask* has changed; other data is not a text, and stays."""
    if not isinstance(mime_type, str) or not is_textual(mime_type):
        return data
    try:
        text = decoded(data).decode()
    except UnicodeDecodeError:
        return data
    shown = mask(text)
    return data if shown == text else encoded(shown.encode("utf-8", "replace"))


def line_about(block: Mapping[str, object], reason: str) -> str:
    """Return the line that stands for a block which a reader does not get."""
    size = block["size"] if block["type"] == "omitted" else size_of_data(str(block["data"]))
    kind = block["kind"] if block["type"] == "omitted" else block["type"]
    name = f" {block['name']!r}" if block.get("name") else ""
    return f"[{kind}{name}, {block['mimeType']}, {size} bytes: {reason}]"
