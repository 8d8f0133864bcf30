"""The figures of tool selection are worked out right, and the file has the form that is promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import selection


def test_recall_and_ndcg_count_what_they_should() -> None:
    """Issue 6: the measures, by hand."""
    assert selection.recall(["a", "x", "b"], ["a", "b"], 1) == 0.5
    assert selection.recall(["a", "x", "b"], ["a", "b"], 3) == 1.0
    assert selection.ndcg(["a", "b"], ["a", "b"], 5) == 1.0
    assert selection.ndcg(["x", "a"], ["a"], 5) == pytest.approx(0.6309, abs=1e-4)
    assert selection.auroc([0.9, 0.5], [0.5, 0.1]) == 0.875


def test_the_interval_of_a_difference_holds_it() -> None:
    """Issue 6: paired bootstrap."""
    low, high = selection.bootstrap([1.0] * 60 + [0.0] * 40, [0.0] * 100, rounds=200)
    assert low < 0.6 < high


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def test_absent_data_is_said_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 6: skipped loudly."""
    assert selection.main(["--data", str(tmp_path / "none"), "--json", str(tmp_path / "out.json")]) == 0
    assert "SKIPPED: NO SAMPLE DATA" in capsys.readouterr().out


def test_the_file_has_the_promised_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 6: ``benchmarks/out/selection.json``."""
    pytest.importorskip("bm25s")
    catalog: list[dict[str, object]] = [{"name": f"t{n}", "description": f"word{n} thing"} for n in range(12)]
    write(tmp_path / "metatool" / "catalog.jsonl", catalog)
    write(tmp_path / "metatool" / "queries.jsonl", [{"id": "q", "query": "word3", "gold": ["t3"]}] * 4)
    write(tmp_path / "bfcl_irrelevance" / "relevant.jsonl", [{"query": "word3", "gold": ["t3"], "offered": catalog}])
    write(tmp_path / "bfcl_irrelevance" / "irrelevant.jsonl", [{"query": "zzz", "gold": [], "offered": catalog}])
    out = tmp_path / "out" / "selection.json"
    selection.main(["--data", str(tmp_path), "--json", str(out), "--rounds", "1"])
    found = json.loads(out.read_text("utf-8"))
    keys = {"recall@1", "recall@3", "recall@5", "recall@10", "ndcg@5", "us_per_query"}
    assert found["default"]["metatool"].keys() == found["bm25s"]["metatool"].keys() == keys
    assert found["default"]["metatool"]["recall@1"] == 1.0
    assert found["calibration"] == {"gold_kept": 1.0, "irrelevant_offered": 0.0, "auroc": 1.0}
    assert found["semantic"] == {}
    assert "SKIPPED: no livemcp" in capsys.readouterr().err
