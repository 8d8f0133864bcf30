"""Vectors that are kept: made once, JSON bytes only, never of what people ask, and checked before they count."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import RegistrationError, ToolDefinition
from callgate.stores import MemoryStore
from callgate.tools.picking.embedding import EmbeddingCache, Embeddings, EmbeddingsUnfit, packed, unit, unpacked
from callgate.tools.picking.embedding_store import StoredEmbeddings
from callgate.tools.picking.index import ToolIndex
from callgate.tools.picking.meaning import text_of
from callgate.tools.picking.pick import pick_tools
from callgate.tools.picking.semantic import SemanticScorer
from tests.providers.stores.backends import opened, place
from tests.tools.picking.embedders import CATALOGUE, Concepts, Down, Kept

QUERY = "my private umbrella"


async def embedded(cache: EmbeddingCache, embedder: Concepts | None = None) -> list[str]:
    """The texts of tools that one pick had made anew, with a scorer of its own as another process has one."""
    used = embedder or Concepts()
    found = await pick_tools(QUERY, CATALOGUE, scorer=SemanticScorer(used, cache=cache))
    assert [one.tool.name for one in found] == ["get_weather"]
    return [text for text in used.asked if text != QUERY]


async def test_a_second_process_makes_no_vector_anew() -> None:
    """Contract 69."""
    cache = Kept()
    assert len(await embedded(cache)) == len(CATALOGUE)
    assert await embedded(cache) == []


async def test_what_people_ask_is_not_kept() -> None:
    """Contract 69: the cache holds one entry for each tool; neither keys nor values hold a text."""
    cache = Kept()
    await embedded(cache)
    assert set(cache.items) == {Embeddings(Concepts()).key(text_of(entry)) for entry in ToolIndex(CATALOGUE)}
    assert all(isinstance(orjson.loads(value), str) for value in cache.items.values())
    assert b"umbrella" not in b"".join([*cache.items.values(), *(key.encode() for key in cache.items)])


async def test_the_same_question_is_embedded_once() -> None:
    """Contract 69."""
    embedder = Concepts()
    scorer = SemanticScorer(embedder)
    for _ in range(3):
        await pick_tools(QUERY, CATALOGUE, scorer=scorer)
    assert embedder.asked.count(QUERY) == 1


OTHERS = {"another name": Concepts(name="others"), "another version": Concepts(version="2")}


@pytest.mark.parametrize("other", OTHERS)
async def test_vectors_of_another_model_are_not_taken(other: str) -> None:
    """Contract 69."""
    cache = Kept()
    await embedded(cache)
    assert len(await embedded(cache, OTHERS[other])) == len(CATALOGUE)


BAD = {
    "nothing": b"",
    "no JSON": b"{",
    "another type": b"[1, 2, 3]",
    "no hexadecimal": b'"zz"',
    "half a number": b'"0000"',
    "another dimension": packed(unit([1.0, 2.0])),
    "no unit length": packed(array("f", [3.0, 4.0, 0.0])),
    "not a number": packed(array("f", [math.nan, 0.0, 0.0])),
    "infinity": packed(array("f", [math.inf, 0.0, 0.0])),
    "none": packed(array("f")),
    "a pickle": b"\x80\x04N.",
}


@pytest.mark.parametrize("bad", BAD)
async def test_an_entry_that_is_something_else_is_made_anew(bad: str) -> None:
    """Contract 69: who can write to the store can at most be ignored."""
    cache = Kept()
    await embedded(cache)
    good = dict(cache.items)
    cache.items = dict.fromkeys(good, BAD[bad])
    assert len(await embedded(cache)) == len(CATALOGUE)
    assert cache.items == good


async def test_a_cache_that_is_down_is_a_cache_without_the_value() -> None:
    """Contract 69."""
    assert len(await embedded(Down())) == len(CATALOGUE)


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "redis"])
async def test_a_store_keeps_vectors(kind: str, tmp_path: Path) -> None:
    """Contract 69: by tenant, as all that is in a store; Redis has not all parts of a store."""
    with place(kind, tmp_path) as at:
        async with opened(kind, at) as backend:
            store = backend.store
            assert len(await embedded(StoredEmbeddings(store))) == len(CATALOGUE)
            assert await embedded(StoredEmbeddings(store)) == []
            assert await embedded(StoredEmbeddings(store.cache)) == []
            assert len(await embedded(StoredEmbeddings(store, tenant="acme"))) == len(CATALOGUE)


@pytest.mark.parametrize("keep", [0.0, -1.0, math.nan], ids=["nothing", "less", "no number"])
def test_a_time_to_keep_that_means_nothing_is_refused(keep: float) -> None:
    """Contract 69."""
    with pytest.raises(RegistrationError, match="above 0"):
        StoredEmbeddings(MemoryStore(), keep=keep)


FINITE = st.floats(-1e30, 1e30)


@given(st.lists(FINITE, min_size=1, max_size=40))
def test_a_vector_comes_back_to_the_bit(numbers: list[float]) -> None:
    """Contract C32."""
    vector = unit(numbers)
    assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-5) or math.hypot(*numbers) <= 1e-30
    assert unpacked(packed(vector), len(vector)) == vector


@given(st.binary(max_size=64))
def test_whatever_is_kept_is_a_unit_vector_or_nothing(kept: bytes) -> None:
    """Contract 69."""
    found = unpacked(b'"' + kept.hex().encode() + b'"')
    assert found is None or math.isclose(math.hypot(*found), 1.0, abs_tol=2e-3) or not any(found)


def test_an_empty_vector_is_unfit() -> None:
    """Contract 69."""
    with pytest.raises(EmbeddingsUnfit):
        unit([])


def test_the_text_that_is_embedded_has_the_name_as_words() -> None:
    """Contract C32: name, title and description; bounded."""
    long = ToolDefinition("getUser_info-v2", "x" * 1000, {"type": "object"}, title="About a user")
    (entry,) = ToolIndex([long])
    assert text_of(entry).startswith("get User info v2: About a user xxx")
    (mapped,) = ToolIndex([{"name": "a.b", "description": "y" * 50_000}])
    assert len(text_of(mapped)) == 4_000
