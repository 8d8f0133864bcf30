"""Embeddings from OpenAI's ``/embeddings`` API, or from a compatible server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from callgate.errors import RegistrationError
from callgate.providers.kinds import Count, checks_kinds
from callgate.runtime.models.wire.base_client import OWN_CHECKS, BaseClient, HttpClient
from callgate.runtime.models.wire.keys import KeySource
from callgate.runtime.models.wire.provider_errors import error_message
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts
from callgate.runtime.models.wire.shapes import items, mapping


class OpenAIEmbeddings(BaseClient):
    """An ``Embedder`` that calls OpenAI's API, or that of a compatible server named by *base_url*.

    Queries and the descriptions of tools are sent to that server. ``async with`` or ``aclose()`` closes the client.

    Args:
        base_url: the API's address with its version; a query string is kept. Default: OpenAI's.
        model: the model's name.
        api_key: the key, or a sync or async function that returns the current key. Default: ``OPENAI_API_KEY`` if
            *base_url* is not given, so that the key goes to OpenAI only.
        http: an ``httpx.AsyncClient`` or ``httpx2.AsyncClient`` of your own; it is not closed. See ``Client``.
        dimensions: the length of the vectors, for models that can shorten them.
        version: a part of the cache key of vectors; change it when the server replaces the model under the same name.
        batch: the maximum number of texts in one request.
        timeout: the read timeout in seconds, or ``Timeouts``.
        retries: the number of retries, or ``Retries``.
        headers: additional headers.
        insecure: allow a key to be sent to another machine over plain http.

    Raises:
        RegistrationError: no key for OpenAI's address, an invalid key or address, a number below 1, or a setting of another type.
    """

    default_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)

    @checks_kinds(RegistrationError, skip=OWN_CHECKS)
    def __init__(
        self,
        base_url: str | None = None,
        *,
        model: str,
        api_key: KeySource | None = None,
        http: HttpClient | None = None,
        dimensions: Count | None = None,
        version: str = "1",
        batch: Count = 64,
        timeout: float | Timeouts | None = 30.0,
        retries: int | Retries = 2,
        headers: Mapping[str, str] | None = None,
        insecure: bool = False,
    ) -> None:
        super().__init__("openai_embeddings", base_url, model, api_key, http, timeout, retries, headers, insecure)
        self.version = version
        self._dimensions, self._batch = dimensions, batch

    @property
    def name(self) -> str:
        """The model's name and address, without the key."""
        shorter = "" if self._dimensions is None else f"/{self._dimensions}"
        return f"{self.model}{shorter} at {self._address}"

    @property
    def dimension(self) -> int | None:
        """The requested length of the vectors, or None."""
        return self._dimensions

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector for each text, in order.

        Raises:
            ModelError: the request failed, or the response lacks a vector of the common length for a text.
        """
        found: list[Sequence[float]] = []
        for start in range(0, len(texts), self._batch):
            found += await self._embed_batch(texts[start : start + self._batch])
        return found

    async def _embed_batch(self, texts: Sequence[str]) -> list[Sequence[float]]:
        body: dict[str, object] = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        longest = 8_192 if self._dimensions is None else self._dimensions
        sent = replace(await self._prepare("embeddings", body), max_values=len(texts) * (longest + 16) + 1_000)
        response, status = await self._send(sent)
        if response.get("error"):
            raise self._model_error(
                f"the provider answered with an error: {error_message(response, sent.scrubber.text)}", status
            )
        vectors = _vectors(response, len(texts))
        if vectors is None:
            lacking = f"the response lacks a vector of the common length for each of {len(texts)} texts"
            raise self._model_error(lacking, status)
        return vectors


def _vectors(body: Mapping[str, object], number: int) -> list[Sequence[float]] | None:
    """The vectors in the order of the texts, which may differ from the server's; None if one is missing or invalid."""
    entries = [mapping(entry) for entry in items(body.get("data"))]
    found: dict[int, Sequence[float]] = {}
    for position, entry in enumerate(entries):
        vector = entry.get("embedding")
        if isinstance(vector, list) and vector and all(type(part) in (int, float) for part in vector):
            index = entry.get("index", position)
            found[index if isinstance(index, int) and not isinstance(index, bool) else position] = vector
    if len(entries) != number or sorted(found) != list(range(number)) or len(set(map(len, found.values()))) > 1:
        return None
    return [found[position] for position in range(number)]
