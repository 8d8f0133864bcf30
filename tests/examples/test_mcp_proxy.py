"""The example of a proxy: two MCP servers of others behind one gate, tried as a new user would."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from tests.examples.running import ROOT

SERVERS = ROOT / ".venv" / "mcp-servers" / "bin"


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


@pytest.mark.skipif(not (SERVERS / "mcp-server-git").exists(), reason="NO MCP SERVERS: make example-mcp installs them")
def test_published_servers_are_governed_as_one() -> None:
    """The quota holds, a commit waits for a lead and is made once, and the audit names the user."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.mcp_proxy", str(SERVERS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = done.stdout
    assert (
        "ann sees: convert_time, get_current_time, git_add, git_commit, git_diff_staged, git_log, git_status" in lines
    )
    assert "The call has not run" in lines
    assert "Changes committed successfully" in lines
    rows = [line.split()[3:6:2] for line in lines.splitlines() if line.startswith("│")]
    assert rows == [
        ["get_current_time", "success"],
        ["get_current_time", "success"],
        ["get_current_time", "retry_later"],
        ["git_add", "success"],
        ["git_commit", "suspended"],
        ["git_commit", "success"],
        ["git_log", "success"],
    ]
    assert "Traceback" not in done.stderr
