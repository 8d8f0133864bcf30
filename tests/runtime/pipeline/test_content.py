"""Content through a gate: its limits, what records keep of it, what hooks mask in it, and who gets it whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import callgate
from callgate import Effects, Gate, Outcome, Provide, ToolCall, ToolContext, tool
from callgate.content import File, Image, Omitted, Text, from_json
from callgate.hooks import Audit, Cache, OutputPolicy, Redact
from callgate.hooks.stock.privacy import redact as redact_module
from callgate.hooks.stock.privacy.secrets import Secrets
from callgate.jobs import EmbeddedJobs
from callgate.providers import content_json
from callgate.providers.blobs import FolderBlobs
from callgate.providers.content_json import encoded
from callgate.providers.scrubbing import Scrubber
from callgate.providers.spellings import spellings
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.pipeline.result_json import result_as_json, result_from_json
from callgate.runtime.pipeline.streams import Result
from callgate.tools.client.client import ClientToolProvider
from callgate.tools.limits import Limits
from tests.harness.gate_options import gate_options
from tests.tools.content.making import BLOCKS, PNG, blocks
from tests.world import ANN

KEY = "a signing key for tests, long enough"
UNGUARDED: dict[str, Any] = {"allow_unguarded": True, "effects": Effects(durable=False)}
LIMITS = Limits(max_output_bytes=2_000, max_block_bytes=5_000, max_content_bytes=12_000)
PICTURE = Image(PNG, "image/png")
DIGEST = {"type": "omitted", "kind": "image", "mimeType": "image/png", "size": len(PNG)}
DIGEST["sha256"] = sha256(PNG).hexdigest()


class Report(BaseModel):
    title: str
    chart: Image


def image(size: int) -> Image:
    return Image(bytes(size), "image/png")


async def called(function: Any, hooks: Any = (), *, times: int = 1, **options: Any) -> Any:
    made = function if hasattr(function, "definition") else tool(effect="read")(function)
    async with Gate([made], hooks, **UNGUARDED, **gate_options(**options)) as gate:
        results = [await gate.call(made.definition.name, {}, user=ANN) for _ in range(times)]
    return results[-1]


# ---------------------------------------------------------------------- forms


async def as_block() -> Image:
    """Draw."""
    return PICTURE


async def in_list() -> list[str | Image]:
    """Draw."""
    return ["A cat:", PICTURE]


async def as_bytes() -> bytes:
    """Draw."""
    return PNG


async def in_model() -> Report:
    """Draw."""
    return Report(title="Cats", chart=PICTURE)


async def untyped():  # type: ignore[no-untyped-def]
    """Draw."""
    return {"cats": [PICTURE], "report": Report(title="Cats", chart=PICTURE)}


async def streamed() -> AsyncIterator[Image]:
    """Draw."""
    yield PICTURE


async def iterated() -> Iterator[Image]:
    """Draw."""
    return iter([PICTURE])


def in_thread() -> Image:
    """Draw."""
    return PICTURE


JSON = PICTURE.to_json()
AS_FILE = {"type": "file", "data": encoded(PNG), "mimeType": "application/octet-stream"}
FORMS: list[tuple[Any, Any]] = [
    (as_block, JSON),
    (in_list, ["A cat:", JSON]),
    (as_bytes, AS_FILE),
    (in_model, {"title": "Cats", "chart": JSON}),
    (untyped, {"cats": [JSON], "report": {"title": "Cats", "chart": JSON}}),
    (streamed, [JSON]),
    (iterated, [JSON]),
    (in_thread, JSON),
]


@pytest.mark.parametrize(("function", "output"), FORMS, ids=lambda one: getattr(one, "__name__", ""))
async def test_every_form_of_a_return_is_content_in_json(function: Any, output: Any) -> None:
    assert (await called(function)).output == output


@pytest.mark.parametrize("function", [as_block, in_list, as_bytes, in_model])
async def test_a_tool_that_is_called_as_a_function_returns_what_its_annotation_says(function: Any) -> None:
    assert await tool(effect="read")(function)() == await function()


async def test_another_type_than_the_declared_one_is_refused() -> None:
    async def draws() -> Image:
        """Draw."""
        return "a path"  # type: ignore[return-value]

    result = await called(draws)
    assert result.error.code == "invalid_output"


async def test_bytes_of_an_undeclared_output_are_refused_with_the_line_to_write() -> None:
    @tool(effect="read")
    async def draws() -> Any:
        """Draw."""
        return {"scan": PNG}

    with pytest.raises(Exception, match=r"/scan: must be .* found bytes; return File\(data, mime_type\)"):
        async with Gate([draws]) as gate:
            await gate.invoke("draws", {}, user=ANN)


# ---------------------------------------------------------------------- limits

ONE, ALL = LIMITS.max_block_bytes, LIMITS.max_content_bytes
SIZES = [([ONE], None), ([ONE + 1], "max_block_bytes"), ([4_000] * 3, None), ([4_001] * 3, "max_content_bytes")]


def ways(sizes: list[int]) -> dict[str, Any]:
    """Functions that return images of these sizes, in each way."""

    async def listed() -> list[Image]:
        """Draw."""
        return [image(size) for size in sizes]

    async def loose() -> Any:
        """Draw."""
        return {"a": [image(size) for size in sizes]}

    async def plain() -> Any:
        """Draw."""
        return {"a": [image(size).to_json() for size in sizes]}

    async def streams() -> AsyncIterator[Image]:
        """Draw."""
        for size in sizes:
            yield image(size)

    async def iterates() -> Iterator[Image]:
        """Draw."""
        return map(image, sizes)

    async def iterates_plain() -> Any:
        """Draw."""
        return (image(size).to_json() for size in sizes)

    async def models() -> list[Report]:
        """Draw."""
        return [Report(title="", chart=image(size)) for size in sizes]

    made = (listed, loose, plain, streams, iterates, iterates_plain, models)
    return {one.__name__: one for one in made}


@pytest.mark.parametrize(("sizes", "broken"), SIZES, ids=str)
@pytest.mark.parametrize("way", ways([]))
async def test_content_has_limits_of_its_own(way: str, sizes: list[int], broken: str | None) -> None:
    """They are those of one block and of all; base64 does not count towards the limit of JSON."""
    made = tool(effect="read")(ways(sizes)[way])
    async with Gate([made], **gate_options(limits=LIMITS)) as gate:
        if broken is None:
            await gate.invoke(way, {}, user=ANN)
            return
        with pytest.raises(Exception, match=rf"ResourceLink.*limits=Limits\({broken}=\d+\)") as raised:
            await gate.invoke(way, {}, user=ANN)
    assert raised.value.code == "output_too_large"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("sizes", "broken"), SIZES, ids=str)
async def test_the_parts_that_one_attempt_sends_keep_the_limits_together(sizes: list[int], broken: str | None) -> None:
    @tool(effect="read")
    async def sends(ctx: ToolContext) -> None:
        """Draw."""
        for size in sizes:
            await ctx.send(image(size))

    async with Gate([sends], **gate_options(limits=LIMITS)) as gate:
        *parts, last = [event async for event in gate.stream("sends", {}, user=ANN)]
    assert len(parts) == len(sizes) - (broken is not None)
    assert isinstance(last, Result)
    assert (last.result.error and last.result.error.code) == (broken and "output_too_large")


async def test_the_line_to_write_admits_the_output() -> None:
    made = tool(effect="read", limits=Limits(max_block_bytes=6_000_000))(as_large)
    assert (await called(made)).outcome is Outcome.SUCCESS
    assert (await called(as_large)).error.code == "output_too_large"


async def as_large() -> Image:
    """Draw."""
    return image(6_000_000)


@pytest.mark.parametrize("way", ["plain", "listed"])
async def test_the_texts_beside_content_keep_the_limit_of_json(way: str) -> None:
    async def plain() -> Any:
        """Draw."""
        return ["x" * 2_001, PICTURE]

    async def listed() -> list[Text | Image]:
        """Draw."""
        return [Text("x" * 2_001), PICTURE]

    result = await called({"plain": plain, "listed": listed}[way], limits=LIMITS)
    assert result.error.code == "output_too_large"


async def test_without_the_measure_of_content_an_image_would_break_the_limit_of_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control."""
    listed = ways([ONE])["listed"]
    assert (await called(listed, limits=LIMITS)).outcome is Outcome.SUCCESS
    monkeypatch.setattr(content_json, "may_hold", lambda _: False)
    assert (await called(listed, limits=LIMITS)).error.code == "output_too_large"


