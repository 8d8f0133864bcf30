"""What the tests of meaning share: an embedder that knows a few words' meanings, caches, and a small catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from callgate import ToolDefinition

CONCEPTS = (
    ("rain", "weather", "forecast", "umbrella", "sunny"),
    ("money", "refund", "pay", "reimburse", "invoice"),
    ("holiday", "flight", "travel", "trip"),
)
WEATHER = ToolDefinition("get_weather", "The weather forecast.", {"type": "object"})
REFUND = ToolDefinition("refund_order", "Pay the money back.", {"type": "object"})
FLIGHT = ToolDefinition("book_flight", "Book a seat.", {"type": "object"})
CATALOGUE = (WEATHER, REFUND, FLIGHT)


class Concepts:
    """One number for each concept: how many of its words the text has. It keeps what it was asked."""

    def __init__(self, name: str = "concepts", version: str = "1") -> None:
        self.name, self.version, self.dimension = name, version, len(CONCEPTS)
        self.asked: list[str] = []
        self.calls = 0

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.calls += 1
        self.asked += texts
        await asyncio.sleep(0)
        return [[float(sum(word in text.lower() for word in words)) for words in CONCEPTS] for text in texts]


class Broken(Concepts):
    """Answers as it is told to, which is not as an embedder should."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if isinstance(self.answer, BaseException):
            raise self.answer
        found: Any = self.answer(len(texts))
        return found  # type: ignore[no-any-return]


class Slow(Concepts):
    """Takes so many seconds for each call."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        await asyncio.sleep(self.seconds)
        return await super().embed(texts)


class Kept:
    """An ``EmbeddingCache`` that one can look into."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}

    async def get(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        return {key: self.items[key] for key in keys if key in self.items}

    async def put(self, items: Mapping[str, bytes]) -> None:
        self.items.update(items)


class Down:
    """An ``EmbeddingCache`` that cannot be reached."""

    async def get(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        raise ConnectionError("no cache")

    async def put(self, items: Mapping[str, bytes]) -> None:
        raise ConnectionError("no cache")
