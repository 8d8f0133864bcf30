"""``OpenAIEmbeddings``: vectors over HTTP, in order, checked; the key is sent where it belongs and shown nowhere."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from callgate import ModelError, RegistrationError, ToolDefinition
from callgate.runtime.models.openai_embeddings import OpenAIEmbeddings
from callgate.tools.picking.pick import pick_tools
from callgate.tools.picking.semantic import SemanticScorer
from tests.runtime.models.providers import KEY, Recorder, chain, failure, quick, served, whole

URL = "https://embeddings.example/v1"
Handler = Callable[[httpx.Request], Any]


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float("rain" in text or "weather" in text), 1.0]


def answer(texts: list[str], **changed: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": place, "embedding": vector_of(text)} for place, text in enumerate(texts)]
    return {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 5, "total_tokens": 5}, **changed}


def make(handler: Handler, **options: Any) -> OpenAIEmbeddings:
    known: dict[str, Any] = {"model": "m", "api_key": KEY, "retries": quick(), "base_url": URL, **options}
    return OpenAIEmbeddings(http=httpx.AsyncClient(transport=httpx.MockTransport(handler)), **known)


async def test_texts_go_out_as_openai_takes_them_and_vectors_come_back_in_order() -> None:
    """Contract 70."""
    provider = Recorder(lambda request: httpx.Response(200, json=answer(json.loads(request.content)["input"])))
    made = make(provider, batch=2, dimensions=3)
    assert await made.embed(["a", "bb", "rain"]) == [vector_of("a"), vector_of("bb"), vector_of("rain")]
    seen = provider.requests
    assert [str(request.url) for request in seen] == [f"{URL}/embeddings"] * 2
    assert [request.headers["authorization"] for request in seen] == [f"Bearer {KEY}"] * 2
    assert [json.loads(request.content) for request in seen] == [
        {"model": "m", "input": ["a", "bb"], "encoding_format": "float", "dimensions": 3},
        {"model": "m", "input": ["rain"], "encoding_format": "float", "dimensions": 3},
    ]


async def test_no_text_asks_nobody() -> None:
    """Contract 70."""
    assert await make(lambda request: pytest.fail("asked")).embed([]) == []


async def test_vectors_in_another_order_are_put_in_that_of_the_texts() -> None:
    """Contract 70."""
    body = answer(["a", "bb", "ccc"])
    body["data"].reverse()
    made = make(lambda request: httpx.Response(200, json=body))
    assert await made.embed(["a", "bb", "ccc"]) == [vector_of("a"), vector_of("bb"), vector_of("ccc")]


async def test_a_server_that_numbers_nothing_is_read_in_its_order() -> None:
    """Contract 70."""
    body = {"data": [{"embedding": [1, 0.5]}, {"embedding": [0, 2]}]}
    assert await make(lambda request: httpx.Response(200, json=body)).embed(["a", "b"]) == [[1, 0.5], [0, 2]]


UNFIT: dict[str, Any] = {
    "a list": [],
    "no data": {},
    "data of another type": {"data": "x"},
    "too few": {"data": [{"index": 0, "embedding": [1.0]}]},
    "too many": {"data": [{"index": place, "embedding": [1.0]} for place in range(3)]},
    "one number twice": {"data": [{"index": 0, "embedding": [1.0]}] * 2},
    "a number that is none of ours": {"data": [{"index": place, "embedding": [1.0]} for place in (0, 7)]},
    "unlike lengths": {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]},
    "an empty one": {"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": [1.0]}]},
    "text in one": {"data": [{"index": 0, "embedding": ["1"]}, {"index": 1, "embedding": [1.0]}]},
    "truth in one": {"data": [{"index": 0, "embedding": [True]}, {"index": 1, "embedding": [1.0]}]},
    "null in one": {"data": [{"index": 0, "embedding": [None]}, {"index": 1, "embedding": [1.0]}]},
    "none": {"data": [{"index": 0, "embedding": None}, {"index": 1}]},
    "entries of another type": {"data": [1, 2]},
    "an error that says it is well": {"error": {"message": "no such model"}},
}


@pytest.mark.parametrize("unfit", UNFIT)
async def test_an_answer_without_a_vector_for_each_text_is_an_error(unfit: str) -> None:
    """Contract 70: never half of it, never a guess."""
    error = await failure(make(lambda request: httpx.Response(200, json=UNFIT[unfit])).embed(["a", "b"]))
    assert error.status == 200
    assert error.provider == "openai_embeddings"


async def test_a_body_that_is_no_json_is_an_error() -> None:
    """Contract 70."""
    assert (await failure(make(lambda request: httpx.Response(200, text="<html>")).embed(["a"]))).status == 200


async def test_what_may_pass_is_asked_again_and_what_will_not_is_not() -> None:
    """Contract 70."""
    statuses = [503, 429, 200]

    def busy(request: httpx.Request) -> httpx.Response:
        return httpx.Response(statuses.pop(0), json=answer(["a"]))

    assert await make(busy).embed(["a"]) == [vector_of("a")]
    refusing = Recorder(lambda request: httpx.Response(401, json={"error": {"message": "wrong key"}}))
    assert (await failure(make(refusing).embed(["a"]))).status == 401
    assert len(refusing.requests) == 1


def echo(request: httpx.Request) -> str:
    return f"wrong key: {request.headers['authorization']}"


CARELESS: dict[str, Handler] = {
    "refused": lambda request: httpx.Response(401, json={"error": {"message": echo(request)}}),
    "well": lambda request: httpx.Response(200, json={"error": {"message": echo(request)}}),
    "redirect": lambda request: httpx.Response(302, headers={"location": f"https://x.example/?{KEY}"}),
    "text": lambda request: httpx.Response(500, text=echo(request)),
}


@pytest.mark.parametrize("careless", CARELESS)
async def test_a_key_is_in_no_error_whatever_the_server_says(careless: str) -> None:
    """Contract 70."""
    error = await failure(make(CARELESS[careless]).embed(["a"]))
    assert KEY not in " ".join(f"{one!s} {one!r}" for one in chain(error))


async def test_nothing_that_is_kept_or_shown_of_it_holds_the_key() -> None:
    """Contract 69, 70: the name is part of provenance and of what vectors are kept by."""
    made = make(lambda request: httpx.Response(200, json=answer(["a"])), dimensions=8)
    assert made.name == f"m/8 at {URL}"
    assert made.dimension == 8
    assert KEY not in f"{made!r} {made.name} {made.version}"
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="API key"):
            copying(made)


REFUSED: dict[str, dict[str, Any]] = {
    "plain http with a key": {"base_url": "http://elsewhere.example/v1"},
    "no address": {"base_url": "embeddings"},
    "a key in the address": {"base_url": f"https://x.example/v1?api_key={KEY}"},
    "a key that cannot be sent": {"api_key": "a b"},
    "no texts at once": {"batch": 0},
    "no dimensions": {"dimensions": 0},
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_cannot_be_used_is_refused_when_it_is_made(refused: str) -> None:
    """Contract 70."""
    options: dict[str, Any] = {"base_url": URL, "model": "m", "api_key": KEY, **REFUSED[refused]}
    with pytest.raises(RegistrationError) as raised:
        OpenAIEmbeddings(**options)
    assert KEY not in str(raised.value)


def test_the_environments_key_goes_to_openai_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 70."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert OpenAIEmbeddings(model="m")._credentials.secret
    assert not OpenAIEmbeddings("http://elsewhere.example/v1", model="m")._credentials.secret
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(RegistrationError, match="OPENAI_API_KEY"):
        OpenAIEmbeddings(model="m")


async def test_it_serves_the_semantic_scorer_over_a_real_socket() -> None:
    """Contract 70: one connection for the tools and the query; closed at the end."""

    async def serve(reader: Any, writer: Any) -> None:
        request = json.loads(server.requests[-1].partition(b"\r\n\r\n")[2])
        data = [
            {"index": place, "embedding": [*vector_of(text)[1:2], 0.1]} for place, text in enumerate(request["input"])
        ]
        writer.write(whole(json.dumps({"data": data}).encode()))
        await writer.drain()

    told = {"forecast": "The weather.", "refund": "Pay back."}
    tools = [ToolDefinition(name, description, {"type": "object"}) for name, description in told.items()]
    async with served(serve) as server, OpenAIEmbeddings(server.url, model="m", api_key=KEY) as made:
        found = await pick_tools("rain?", tools, scorer=SemanticScorer(made))
        assert [one.tool.name for one in found] == ["forecast"]
        assert server.connections == 1
        assert len(server.requests) == 2
    with pytest.raises(ModelError, match="closed"):
        await made.embed(["a"])


async def test_a_server_that_is_gone_leaves_words_to_decide() -> None:
    """Contract 70, C32."""

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    tools = [ToolDefinition("forecast", "The weather.", {"type": "object"})]
    found = await pick_tools("weather", tools, scorer=SemanticScorer(make(gone)), debug=True)
    assert [one.tool.name for one in found] == ["forecast"]
    assert found[0].provenance is not None
    assert found[0].provenance.details == {"fallback": "bm25f", "because": "the embedder failed: ModelError"}