async def test_an_endless_stream_of_images_is_closed_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    async def draws() -> AsyncIterator[Any]:
        """Draw."""
        nonlocal made
        while made < 200:
            made += 1
            yield image(4_000).to_json()

    assert (await called(draws, limits=LIMITS)).error.code == "output_too_large"
    assert made <= 4


# ---------------------------------------------------------------------- records


async def test_the_audit_has_the_digest_of_content_and_not_its_data() -> None:
    rows: list[Any] = []
    await called(in_list, [Audit(rows.append)])
    await called(in_model, [Audit(rows.append)])
    assert [row.body["content"] for row in rows if "content" in row.body] == [[DIGEST], [DIGEST]]
    assert encoded(PNG) not in json.dumps([row.body for row in rows])


async def test_a_repeat_of_an_effect_gets_the_digest_of_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger keeps no data; the repeat runs nothing."""
    ran: list[int] = []

    @tool(effect="keyed", key=("n",))
    async def prints(n: int) -> list[str | Image]:
        """Print."""
        ran.append(n)
        return ["Printed.", PICTURE]

    async def twice() -> Any:
        ran.clear()
        async with Gate([prints], **UNGUARDED) as gate:
            first, again = [await gate.call("prints", {"n": 1}, user=ANN) for _ in range(2)]
            kept = [one.receipt for _, one in await gate.store.effects.list(None)]
        assert (first.output, again.replayed, ran) == (["Printed.", JSON], True, [1])
        return again.output, b"".join(filter(None, kept))

    output, kept = await twice()
    assert output == ["Printed.", DIGEST]
    assert from_json(output[1]) == Omitted("image", "image/png", len(PNG), DIGEST["sha256"])  # type: ignore[arg-type]
    assert encoded(PNG).encode() not in kept
    monkeypatch.setattr(content_json, "digested", lambda value: value)  # the control
    output, kept = await twice()
    assert encoded(PNG).encode() in kept


# ---------------------------------------------------------------------- masking

CARD = "4111 1111 1111 1111"
SECRET = "hunter2-and-more"


@tool(effect="read")
async def leaks(key: Annotated[str, Provide["key"]]) -> list[Text | Image | File]:
    """Leak."""
    return [
        Text(f"{CARD} {SECRET}"),
        File(f"card;{CARD}\nkey;{SECRET}".encode(), "text/csv", name=f"{SECRET}.csv"),
        Image(PNG + SECRET.encode(), "image/png"),
    ]


def shown(output: Any) -> bytes:
    """What a reader of an output sees: its JSON, and the data of its blocks."""
    data = b"".join(content_json.decoded(block["data"]) for block in content_json.with_data(output))
    return json.dumps(output).encode() + data


async def test_detectors_mask_texts_and_files_of_text_and_leave_images_whole() -> None:
    async def draws() -> list[Text | File | Image]:
        """Draw."""
        return [Text(CARD), File(f"card;{CARD}".encode(), "text/csv"), Image(CARD.encode(), "image/png")]

    masked = (await called(draws, [Redact(detectors=["card", "api_key"])])).output
    text, file, picture = map(from_json, masked)
    assert (text, file) == (Text("***"), File(b"card;***", "text/csv"))
    assert picture == Image(CARD.encode(), "image/png")


@given(st.binary(min_size=50, max_size=3_000))
def test_a_detector_never_breaks_an_image(data: bytes) -> None:
    output = [Image(data, "image/png").to_json()]
    assert Redact(detectors=["card", "api_key", "jwt", "bearer"]).masked(output) == output


def test_base64_that_a_detector_reads_as_text_would_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    output = [Image(content_json.decoded("AKIA" + "IOSFODNN7EXAMPLE"), "image/png").to_json()]
    redact = Redact(detectors=["api_key"])
    assert redact.masked(output) == output
    monkeypatch.setattr(redact_module, "data_member", lambda _: None)
    assert redact.masked(output) != output


async def test_a_secret_is_in_no_part_of_content() -> None:
    secrets = Secrets({"key": lambda _: SECRET})
    hidden = await called(leaks, [secrets])
    assert SECRET.encode() not in shown(hidden.output)
    assert CARD.encode() in shown(hidden.output)
    picture = from_json(hidden.output[2])
    assert isinstance(picture, Image)
    assert picture.data == PNG + b"***"


async def test_a_secret_that_is_searched_in_base64_damages_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the mask stands within the base64, and the block is none any more."""
    whole = await called(leaks, [Secrets({"key": lambda _: SECRET})])
    assert None not in [content_json.block_in(one) for one in whole.output]
    monkeypatch.setattr(content_json, "data_member", lambda _: None)
    damaged = await called(leaks, [Secrets({"key": lambda _: SECRET})])
    assert None in [content_json.block_in(one) for one in damaged.output]


