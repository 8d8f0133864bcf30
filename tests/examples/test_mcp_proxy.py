"""The example of a proxy: two MCP servers of others behind one gate, tried as a new user would."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from tests.examples.running import ROOT


def test_two_servers_are_governed_as_one() -> None:
    """Each user sees their tools, an order waits for a lead and runs once, and the audit names the users."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.mcp_proxy"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    lines = done.stdout
    assert "mounted warehouse: warehouse_stock, warehouse_order" in lines
    assert "ann sees: warehouse_order, warehouse_stock" in lines
    assert "lea sees: mailing_send_letter, warehouse_order, warehouse_stock" in lines
    assert "The call has not run" in lines
    assert '{"result":"100 x nut ordered"}' in lines
    assert [line.split()[1:6:2] for line in lines.splitlines() if line.startswith("│")] == [
        ["ann", "warehouse_stock", "success"],
        ["ann", "warehouse_order", "suspended"],
        ["ann", "warehouse_order", "success"],
        ["lea", "warehouse_stock", "success"],
        ["lea", "mailing_send_letter", "success"],
    ]
    assert "Traceback" not in done.stderr
