"""``OpenAIEmbeddings``: vectors from any endpoint that speaks OpenAI's ``/embeddings``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callgate.errors import RegistrationError
from callgate.runtime.models.wire.base_client import BaseClient, HttpClient
from callgate.runtime.models.wire.keys import KeySource
from callgate.runtime.models.wire.provider_errors import said
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts
from callgate.runtime.models.wire.shapes import items, mapping

__all__ = ["OpenAIEmbeddings"]


class OpenAIEmbeddings(BaseClient):
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

    default_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)

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
        super().__init__("openai_embeddings", base_url, model, api_key, http, timeout, retries, headers, insecure)
        self.version = version
        self._dimensions, self._batch = dimensions, batch

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

    async def _asked(self, texts: Sequence[str]) -> list[Sequence[float]]:
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        sent = await self._prepared("embeddings", body)
        answer, status = await self._answered(sent)
        if answer.get("error"):
            raise self._failed(f"it answered with an error: {said(answer, sent.scrubber.text)}", status)
        vectors = _vectors(answer, len(texts))
        if vectors is None:
            lacking = f"its answer has not one vector of the same length for each of {len(texts)} texts"
            raise self._failed(lacking, status)
        return vectors


def _vectors(body: Mapping[str, Any], number: int) -> list[Sequence[float]] | None:
    """The vectors of an answer, in the order of the texts; servers may give them in another. None if they do not fit."""
    entries = [mapping(entry) for entry in items(body.get("data"))]
    found: dict[Any, Sequence[float]] = {}
    for place, entry in enumerate(entries):
        vector = entry.get("embedding")
        if isinstance(vector, list) and vector and all(type(part) in (int, float) for part in vector):
            index = entry.get("index", place)
            found[index if type(index) is int else place] = vector
    if len(entries) != number or sorted(found) != list(range(number)) or len(set(map(len, found.values()))) > 1:
        return None
    return [found[place] for place in range(number)]