def test_a_short_secret_in_base64_is_chance_and_stays() -> None:
    scrubber = Scrubber()
    scrubber.add_secrets(spellings("iVBO"))  # the first characters of each PNG in base64
    assert scrubber.value([JSON]) == [JSON]


@pytest.mark.parametrize("way", ["truncate", "spill"])
async def test_an_output_policy_measures_texts_and_stores_content_whole(way: Any, tmp_path: Path) -> None:
    async def draws(text: str = "") -> Any:
        """Draw."""
        return [text, image(2_000)]

    blobs = FolderBlobs(tmp_path) if way == "spill" else None
    policy = OutputPolicy(1_000, on_too_large=way, spill=blobs, preview=0)
    made = tool(effect="read")(draws)
    async with Gate([made], [policy]) as gate:
        kept, cut = [await gate.call("draws", {"text": text}, user=ANN) for text in ("", "x" * 1_000)]
    assert kept.output == ["", image(2_000).to_json()]
    assert "data" not in json.dumps(cut.output)
    if blobs is not None:
        stored = await blobs.get("acme", cut.output["blob"])
        assert json.loads(stored or b"") == ["x" * 1_000, image(2_000).to_json()]


# ---------------------------------------------------------------------- who gets it whole


async def test_a_cache_gives_content_back() -> None:
    assert (await called(in_list, [Cache(ttl=60, shared=True)], times=2)).output == ["A cat:", JSON]


