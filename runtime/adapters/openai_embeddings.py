"""``OpenAIEmbeddings``: vectors from any endpoint that speaks OpenAI's ``/embeddings``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

from callgate.errors import ModelError, RegistrationError
from callgate.providers.scrubbing import Scrubber
from callgate.runtime.wire.address import Address
from callgate.runtime.wire.client import HttpClient
from callgate.runtime.wire.keys import Credentials, KeySource, environment_key
from callgate.runtime.wire.outgoing import Outgoing
from callgate.runtime.wire.patience import Retries, Timeouts
from callgate.runtime.wire.refusals import parsed, said
from callgate.runtime.wire.shapes import is_mapping, items, mapping

__all__ = ["OpenAIEmbeddings"]

_DEFAULT_URL = "https://api.openai.com/v1"
_VARIABLES = ("OPENAI_API_KEY",)
_PROVIDER = "openai_embeddings"


class OpenAIEmbeddings:
    """An ``Embedder`` over HTTP: OpenAI's, or that of a server which speaks the same; name it by *base_url*.

    What is asked and what the tools say of themselves goes to that server. ``async with`` or ``aclose()`` closes it.

    Args:
        base_url: where the API is, with its version; a query string in it is kept. Default: OpenAI's.
        model: the name of the model.
        api_key: a text, or a function, plain or async, that gives the one to use now. Default: ``OPENAI_API_KEY``, where
            *base_url* is left out: a key is only sent where it belongs.
        http: your own ``httpx.AsyncClient``; it is not closed. See ``Client``.
        dimensions: how many numbers to ask for, where the model can shorten its vectors.
        version: to be changed when the server has another model under the same name; part of what vectors are kept by.
        batch: texts in one request.
        timeout: seconds that the server may be silent, or ``Timeouts``.
        retries: how often to ask again, or ``Retries``.
        headers: what to send as well.
        insecure: a key may go to another machine over plain http.

    Raises:
        RegistrationError: no key for OpenAI's own address, a key or an address that cannot be used, a number below 1.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        model: str,
        api_key: KeySource | None = None,
        http: HttpClient | None = None,
        dimensions: int | None = None,
        version: str = "1",
        batch: int = 64,
        timeout: float | Timeouts | None = 30.0,
        retries: int | Retries = 2,
        headers: Mapping[str, str] | None = None,
        insecure: bool = False,
    ) -> None:
        if batch < 1 or (dimensions is not None and dimensions < 1):
            raise RegistrationError("OpenAIEmbeddings: batch and dimensions must be at least 1")
        if api_key is None and base_url is None:
            api_key = environment_key(_VARIABLES)
        self.model, self.version = model, version
        self._dimensions, self._batch = dimensions, batch
        self._address = Address.of(_DEFAULT_URL if base_url is None else base_url)
        self._credentials = Credentials(api_key, "Authorization", "Bearer ", headers or {})
        if base_url is None and not self._credentials.secret:
            raise RegistrationError(f"no API key: give api_key= or set {_VARIABLES[0]}")
        if self._credentials.secret and not (self._address.encrypted or self._address.local or insecure):
            raise RegistrationError("a key over plain http to another machine: use https, or say insecure=True")
        from callgate.runtime.wire.http import Sender  # with it comes httpx

        self._sender = Sender(_PROVIDER, http, Timeouts.of(timeout), Retries.of(retries))

    @property
    def name(self) -> str:
        """The model and where it is; never the key."""
        shorter = "" if self._dimensions is None else f"/{self._dimensions}"
        return f"{self.model}{shorter} at {self._address}"

    @property
    def dimension(self) -> int | None:
        """What was asked for by *dimensions*."""
        return self._dimensions

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector for each text, in order.

        Raises:
            ModelError: there is no answer, or not one vector of the same length for each text.
        """
        found: list[Sequence[float]] = []
        for start in range(0, len(texts), self._batch):
            found += await self._asked(texts[start : start + self._batch])
        return found

    async def aclose(self) -> None:
        """Close the connections; an ``http`` that was given is left open."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"OpenAIEmbeddings({str(self._address)!r}, model={self.model!r})"

    def __reduce__(self) -> NoReturn:
        self._credentials.__reduce__()

    async def _asked(self, texts: Sequence[str]) -> list[Sequence[float]]:
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        headers, scrubber = await self._credentials.headers()
        sent = Outgoing.of(self._address.endpoint("embeddings"), body, headers, scrubber, streamed=False)
        async with self._sender.answer(sent) as answer:
            data = await answer.whole()
        if answer.failure is not None:
            raise _failed(answer.failure.message, answer.status)
        return _vectors(parsed(data), len(texts), answer.status, scrubber)


def _vectors(body: Any, number: int, status: int, scrubber: Scrubber) -> list[Sequence[float]]:
    """The vectors of an answer, in the order of the texts; servers may give them in another."""
    if not is_mapping(body):
        raise _failed("its answer is no JSON object", status)
    if body.get("error"):
        raise _failed(f"it answered with an error: {said(body, scrubber.text)}", status)
    entries = [mapping(entry) for entry in items(body.get("data"))]
    found: dict[Any, Sequence[float]] = {}
    for place, entry in enumerate(entries):
        vector = entry.get("embedding")
        if isinstance(vector, list) and vector and all(type(part) in (int, float) for part in vector):
            index = entry.get("index", place)
            found[index if type(index) is int else place] = vector
    if len(entries) != number or sorted(found) != list(range(number)) or len(set(map(len, found.values()))) > 1:
        raise _failed(f"its answer has not one vector of the same length for each of {number} texts", status)
    return [found[place] for place in range(number)]


def _failed(message: str, status: int | None) -> ModelError:
    return ModelError(f"{_PROVIDER}: {message}", status=status, provider=_PROVIDER)
