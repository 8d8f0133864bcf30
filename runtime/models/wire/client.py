"""A client of a model's provider: asks, and reads the answer by the codec of its wire. It never runs a tool."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from callgate.errors import StreamCut
from callgate.providers.scrubbing import Scrubber
from callgate.runtime.models.wire.base_client import BaseClient, HttpClient
from callgate.runtime.models.wire.codec import Codec, Messages, Translation
from callgate.runtime.models.wire.decoder import Decoder
from callgate.runtime.models.wire.http_request import Outgoing
from callgate.runtime.models.wire.keys import KeySource
from callgate.runtime.models.wire.offered_tools import Offers, Tools
from callgate.runtime.models.wire.provider_errors import parsed, said
from callgate.runtime.models.wire.reply import CallReady, Done, Event, ReasoningDelta, Reply, TextDelta
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ANONYMOUS, User

_PAGES = frozenset({"text/html", "application/xhtml+xml", "application/xml", "text/xml"})


class Client(BaseClient):
    """Asks a model. Tasks can share it: make one for a service; ``async with`` or ``aclose()`` closes it.

    Args:
        base_url: where the API is, with its version; a query string in it is kept. Default: the provider's own.
        model: the name of the model, unless a request names another.
        api_key: a text, or a function, plain or async, that gives the one to use now. Default: the provider's usual
            environment variable, where *base_url* is left out: a key is only sent where it belongs.
        http: your own ``httpx.AsyncClient``, for proxies, certificates and transports. It is used as it is, but for
            redirects and time limits, and not closed. By default one is made that goes by the environment's proxies.
        timeout: seconds that the provider may be silent, or ``Timeouts``; None for no limit at all.
        retries: how often to ask again, or ``Retries``.
        headers: what to send as well. Names that sound like secrets have their values kept as one.
        options: the wire's own parameters for every request, such as ``{"temperature": 0}``; None takes one out.
        insecure: a key may go to another machine over plain http.

    Raises:
        RegistrationError: no key for the provider's own address, a key or an address that cannot be used; the message
            quotes neither.
    """

    codec: ClassVar[Codec]

    def __init__(
        self,
        base_url: str | None = None,
        *,
        model: str,
        api_key: KeySource | None = None,
        http: HttpClient | None = None,
        timeout: float | Timeouts | None = 60.0,
        retries: int | Retries = 2,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        insecure: bool = False,
    ) -> None:
        super().__init__(self.codec.name, base_url, model, api_key, http, timeout, retries, headers, insecure)
        self._options = dict(options or {})
        self._offers = Offers(self.codec)

    # ------------------------------------------------------------------ asking

    async def reply(
        self,
        messages: Messages,
        tools: Tools = (),
        *,
        user: User = ANONYMOUS,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The model's answer in one piece. *user* is for whom a gate's tools are seen; *options* add to the client's.

        Raises:
            ModelError: there is no answer: the provider refused, could not be reached, or sent something else.
            DefinitionError, TypeError: *tools* hold what cannot be offered; nothing was sent.
        """
        offered = self._offers.of(tools, user, checked=False)
        return await self._reply(messages, offered.translation, model, options)

    async def tool_call(
        self,
        input: Messages,
        tools: Tools,
        *,
        user: User = ANONYMOUS,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        repair: Repairer | None = None,
    ) -> list[HydrationResult]:
        """Translate, dispatch, hydrate: the calls of the model's answer, checked, in order; no tool runs (contract 53-57).

        A call that is no good is a failed result, one of a tool that was not offered too (C10a). Give them to
        ``gate.call``. *repair* is asked at most once a call.

        Raises:
            ModelError: there is no answer, and so no calls (C10).
            DefinitionError, TypeError: *tools* hold what cannot be offered or checked; nothing was sent.
        """
        offered = self._offers.of(tools, user, checked=True)
        reply = await self._reply(input, offered.translation, model, options)
        return [offered.hydrate(call, repair) for call in reply.calls]

    async def stream(
        self,
        messages: Messages,
        tools: Tools = (),
        *,
        user: User = ANONYMOUS,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """The model's answer as it comes; ``Done`` is last. Closing the generator, or cancelling, closes the socket.

        To leave it early use ``contextlib.aclosing``: a ``break`` alone leaves the closing to the garbage collector.
        Only what failed before the answer began is tried again.

        Raises:
            ModelError: the answer did not begin.
            StreamCut: it broke off, or told of an error; ``.reply`` is what had come.
            DefinitionError, TypeError: *tools* hold what cannot be offered; nothing was sent.
        """
        translation = self._offers.of(tools, user, checked=False).translation
        decoder = self.codec.decoder(translation)
        sent = await self._outgoing(messages, translation, model, options, streamed=True)
        async with self._sender.answer(sent) as answer:
            if answer.media in _PAGES:
                raise self._failed(f"it answered with {answer.media} in place of a stream", answer.status)
            if answer.media == "application/json":  # it does not stream, or does not say so
                body = await answer.whole()
                events = self._at_once(body, translation, answer.status, sent.scrubber) or decoder.feed(body)
                for event in events:
                    yield event
                if events and events[-1].__class__ is Done:
                    return
            while part := await answer.read():
                for event in decoder.feed(part):
                    yield event
                if decoder.ended:
                    answer.finish()
        cut = answer.failure.message if answer.failure else "it ended before its end mark"
        for event in self._ending(decoder, cut, sent.scrubber):
            yield event

    # ------------------------------------------------------------------ inside

    async def _outgoing(
        self,
        messages: Messages,
        translation: Translation | None,
        model: str | None,
        options: Mapping[str, Any] | None,
        *,
        streamed: bool = False,
    ) -> Outgoing:
        merged = {**self._options, **(options or {})}
        request = self.codec.request(
            messages, translation, model=model or self.model, stream=streamed, options=merged or None
        )
        return await self._prepared(request.path, request.body, streamed=streamed)

    async def _reply(
        self,
        messages: Messages,
        translation: Translation | None,
        model: str | None,
        options: Mapping[str, Any] | None,
    ) -> Reply:
        sent = await self._outgoing(messages, translation, model, options)
        body, status = await self._answered(sent)
        return self._read(body, translation, status, sent.scrubber)

    def _read(self, body: Mapping[str, Any], translation: Translation | None, status: int, scrubber: Scrubber) -> Reply:
        reply = self.codec.reply(body, translation)
        if reply.error is not None:
            raise self._failed(f"it answered with an error: {said(reply.error, scrubber.text)}", status)
        return reply

    def _at_once(self, body: bytes, translation: Translation | None, status: int, scrubber: Scrubber) -> list[Event]:
        """The events of an answer in one piece; none where the body is not one JSON object."""
        value = parsed(body)
        if not is_mapping(value) or value.get("done") is False:
            return []
        reply = self._read(value, translation, status, scrubber)
        events: list[Event] = [ReasoningDelta(reply.reasoning)] if reply.reasoning else []
        events += [TextDelta(reply.text)] if reply.text else []
        events += [CallReady(call) for call in reply.calls if not call.truncated]
        return [*events, Done(reply)]

    def _ending(self, decoder: Decoder, cut: str, scrubber: Scrubber) -> Iterator[Event]:
        """The last events of a stream.

        Raises:
            StreamCut: it did not end as it should.
        """
        events = decoder.end()
        last = events[-1]
        assert isinstance(last, Done)
        error = last.reply.error
        if decoder.ended and error is None:
            yield from events
            return
        yield from (event for event in events[:-1] if not isinstance(event, CallReady))
        if error is not None:
            cut = f"it told of an error: {said(error, scrubber.text)}"
        reply = replace(last.reply, truncated=True, calls=tuple(replace(c, truncated=True) for c in last.reply.calls))
        raise StreamCut(f"{self.codec.name}: {cut}", reply=reply, provider=self.codec.name)
