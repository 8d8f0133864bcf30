"""A client of a model provider: sends requests and reads responses with a wire's codec. It never runs a tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from callgate.errors import RegistrationError, StreamCut
from callgate.providers.http.bounded import PIECE, has_more_values
from callgate.providers.kinds import checks_kinds
from callgate.providers.logs import LogEvent, emit
from callgate.providers.scrubbing import Scrubber
from callgate.runtime.models.wire.base import BaseCodec
from callgate.runtime.models.wire.base_client import OWN_CHECKS, BaseClient, HttpClient
from callgate.runtime.models.wire.codec import Codec, Messages, Translation
from callgate.runtime.models.wire.decoder import CUT, NO_ANSWER, Decoder
from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.runtime.models.wire.history import as_json
from callgate.runtime.models.wire.http_request import MAX_VALUES, HttpRequest
from callgate.runtime.models.wire.keys import KeySource
from callgate.runtime.models.wire.offered_tools import Tools, ToolTranslator
from callgate.runtime.models.wire.provider_errors import beginning, error_message, parse_json, retry_delay
from callgate.runtime.models.wire.reply import CallReady, Done, ReasoningDelta, Reply, ReplyEvent, TextDelta
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts, milliseconds
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ANONYMOUS, User
from callgate.tools.naming import explain_arguments

ModelInput: TypeAlias = Messages | Mapping[str, object]
"""The input of a model: text, messages, or ``{"model": ..., "messages": ..., ...}`` with options of the wire."""

_NOT_AN_API = frozenset({"text/html", "application/xhtml+xml", "application/xml", "text/xml"})


class Client(BaseClient):
    """A client of one model. Tasks and event loops can share it: make one per service; ``async with`` or ``aclose()`` closes it.

    Args:
        base_url: the API's address with its version; a query string is kept. Default: the provider's own address.
        model: the default model; a request can name another.
        api_key: the key, or a sync or async function that returns the current key. Default: the provider's usual
            environment variable if *base_url* is not given, so that the key goes to its provider only.
        http: an ``httpx.AsyncClient`` or ``httpx2.AsyncClient`` of your own, for proxies, certificates and transports.
            Its settings apply, except for redirects and timeouts; it is not closed. The default client is one of httpx
            and uses the environment's proxies.
        timeout: the seconds that the provider may be silent, before its answer begins or within it, or ``Timeouts``; None
            means no timeout at all.
        retries: the number of retries, or ``Retries``.
        headers: additional headers. A value whose name sounds like a secret is treated as one.
        options: the wire's own parameters for every request, such as ``{"temperature": 0}``; None removes one.
        insecure: allow a key to be sent to another machine over plain http.
        endings: stop reasons of a server with words of its own, such as ``{"finished": "done"}``, added to the closed
            table of the wire (see ``ReplyEnding``). An answer with any other reason is lost: none of its calls runs.
        text_calls: read calls that the model wrote into its text, such as ``<tool_call>…</tool_call>``, where the server
            of an open model did not read them (Chat Completions and Ollama). The risk: a text that only quotes a call
            runs it. Without it such a text is a text, and ``Reply.looks_like_call`` is True.

    Raises:
        RegistrationError: no key for the provider's own address, an invalid key or address, which the message does not
            quote, or a setting of another type.
    """

    codec: Codec

    @explain_arguments('Client(model="...", api_key=...), and base_url= for another server')
    @checks_kinds(RegistrationError, skip=OWN_CHECKS)
    def __init__(
        self,
        base_url: str | None = None,
        *,
        model: str,
        api_key: KeySource | None = None,
        http: HttpClient | None = None,
        timeout: float | Timeouts | None = 300.0,
        retries: int | Retries = 2,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, object] | None = None,
        insecure: bool = False,
        endings: Mapping[str, str] | None = None,
        text_calls: bool = False,
    ) -> None:
        if endings:
            self.codec = _with_endings(self.codec, endings)
        if text_calls:
            self.codec = _with_text_calls(self.codec)
        super().__init__(self.codec.name, base_url, model, api_key, http, timeout, retries, headers, insecure)
        self._options = dict(options or {})
        self._translator = ToolTranslator(self.codec)

    # ------------------------------------------------------------------ requests

    async def reply(
        self,
        messages: ModelInput,
        tools: Tools = (),
        *,
        user: User = ANONYMOUS,
        model: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Reply:
        """Return the model's whole answer to text, to messages, or to ``{"model": ..., "messages": ..., ...}``.

        Of a gate's *tools*, those that *user* may see are offered. *options* add to the options of the client.

        Raises:
            ModelError: the provider refused, could not be reached, or sent an invalid response.
            StreamCut: the response broke off.
            DefinitionError, TypeError: one of the *tools* cannot be offered; nothing was sent.
        """
        offered = self._translator.of(tools, user, checked=False)
        return await self._reply(messages, offered.translation, model, options)

    async def tool_call(
        self,
        input: ModelInput,
        tools: Tools,
        *,
        user: User = ANONYMOUS,
        model: str | None = None,
        options: Mapping[str, object] | None = None,
        repair: Repairer | None = None,
    ) -> list[HydrationResult]:
        """Offer the tools, and return the calls of the model's answer, hydrated and in order; no tool runs.

        *input* may be ``{"model": ..., "messages": ..., ...}`` with options of the wire. An invalid call, or a call of a
        tool that was not offered, is a failed result. Pass the results to ``gate.call``. ``result.tool`` is the instance
        of a class tool with ``effect="read"`` that is given itself: its constructor has run, without a policy.
        *repair*, a plain or async function, is called at most once for each call.

        Raises:
            ModelError: the provider refused, could not be reached, or sent an invalid response.
            StreamCut: the response broke off.
            DefinitionError, TypeError: one of the *tools* cannot be offered or checked; nothing was sent.
        """
        offered = self._translator.of(tools, user, checked=True)
        reply = await self._reply(input, offered.translation, model, options)
        return [await offered.hydrate(call, repair) for call in reply.calls]

    async def stream(
        self,
        messages: ModelInput,
        tools: Tools = (),
        *,
        user: User = ANONYMOUS,
        model: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> AsyncGenerator[ReplyEvent, None]:
        """Stream the model's answer as events, of which ``Done`` is the last.

        Closing the generator or cancelling the task closes the socket. To leave the loop early, use
        ``contextlib.aclosing``: after a plain ``break`` only the garbage collector closes it. A request is retried only
        if it fails before the response begins.

        Raises:
            ModelError: the response did not begin.
            StreamCut: the stream broke off, or reported an error; ``.reply`` is the part received so far.
            DefinitionError, TypeError: one of the *tools* cannot be offered; nothing was sent.
        """
        translation = self._translator.of(tools, user, checked=False).translation
        decoder = self.codec.decoder(translation)
        sent = await self._build_request(messages, translation, model, options, streamed=True)
        async with self._sender.response(sent) as response:
            if response.media in _NOT_AN_API:
                shown = beginning(await response.read(), sent.scrubber.text)
                raise self._model_error(
                    f"it answered with {response.media} instead of a stream: {shown}", response.status
                )
            if response.media == "application/json":  # not a stream, or a stream with a wrong content type
                body = await response.whole()
                events = self._events_of_whole(body, translation, response.status, sent.scrubber)
                for event in events:
                    yield event
                if events:
                    return
                async for event in _in_pieces(decoder, body):
                    yield event
            while not decoder.refused and (part := await response.read()):
                for event in decoder.feed(part):
                    yield event
                if decoder.closed:
                    response.finish()
        broken = None if response.failure is None or decoder.closed else response.failure.message
        for event in self._last_events(decoder, broken, sent.scrubber):
            yield event

    # ------------------------------------------------------------------ inside

    async def _build_request(
        self,
        messages: ModelInput,
        translation: Translation | None,
        model: str | None,
        options: Mapping[str, object] | None,
        *,
        streamed: bool = False,
    ) -> HttpRequest:
        messages, model, options = _parts_of(messages, model, options)
        merged = {**self._options, **(options or {})}
        request = self.codec.request(
            messages, translation, model=model or self.model, stream=streamed, options=merged or None
        )
        return await self._prepare(request.path, request.body, streamed=streamed)

    async def _reply(
        self,
        messages: ModelInput,
        translation: Translation | None,
        model: str | None,
        options: Mapping[str, object] | None,
    ) -> Reply:
        sent = await self._build_request(messages, translation, model, options)
        body, status = await self._send(sent)
        return self._reply_in(body, translation, status, sent.scrubber)

    def _reply_in(
        self, body: Mapping[str, object], translation: Translation | None, status: int, scrubber: Scrubber
    ) -> Reply:
        reply = self.codec.reply(body, translation)
        if reply.error is not None:
            reason = f"the provider answered with an error: {error_message(reply.error, scrubber.text)}"
            if reply.problem == NO_ANSWER:
                shown = as_json(body).encode("utf-8", "replace")
                reason = f"{NO_ANSWER}: {beginning(shown, scrubber.text)}"
            raise self._model_error(reason, status, retry_delay(body))
        self._log_lost(reply)
        return reply

    def _events_of_whole(
        self, body: bytes, translation: Translation | None, status: int, scrubber: Scrubber
    ) -> list[ReplyEvent]:
        """The events of a response that is not streamed; none if the body is not one JSON object."""
        value = None if has_more_values(body, MAX_VALUES) else parse_json(body)
        if not is_mapping(value) or value.get("done") is False:
            return []
        reply = self._reply_in(value, translation, status, scrubber)
        events: list[ReplyEvent] = [ReasoningDelta(reply.reasoning)] if reply.reasoning else []
        events += [TextDelta(reply.text)] if reply.text else []
        events += [CallReady(call) for call in reply.calls if not call.truncated]
        return [*events, Done(reply)]

    def _last_events(self, decoder: Decoder, broken: str | None, scrubber: Scrubber) -> Iterator[ReplyEvent]:
        """The last events of a stream; *broken* says how it broke off.

        Raises:
            StreamCut: the stream is not one whole answer, or reported an error.
        """
        events = decoder.end()
        last = events[-1]
        assert isinstance(last, Done)
        reply = last.reply
        if decoder.ended and reply.error is None and broken is None:
            self._log_lost(reply)
            yield from events
            return
        yield from (event for event in events[:-1] if not isinstance(event, CallReady))
        if reply.problem == NO_ANSWER:
            cut = broken or f"{NO_ANSWER}: {beginning(decoder.sample, scrubber.text)}"
        elif reply.error is not None:
            cut = f"the provider reported an error: {error_message(reply.error, scrubber.text)}"
        else:
            cut = broken or reply.problem or CUT
        calls = tuple(replace(call, truncated=True) for call in reply.calls)
        ending = ReplyEnding.LOST if reply.error is None else ReplyEnding.FAILED
        reply = replace(reply, truncated=True, calls=calls, judged=ending, problem=cut)
        self._log_lost(reply)
        wait = None if reply.error is None else milliseconds(retry_delay(reply.error))
        raise StreamCut(f"{self.codec.name}: {cut}", reply=reply, retry_after=wait, provider=self.codec.name)

    def _log_lost(self, reply: Reply) -> None:
        if reply.ending is ReplyEnding.LOST:
            emit(LogEvent.ANSWER_LOST, provider=self.codec.name, problem=reply.problem, calls=len(reply.calls))


async def _in_pieces(decoder: Decoder, body: bytes) -> AsyncGenerator[ReplyEvent, None]:
    """Decode a whole body; other tasks run meanwhile."""
    for at in range(0, len(body), PIECE):
        for event in decoder.feed(body[at : at + PIECE]):
            yield event
        await asyncio.sleep(0)


def _parts_of(
    given: ModelInput, model: str | None, options: Mapping[str, object] | None
) -> tuple[Messages, str | None, Mapping[str, object] | None]:
    """Split ``{"model": ..., "messages": ..., ...}`` into its parts; arguments of the method win over it.

    Raises:
        TypeError: the mapping has no messages, or it has tools, which are an argument of the method.
    """
    if not isinstance(given, Mapping):
        return given, model, options
    rest = dict(given)
    messages: Any = rest.pop("messages", None)
    if messages is None or "tools" in rest or "stream" in rest:
        raise TypeError(
            'the input of a model is text, messages, or {"model": ..., "messages": [...]} with options of the wire; '
            'write {"messages": [message]} for one message, and give tools as the second argument'
        )
    named: Any = rest.pop("model", None)
    return messages, model or named, {**rest, **(options or {})}


def _with_endings(codec: Codec, endings: Mapping[str, str]) -> Codec:
    if not isinstance(codec, BaseCodec):
        raise RegistrationError(f"the wire {codec.name!r} takes no endings=")
    try:
        return codec.with_endings(endings)
    except ValueError as error:
        raise RegistrationError(f"endings: {error}; give one of {', '.join(ReplyEnding)}") from None


def _with_text_calls(codec: Codec) -> Codec:
    if not isinstance(codec, BaseCodec):
        raise RegistrationError(f"the wire {codec.name!r} takes no text_calls=")
    try:
        return codec.with_text_calls()
    except ValueError as error:
        raise RegistrationError(f"text_calls: {error}") from None
