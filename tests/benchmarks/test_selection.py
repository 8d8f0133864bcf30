"""The figures of tool selection are worked out right, and the file has the form that is promised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import selection, selection_sets, selection_speed, semantic


def test_recall_and_ndcg_count_what_they_should() -> None:
    """Issue 6: the measures, by hand."""
    assert selection_sets.recall(["a", "x", "b"], ["a", "b"], 1) == 0.5
    assert selection_sets.recall(["a", "x", "b"], ["a", "b"], 3) == 1.0
    assert selection_sets.ndcg(["a", "b"], ["a", "b"], 5) == 1.0
    assert selection_sets.ndcg(["x", "a"], ["a"], 5) == pytest.approx(0.6309, abs=1e-4)
    assert selection_sets.auroc([0.9, 0.5], [0.5, 0.1]) == 0.875


def test_the_interval_of_a_difference_holds_it() -> None:
    """Issue 6: paired bootstrap."""
    low, high = selection_sets.bootstrap([1.0] * 60 + [0.0] * 40, [0.0] * 100, rounds=200)
    assert low < 0.6 < high


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize("folder", ["none", "."], ids=["absent", "empty"])
def test_absent_data_is_said_loudly(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 6: skipped loudly."""
    assert selection.main(["--data", str(tmp_path / folder), "--json", str(tmp_path / "out.json")]) == 0
    assert "SKIPPED: NO SAMPLE DATA" in capsys.readouterr().out


MEASURES = {"recall@1", "recall@3", "recall@5", "recall@10", "ndcg@5", "us_per_query"}


def sample(folder: Path) -> None:
    catalog: list[dict[str, object]] = [{"name": f"t{n}", "description": f"word{n} thing"} for n in range(12)]
    write(folder / "metatool" / "catalog.jsonl", catalog)
    write(folder / "metatool" / "queries.jsonl", [{"id": "q", "query": "word3", "gold": ["t3"]}] * 4)
    write(folder / "bfcl_irrelevance" / "relevant.jsonl", [{"query": "word3", "gold": ["t3"], "offered": catalog}])
    write(folder / "bfcl_irrelevance" / "irrelevant.jsonl", [{"query": "zzz", "gold": [], "offered": catalog}])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here looks at how long anything takes."""
    monkeypatch.setattr(selection_speed, "LARGE", 40)


@pytest.mark.usefixtures("small")
def test_the_file_has_the_promised_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 6: ``benchmarks/out/selection.json``."""
    pytest.importorskip("bm25s")
    sample(tmp_path)
    out = tmp_path / "out" / "selection.json"
    selection.main(["--data", str(tmp_path), "--json", str(out), "--rounds", "1"])
    found = json.loads(out.read_text("utf-8"))
    assert found.keys() == {"default", "semantic", "bm25s", "calibration", "more"}
    assert found["default"]["metatool"].keys() == found["bm25s"]["metatool"].keys() == MEASURES
    assert found["default"]["metatool"]["recall@1"] == 1.0
    assert found["calibration"] == {"gold_kept": 1.0, "irrelevant_offered": 0.0, "auroc": 1.0}
    assert found["semantic"] == found["more"]["semantic"] == {}
    assert {"index_mb_at_40", "gate_pick_us_at_40", "x_bm25s_at_40"} <= found["more"]["default"]["speed"].keys()
    assert "SKIPPED: no livemcp" in capsys.readouterr().err


class Letters:
    """Stands in for the model: how often each letter occurs."""

    name, version, dimension = "letters", "1", 26

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[float(text.count(chr(97 + n))) for n in range(26)] for text in texts]


BY = {"default": ("default", "bm25s", "calibration"), "semantic": ("semantic",)}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "order", [("default", "semantic"), ("semantic", "default")], ids=["words first", "meaning first"]
)
def test_each_benchmark_keeps_what_the_other_wrote(
    order: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 6: ``calibration`` is that of the default scorer; that of meaning has a key of its own."""
    pytest.importorskip("bm25s")
    sample(tmp_path)
    monkeypatch.setattr(semantic, "MiniLM", Letters)
    out = tmp_path / "selection.json"
    options = ["--data", str(tmp_path), "--json", str(out)]
    written = []
    for writer in order:
        semantic.main(options) if writer == "semantic" else selection.main([*options, "--rounds", "1"])
        written.append(json.loads(out.read_text("utf-8")))
    first, both = written
    for name in BY[order[0]]:
        assert both[name] == first[name] != {}
    assert both["more"][order[0]] == first["more"][order[0]] != {}
    assert both["semantic"]["metatool"].keys() == both["default"]["metatool"].keys() == MEASURES
    assert both["calibration"] == {"gold_kept": 1.0, "irrelevant_offered": 0.0, "auroc": 1.0}
    assert both["more"]["semantic"]["calibration"].keys() == both["calibration"].keys()


def test_a_broken_file_is_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 6: minutes of measuring are not lost to it."""
    out = tmp_path / "selection.json"
    out.write_text('{"default": ', "utf-8")
    assert selection_sets.finish(out, "semantic", {"semantic": {"a": {}}}, {}, ["too slow"], strict=True) == 1
    assert json.loads(out.read_text("utf-8"))["semantic"] == {"a": {}}
    assert "MISSED: too slow" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["selection.json"]


def test_what_is_too_slow_is_told() -> None:
    """Issue 6: the bounds, and what is only reported."""
    slow = {"us_at_750": 1_001, "us_at_8000": 3_001, "build_s_at_8000": 1.1, "x_bm25s_at_8000": 2.1}
    slow |= {"times_faster_than_rank_bm25_at_8000": 2.9}
    quick = {"us_at_750": 999, "us_at_8000": 2_999, "build_s_at_8000": 0.9, "x_bm25s_at_8000": 1.9}
    quick |= {"times_faster_than_rank_bm25_at_8000": 3.1, "index_mb_at_8000": 1e9, "gate_pick_us_at_8000": 1e9}
    rows: dict[str, dict[str, float]] = {"default": {}, "bm25s": {}, "calibration": {}}
    assert len(selection.missed(rows, {"speed": slow})) == len(slow)
    assert selection.missed(rows, {"speed": quick}) == []
