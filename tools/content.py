"""Content that a tool returns beside JSON: text, images, audio, files and links to resources.

A tool returns a block, or a list of blocks and texts. In the call a block is a JSON object in MCP's spelling; each wire
and host spells it in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeAlias, Union, get_args, get_origin

from callgate.providers.content_json import REQUIRED, block_in, decoded, encoded

_MIME = re.compile(r"[a-z0-9][\w!#$&^.+-]*/[\w!#$&^.+*-]+(?:\s*;\s*[\w.-]+=\S+)*", re.ASCII | re.IGNORECASE)
_STRING: dict[str, object] = {"type": "string"}


class Block:
    """The base of content blocks. Subclasses are frozen dataclasses."""

    __slots__ = ()
    type: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ("name",)

    def to_json(self) -> dict[str, object]:
        """Return the block as a JSON object; ``from_json`` reads it."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> object:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            partial(_validated, cls),
            serialization=core_schema.plain_serializer_function_ser_schema(_serialised, when_used="always"),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: object) -> dict[str, object]:
        required = sorted(REQUIRED[cls.type])
        numbers = {"size": {"type": "integer"}}
        properties = {name: numbers.get(name, _STRING) for name in (*required, *cls.optional)}
        return {
            "type": "object",
            "properties": {"type": {"const": cls.type}, **properties},
            "required": ["type", *required],
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class Text(Block):
    """A text for the model."""

    type: ClassVar[str] = "text"
    optional: ClassVar[tuple[str, ...]] = ()
    text: str

    def __post_init__(self) -> None:
        _check(self, text=self.text)

    def to_json(self) -> dict[str, object]:
        """See ``Block``."""
        return {"type": "text", "text": self.text}


@dataclass(frozen=True, slots=True)
class DataBlock(Block):
    """A block with data: its bytes, a MIME type, and a name."""

    data: bytes = field(repr=False)
    mime_type: str
    name: str | None = None

    def __post_init__(self) -> None:
        _check_data(self)

    def to_json(self) -> dict[str, object]:
        """See ``Block``."""
        return _with({"type": self.type, "data": encoded(self.data), "mimeType": self.mime_type}, name=self.name)


@dataclass(frozen=True, slots=True)
class Image(DataBlock):
    """An image: its bytes, and a MIME type such as ``"image/png"``."""

    type: ClassVar[str] = "image"


@dataclass(frozen=True, slots=True)
class Audio(DataBlock):
    """A recording: its bytes, and a MIME type such as ``"audio/wav"``."""

    type: ClassVar[str] = "audio"


@dataclass(frozen=True, slots=True)
class File(DataBlock):
    """A file: its bytes, a MIME type, its name, and the URI at which it can be found again."""

    type: ClassVar[str] = "file"
    optional: ClassVar[tuple[str, ...]] = ("name", "uri")
    mime_type: str = "application/octet-stream"
    uri: str | None = None

    def __post_init__(self) -> None:
        _check_data(self)
        if self.uri is not None:
            _check(self, uri=self.uri)

    def to_json(self) -> dict[str, object]:
        """See ``Block``."""
        return _with(DataBlock.to_json(self), uri=self.uri)


@dataclass(frozen=True, slots=True)
class ResourceLink(Block):
    """A link to a resource that the reader may fetch. ``size`` is in bytes."""

    type: ClassVar[str] = "resource_link"
    optional: ClassVar[tuple[str, ...]] = ("mimeType", "title", "description", "size")
    uri: str
    name: str
    mime_type: str | None = None
    title: str | None = None
    description: str | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        _check(self, uri=self.uri, name=self.name)
        if self.mime_type is not None:
            _check_mime(self, self.mime_type)

    def to_json(self) -> dict[str, object]:
        """See ``Block``."""
        made = {"type": "resource_link", "uri": self.uri, "name": self.name}
        more = {"title": self.title, "description": self.description, "size": self.size}
        return _with(made, mimeType=self.mime_type, **more)


@dataclass(frozen=True, slots=True)
class Omitted(Block):
    """The record of a block without its data: ledgers keep it. ``kind`` is the type of the block."""

    type: ClassVar[str] = "omitted"
    optional: ClassVar[tuple[str, ...]] = ("name", "uri")
    kind: str
    mime_type: str
    size: int
    sha256: str
    name: str | None = None
    uri: str | None = None

    def to_json(self) -> dict[str, object]:
        """See ``Block``."""
        made = {"type": "omitted", "kind": self.kind, "mimeType": self.mime_type, "size": self.size}
        return _with(made | {"sha256": self.sha256}, name=self.name, uri=self.uri)


Content: TypeAlias = Text | Image | Audio | File | ResourceLink | Omitted
"""Any block."""

_KINDS: dict[str, type[Content]] = {kind.type: kind for kind in (Text, Image, Audio, File, ResourceLink, Omitted)}
_BYTES = (bytes, bytearray)
_LISTS = (list, tuple, Sequence, AbstractSet)


def from_json(value: Mapping[str, object]) -> Content:
    """Return the block of a JSON object, such as one in ``ToolResult.output``.

    Raises:
        ValueError: the object is no block.
    """
    found = block_in(value)
    if found is None:
        raise ValueError("this object is no content block; see callgate.content for the kinds and their members")
    kind = _KINDS[found["type"]]
    given: dict[str, Any] = {name: found[name] for name in (*REQUIRED[kind.type], *kind.optional) if name in found}
    if "mimeType" in given:
        given["mime_type"] = given.pop("mimeType")
    if "data" in given:
        given["data"] = decoded(given["data"])
    return kind(**given)


# ---------------------------------------------------------------------- return annotations


def is_content(hint: object) -> bool:
    """Return True for an annotation of content: blocks or bytes, alone, in a union with texts and None, or in a list."""
    atoms = _atoms(hint)
    return atoms is not None and any(isinstance(one, type) and issubclass(one, (Block, *_BYTES)) for one in atoms)


def _atoms(hint: object) -> list[Any] | None:
    """Return the types of the values of an annotation; None if it has others than those of content."""
    if get_origin(hint) is Annotated:
        return _atoms(get_args(hint)[0])
    if isinstance(hint, type) and (issubclass(hint, (Block, *_BYTES)) or hint in (str, NoneType)):
        return [hint]
    origin, parts = get_origin(hint), [one for one in get_args(hint) if one is not Ellipsis]
    if origin not in (Union, UnionType, *_LISTS) or not parts:
        return None
    found = [_atoms(part) for part in parts]
    return None if None in found else [one for atoms in found for one in atoms or ()]


def content_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of an annotation of content."""
    if get_origin(hint) is Annotated:
        return content_schema(get_args(hint)[0])
    if isinstance(hint, type) and hint in (str, NoneType):
        return {"type": "string" if hint is str else "null"}
    if isinstance(hint, type):
        kind = hint if issubclass(hint, Block) else File
        return kind.__get_pydantic_json_schema__(None, None)
    parts = [content_schema(part) for part in get_args(hint) if part is not Ellipsis]
    either = parts[0] if len(parts) == 1 else {"anyOf": parts}
    return either if get_origin(hint) in (Union, UnionType) else {"type": "array", "items": either}


def is_content_schema(schema: object) -> bool:
    """Return True for the schema of content: of blocks, alone or in a list, also beside texts and null."""
    kinds = [*_kinds_in(schema)]
    return None not in kinds and any(kinds)


def _kinds_in(schema: object) -> Iterator[str | None]:
    """Yield the kinds of blocks that a schema admits, the empty text for a plain one, and None for anything else."""
    if not isinstance(schema, Mapping):
        yield None
    elif "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _kinds_in(part)
    elif schema.get("type") == "array":
        yield from _kinds_in(schema.get("items"))
    elif schema.get("type") in ("string", "null"):
        yield ""
    else:
        kind = ((schema.get("properties") or {}).get("type") or {}).get("const")
        yield kind if kind in _KINDS else None


def content_of(value: object) -> object:
    """Return what a tool of content returned, with bytes as files."""
    if isinstance(value, _BYTES):
        return File(bytes(value))
    if isinstance(value, list | tuple):
        return [content_of(part) for part in value]
    return value  # the schema refuses it


def typed_content(hint: object) -> Callable[[object], object]:
    """Return the conversion of content in JSON back to the values of an annotation."""
    plain = any(one in _BYTES for one in _atoms(hint) or ()) and File not in (_atoms(hint) or ())

    def back(value: object) -> object:
        if isinstance(value, list):
            return [back(part) for part in value]
        if not isinstance(value, Mapping):
            return value
        made = from_json(value)
        return made.data if plain and isinstance(made, File) else made

    return back


# ---------------------------------------------------------------------- parts


def _validated(kind: type[Block], value: object) -> object:
    if isinstance(value, kind):
        return value
    made = from_json(value) if isinstance(value, Mapping) else None
    if not isinstance(made, kind):
        raise ValueError(f"must be a content block of type {kind.type!r}")  # noqa: TRY004  (pydantic reads ValueError)
    return made


def _serialised(value: object) -> object:
    return value.to_json() if isinstance(value, Block) else value


def _with(made: Mapping[str, object], **more: object) -> dict[str, object]:
    return {**made, **{name: value for name, value in more.items() if value is not None}}


def _check(block: object, **texts: object) -> None:
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{type(block).__name__}: {name} is a text, not {type(text).__name__}")


def _check_mime(block: object, mime_type: object) -> None:
    if not isinstance(mime_type, str) or _MIME.fullmatch(mime_type) is None:
        raise ValueError(f'{type(block).__name__}: mime_type is a MIME type such as "image/png", not {mime_type!r}')


def _check_data(block: DataBlock) -> None:
    name = type(block).__name__
    if not isinstance(block.data, bytes):
        if not isinstance(block.data, bytearray | memoryview):
            raise TypeError(f"{name}: data is bytes, not {type(block.data).__name__}; decode base64 first")
        object.__setattr__(block, "data", bytes(block.data))  # a later change must not reach the call
    _check_mime(block, block.mime_type)
    if block.type != "file" and not block.mime_type.lower().startswith(f"{block.type}/"):
        raise ValueError(
            f"{name}: the MIME type {block.mime_type!r} is not one of {block.type}; write File(data, {block.mime_type!r})"
        )
    if block.name is not None:
        _check(block, name=block.name)
