"""What every wire does: definitions to a request part, an answer to tool calls, results to messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from callgate.errors import CallgateError
from callgate.runtime.models.wire.decoder import Decoder
from callgate.runtime.models.wire.names import WIRE_NAME, NameMap
from callgate.runtime.models.wire.reply import Reply
from callgate.runtime.models.wire.schema_views import Dropped, View, source
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import digest


class WireError(CallgateError, ValueError):
    """What was handed over is no provider's answer at all, or no codec has that name."""

    code = "wire"


@dataclass(frozen=True, slots=True)
class TranslatedTool:
    """What a provider was told about one tool, for provenance and for the way back (contract 50, 60).

    ``digest`` is the SHA-256 of the schema as sent. ``strict`` is the flag as sent, None if none was. Pointers are
    JSON Pointers into ``schema``, the canonical schema (or the compact ``provider_schema``) that the view was made
    from: ``dropped`` keywords, ``nullable`` optional properties to which the view adds null, and ``ambiguous``
    optional ones that allow null themselves, so that a null is kept, and ``spelled`` choices that the view spells as
    text. ``fallback`` says why a wanted view was not made.
    """

    tool: str
    wire_name: str
    digest: str
    strict: bool | None = None
    dropped: tuple[Dropped, ...] = ()
    nullable: frozenset[str] = frozenset()
    ambiguous: frozenset[str] = frozenset()
    spelled: frozenset[str] = frozenset()
    fallback: str | None = None
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


@dataclass(frozen=True, slots=True)
class Translation:
    """The tools' part of a request, and the record that reads the answer: keep it until the answer is read.

    ``request`` is the caller's own: a plain dict to merge into the request. ``tools`` is keyed by tool id.
    """

    request: dict[str, Any]
    tools: Mapping[str, TranslatedTool] = field(default_factory=dict[str, TranslatedTool])
    names: NameMap = field(default_factory=NameMap)

    def tool(self, wire_name: str) -> TranslatedTool | None:
        """The record of the tool that was offered under this wire name."""
        return self.tools.get(self.names.tool(wire_name))


Messages: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What to send a model: one user message as text, or messages in the wire's own form, or in the simple one:
``{"role": "system" | "user" | "assistant", "content": str}``, which every wire understands."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to send: ``path`` is relative to the base URL, without a leading slash; ``body`` is plain JSON."""

    path: str
    body: dict[str, Any]


class Codec(Protocol):
    """One provider API's spelling of tools, calls and results. Pure: no I/O, never runs a tool (contract 55)."""

    @property
    def name(self) -> str:
        """The wire's name, as ``models.codec`` knows it."""
        ...

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """The request part that offers these tools (contract 57-60). The definitions are never changed.

        Raises:
            DefinitionError: two tools have the same id.
        """
        ...

    def calls(self, response: Mapping[str, Any], translation: Translation | None = None) -> list[ToolCall]:
        """The tool calls in a provider's whole answer, in its order (contract 46, 50, 61).

        Odd content never raises: what is no call is passed over, an error body holds none. With the translation
        of the request, names are mapped back and arguments are canonical.

        Raises:
            WireError: the response is not a mapping.
        """
        ...

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """The messages that answer the calls, in order; errors as value-free text."""
        ...

    def reply(self, response: Mapping[str, Any], translation: Translation | None = None) -> Reply:
        """A provider's whole answer: calls as ``calls`` reads them, text, and the messages for the history.

        Odd content never raises.

        Raises:
            WireError: the response is not a mapping.
        """
        ...

    def decoder(self, translation: Translation | None = None) -> Decoder:
        """A decoder for one answer in the wire's streaming form; its reply is read as ``reply`` reads a whole one."""
        ...

    def request(
        self,
        messages: Messages,
        translation: Translation | None = None,
        *,
        model: str,
        stream: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Request:
        """The request for one answer, offering the translated tools.

        *options* are the wire's own parameters, merged into the body last: they win, and None removes a key.
        """
        ...


def request_body(
    base: Mapping[str, Any], translation: Translation | None, options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A request's body: *base*, the tools if there are any, and the options, which win; None removes a key."""
    tools = translation.request if translation else {}
    merged = {**base, **{key: value for key, value in tools.items() if value}, **(options or {})}
    return {key: value for key, value in merged.items() if value is not None}


def as_messages(messages: Messages) -> list[dict[str, Any]]:
    """The messages as a list of dicts; text is one user message."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dict(message) for message in messages]


def without_system(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The text of the simple system messages, and all the other messages: for wires that keep them apart."""
    system = [each for each in messages if each.get("role") == "system" and isinstance(each.get("content"), str)]
    return "\n\n".join(each["content"] for each in system), [each for each in messages if each not in system]


def translated(
    definitions: Sequence[ToolDefinition],
    view: Callable[[ToolDefinition], View],
    shape: Callable[[ToolDefinition, str, View], dict[str, Any]],
    legal: re.Pattern[str] = WIRE_NAME,
) -> Translation:
    """The translation that ``Codec.translate`` gives: *view* makes each schema, *shape* the wire's spelling.

    *legal* matches the tool names that the wire takes.
    """
    names = NameMap.of((definition.name for definition in definitions), legal)
    shaped: list[dict[str, Any]] = []
    records: dict[str, TranslatedTool] = {}
    for definition in definitions:
        made = view(definition)
        wire_name = names.wire(definition.name)
        shaped.append(shape(definition, wire_name, made))
        records[definition.name] = TranslatedTool(
            tool=definition.name,
            wire_name=wire_name,
            digest=digest(made.schema),
            strict=made.strict,
            dropped=made.dropped,
            nullable=made.nullable,
            ambiguous=made.ambiguous,
            spelled=made.spelled,
            fallback=made.fallback,
            schema=source(definition) or {},
        )
    return Translation({"tools": shaped}, records, names)
