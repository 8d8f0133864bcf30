"""The base class of codecs: a wire implements the few methods that depend on its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from callgate.runtime.models.wire.codec import Messages, Request, Translation, as_messages, request_body
from callgate.runtime.models.wire.decoder import Decoder, Fold
from callgate.runtime.models.wire.framing import Framing, Sniffed
from callgate.runtime.models.wire.reading import RawCall, count, error_of, pair, response_body
from callgate.runtime.models.wire.reply import Reply, Usage
from callgate.runtime.models.wire.shapes import mapping
from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition


class ReplyFields(TypedDict, total=False):
    """The fields of a ``Reply`` that a wire reads besides the calls; unknown ones are left out."""

    text: str
    reasoning: str
    stop: str | None
    truncated: bool
    usage: Usage
    model: str | None
    id: str | None


class BaseCodec(ABC):
    """Implements ``Codec`` except ``name``, ``translate`` and ``results``.

    A subclass implements the abstract methods. They must not raise on unexpected content.
    """

    framing: type[Framing] = Sniffed
    """Splits a stream into chunks. The default reads server-sent events, and also a response that is not streamed."""

    def calls(self, response: Mapping[str, Any], translation: Translation | None = None) -> list[ToolCall]:
        """See ``Codec``."""
        body = response_body(response)
        return [] if self.error_in(body) else [call for _, call in pair(self.calls_in(body), translation)]

    def reply(self, response: Mapping[str, Any], translation: Translation | None = None) -> Reply:
        """See ``Codec``."""
        body = response_body(response)
        error = self.error_in(body)
        found = [] if error else pair(self.calls_in(body), translation)
        calls = tuple(call for _, call in found)
        messages = () if error else tuple(self.history_of(body, found))
        return Reply(calls=calls, messages=messages, error=error, body=body, **self.fields_in(body))

    def decoder(self, translation: Translation | None = None) -> Decoder:
        """See ``Codec``."""
        fold = self.new_fold(translation.names.tool if translation else str)
        return Decoder(fold, lambda body: self.reply(body, translation), self.framing())

    def request(
        self,
        messages: Messages,
        translation: Translation | None = None,
        *,
        model: str,
        stream: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Request:
        """See ``Codec``."""
        base = self.request_for(as_messages(messages), model, stream)
        return Request(base.path, request_body(base.body, translation, options))

    # ------------------------------------------------------------------ implemented by each wire

    def error_in(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The provider's error, if the response is one."""
        return error_of(body)

    @abstractmethod
    def calls_in(self, body: Mapping[str, Any]) -> Iterable[RawCall]:
        """The calls of a response, in order and as the wire spells them."""

    @abstractmethod
    def fields_in(self, body: Mapping[str, Any]) -> ReplyFields:
        """The other fields of a response."""

    @abstractmethod
    def history_of(
        self, body: Mapping[str, Any], found: Sequence[tuple[RawCall, ToolCall]]
    ) -> Iterable[dict[str, Any]]:
        """The messages that repeat a response in the history; *found* pairs its calls with their tool calls."""

    @abstractmethod
    def new_fold(self, tool_of: Callable[[str], str]) -> Fold:
        """Make the fold that assembles a stream; *tool_of* maps a wire name to the tool's name."""

    @abstractmethod
    def request_for(self, messages: list[dict[str, Any]], model: str, stream: bool) -> Request:
        """The request without tools and options; fields that are None are left out."""


OPENAI_DESCRIPTION = 1024
"""The characters that OpenAI's two APIs accept as the description of a tool."""


def described(definition: ToolDefinition, most: int | None = None) -> dict[str, Any]:
    """The ``description`` field of a tool, shortened to *most* characters; no field if the tool has none."""
    text = definition.description
    if text is None:
        return {}
    return {"description": text if most is None or len(text) <= most else text[: most - 1].rstrip() + "…"}


def openai_usage(usage: Mapping[str, Any], input: str, output: str) -> Usage:
    """The usage that OpenAI's two APIs report; *input* and *output* are their names for the token counts."""
    return Usage(
        input=count(usage, input),
        output=count(usage, output),
        total=count(usage, "total_tokens"),
        cached=count(mapping(usage.get(f"{input}_details")), "cached_tokens"),
        reasoning=count(mapping(usage.get(f"{output}_details")), "reasoning_tokens"),
    )