async def test_the_cache_in_memory_is_bounded_in_bytes() -> None:
    """The least recently used values go first; a value above the bound is not kept."""
    ran: list[int] = []

    @tool(effect="read")
    async def draws(size: int) -> Image:
        """Draw."""
        ran.append(size)
        return image(size)

    store = MemoryStore(cache_bytes=10_000)
    async with Gate([draws], [Cache(ttl=60, shared=True)], store=store, **UNGUARDED) as gate:
        for size in (3_000, 3_001, 3_000, 3_002, 3_000, 3_001, 9_000, 9_000, 3_000):
            await gate.call("draws", {"size": size}, user=ANN)
    assert ran == [3_000, 3_001, 3_002, 3_001, 9_000, 9_000, 3_000]


async def test_http_gives_content_as_json_with_base64() -> None:
    gate = Gate([tool(effect="read")(in_list)], **gate_options(durable=False))
    transport = httpx.ASGITransport(callgate.asgi(gate, authenticate=lambda _: ANN))
    async with gate, httpx.AsyncClient(transport=transport, base_url="http://gate.test") as client:
        response = await client.post("/tools/in_list", json={})
    assert (response.status_code, response.json()) == (200, ["A cat:", JSON])


@pytest.mark.parametrize(("size", "code"), [(5_000, None), (5_001, "output_too_large")])
async def test_tools_of_a_client_have_the_same_limits(size: int, code: str | None) -> None:
    sent = {"name": "draw", "description": "Draw.", "parameters": {"type": "object", "properties": {}}}

    async def client(call: Any, _: Any) -> dict[str, Any]:
        return {"success": True, "result": [image(size).to_json()]}

    provider = ClientToolProvider([sent], client, limits=LIMITS)
    alone = await provider.call(ToolCall(id="c", name="draw", arguments={}))
    async with Gate(provider.tools(), **UNGUARDED) as gate:
        behind = await gate.call("draw", {}, user=ANN)
    assert {alone.error and alone.error.code, behind.error and behind.error.code} == {code}


@pytest.mark.parametrize("name", BLOCKS)
async def test_a_job_carries_each_block(name: str, tmp_path: Path) -> None:
    block = BLOCKS[name]

    @tool(effect="read")
    async def draws() -> Any:
        """Draw."""
        return [block]

    jobs = EmbeddedJobs(1)
    async with Gate([draws], **gate_options(store=f"sqlite:///{tmp_path}/s.db", signing_keys=[KEY], jobs=jobs)) as gate:
        handle = await gate.submit("draws", {}, user=ANN)
        result = await handle.result()
    assert [from_json(one) for one in result.output] == [block]


@given(st.lists(blocks | st.text(max_size=5)) | blocks)
def test_content_survives_records_of_results_and_the_gate(output: Any) -> None:
    @tool(effect="read")
    async def gives() -> Any:
        """Give."""
        return output

    result = asyncio.run(called(gives))
    again = result_from_json(json.loads(json.dumps(result_as_json(result))))
    parts = again.output if isinstance(again.output, list) else [again.output]
    expected = output if isinstance(output, list) else [output]
    assert [one if isinstance(one, str) else from_json(one) for one in parts] == expected
