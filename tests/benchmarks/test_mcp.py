"""The benchmark of MCP: its file has the promised keys. Nothing here looks at how long anything takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the benchmark of MCP needs the extra mcp")

from benchmarks import mcp
from benchmarks.timing import Effort


def test_a_tiny_run_yields_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mcp, "TOOLS", 20)
    monkeypatch.setattr(mcp, "Effort", lambda **_: Effort(rounds=1, batch_us=1.0))
    path = tmp_path / "deep" / "mcp.json"
    mcp.main(["--quick", "--json", str(path)])
    written = json.loads(path.read_text("utf-8"))
    promised = {row.key for row in mcp.ROWS}
    assert promised - {"eight_hooks_x_fastmcp"} <= set(written), "fastmcp has an environment of its own"
    assert all(value > 0 for value in written.values())
    assert "1,000 tools listed again" in capsys.readouterr().out
