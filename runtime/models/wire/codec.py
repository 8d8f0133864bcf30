"""The ``Codec`` protocol: translates definitions to requests, responses to tool calls, results to messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from callgate.errors import CallgateError
from callgate.runtime.models.wire.decoder import Decoder
from callgate.runtime.models.wire.names import WIRE_NAME, NameMap
from callgate.runtime.models.wire.reply import Reply
from callgate.runtime.models.wire.schema_views import Dropped, View, source
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.naming import did_you_mean
from callgate.tools.values import digest


class WireError(CallgateError, ValueError):
    """A response is not a JSON object, or a codec cannot be found or loaded."""

    code = "wire"


@dataclass(frozen=True, slots=True)
class TranslatedTool:
    """The record of one tool as it was sent to a provider, for provenance and for reading calls back.

    ``digest`` is the SHA-256 of the schema as sent. ``strict`` is the flag as sent, or None. ``schema`` is the source
    of the view: the canonical schema, or the compact ``provider_schema``. JSON Pointers into it list:

    - ``dropped``: keywords that the view leaves out,
    - ``nullable``: optional properties to which the view adds null,
    - ``ambiguous``: optional properties that allow null themselves, so that a null is kept,
    - ``spelled``: choices that the view spells as text.

    ``fallback`` is the reason why the preferred view could not be made. ``shortened`` says that the wire got only the
    first characters of the description.
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
    schema: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    shortened: bool = False


@dataclass(frozen=True, slots=True)
class Translation:
    """The tools' part of a request, with the records that are needed to read the response.

    ``request`` is a plain dict to merge into the request; the caller may change it. ``tools`` is keyed by tool id.
    """

    request: dict[str, Any]
    tools: Mapping[str, TranslatedTool] = field(default_factory=dict[str, TranslatedTool])
    names: NameMap = field(default_factory=NameMap)

    def tool(self, wire_name: str) -> TranslatedTool | None:
        """The record of the tool that was offered under *wire_name*."""
        return self.tools.get(self.names.tool(wire_name))


Messages: TypeAlias = str | Sequence[Mapping[str, object]]
"""The conversation: one user message as text, or messages. A message has the wire's own form, or the simple form that
every wire reads: ``{"role": "system" | "user" | "assistant", "content": str}``."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: ``path`` is relative to the base URL, without a leading slash; ``body`` is plain JSON."""

    path: str
    body: dict[str, Any]


class Codec(Protocol):
    """Translates tools, calls and results to and from one provider API. Pure: it does no I/O and runs no tool."""

    @property
    def name(self) -> str:
        """The wire's name, as in ``callgate.codec(name)``."""
        ...

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """Build the part of a request that offers these tools. The definitions are not changed.

        Raises:
            DefinitionError: two tools have the same id.
        """
        ...

    def calls(self, response: Mapping[str, object], translation: Translation | None = None) -> list[ToolCall]:
        """Read the tool calls of a whole response, in order.

        Unexpected content does not raise: entries that are not calls are ignored, and an error body has no calls. The
        calls of an answer that is not known to be whole are truncated: without its stop reason, for example. With
        the translation of the request, names are mapped back and arguments fit the canonical schema.

        Raises:
            WireError: the response is not a mapping.
        """
        ...

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """Build the messages that give results to the model, in order; errors become text without values."""
        ...

    def reply(self, response: Mapping[str, object], translation: Translation | None = None) -> Reply:
        """Read a whole response: its calls as ``calls`` reads them, its text, and the messages for the history.

        Unexpected content does not raise.

        Raises:
            WireError: the response is not a mapping.
        """
        ...

    def decoder(self, translation: Translation | None = None) -> Decoder:
        """Make a decoder for one streamed response; its reply equals that of the same response in one piece."""
        ...

    def request(
        self,
        messages: Messages,
        translation: Translation | None = None,
        *,
        model: str,
        stream: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> Request:
        """Build a request that offers the translated tools.

        *options* are the wire's own parameters. They override the body's fields; None removes a field.
        """
        ...


@runtime_checkable
class ApprovalCodec(Protocol):
    """A codec whose provider asks the client to approve calls that it would run itself."""

    def decision(self, item: Mapping[str, object], approve: bool) -> dict[str, object] | None:
        """Build the message that answers an item of ``Reply.waiting``; None if it does not ask for an approval."""
        ...


def request_body(
    base: Mapping[str, Any], translation: Translation | None, options: Mapping[str, Any] | None
) -> dict[str, object]:
    """Merge *base*, the tools and the options into a body; options override, and None removes a field.

    ``tools`` in the options are added to the gate's tools.
    """
    tools = translation.request if translation else {}
    merged = {**base, **{key: value for key, value in tools.items() if value}, **(options or {})}
    if tools.get("tools") and (added := (options or {}).get("tools")) is not None:
        merged["tools"] = [*tools["tools"], *added]  # options never take the gate's tools away
    return {key: value for key, value in merged.items() if value is not None}


def as_messages(messages: Messages) -> list[dict[str, object]]:
    """Copy the messages to a list of dicts; text becomes one user message.

    Raises:
        TypeError: the messages are not a list, or a message is not a mapping.
        ValueError: a message has no role, or a role that no provider knows.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
        raise TypeError(
            f"messages are a list, not {type(messages).__name__}; write "
            '[{"role": "user", "content": text}], or one text for the whole'
        )
    messages = list(messages)
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(
                f"message {number} is of type {type(message).__name__}; write "
                '{"role": "user", "content": text} for each message, or one text for the whole'
            )
        _check_role(number, message)
    return [dict(message) for message in messages]


_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model")
_MARKS = ("role", "type", "parts", "id")
"""Members of which each message of a provider has one."""


def _check_role(number: int, message: Mapping[str, object]) -> None:
    """Refuse a message that the provider would refuse, or read as one of the user."""
    if message.keys().isdisjoint(_MARKS):
        raise ValueError(f'message {number} has no role; write {{"role": "user", "content": text}}')
    role = message.get("role")
    if message.keys() == {"role", "content"} and role not in _ROLES:
        raise ValueError(
            f'message {number} has the role {role!r}{did_you_mean(str(role), _ROLES[:4])}; write "user", "assistant" or "system"'
        )


_SYSTEM = ("system", "developer")


def without_system(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, object]]]:
    """Split messages into the text of simple system messages and the rest, for wires that send them apart."""
    system = [each for each in messages if each.get("role") in _SYSTEM and isinstance(each.get("content"), str)]
    return "\n\n".join(each["content"] for each in system), [each for each in messages if each not in system]


def translated(
    definitions: Sequence[ToolDefinition],
    view: Callable[[ToolDefinition], View],
    shape: Callable[[ToolDefinition, str, View], dict[str, object]],
    legal: re.Pattern[str] = WIRE_NAME,
    maximum: int | None = None,
) -> Translation:
    """Build the result of ``Codec.translate``: *view* makes each schema, *shape* the tool in the wire's form.

    *legal* matches the tool names that the wire accepts. *maximum* is the wire's limit on the characters of a description.
    """
    definitions = [one if isinstance(one, ToolDefinition) else as_tool(one).definition for one in definitions]
    names = NameMap.of((definition.name for definition in definitions), legal)
    shaped: list[dict[str, object]] = []
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
            shortened=maximum is not None and len(definition.description or "") > maximum,
        )
    return Translation({"tools": shaped}, records, names)
