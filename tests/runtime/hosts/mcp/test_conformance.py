"""The server, the client and the baseline of the conformance suite, which ``make test-mcp`` runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the conformance server needs the extra mcp")

from scripts.conformance import CLIENT_SETS, failures, known_failures
from tests.runtime.hosts.mcp.conformance import conformance_server
from tests.runtime.hosts.mcp.world import client_of

BASELINE = Path(__file__).with_name("conformance.yaml")
LINE = re.compile(r"  - ([a-z0-9/-]+)  # (.{9,})")


def unexplained(text: str) -> list[str]:
    """The lines of a baseline that name no scenario with a reason, or name it again."""
    lines = [one for one in text.splitlines() if one and not one.startswith(("#", "server:", "client:"))]
    known: set[str] = set()
    wrong: list[str] = []
    for line in lines:
        match = LINE.fullmatch(line)
        if match is None or match[1] in known:
            wrong.append(line)
        else:
            known.add(match[1])
    return wrong


def test_each_line_of_the_baseline_says_why() -> None:
    text = BASELINE.read_text()
    assert unexplained(text) == []
    assert unexplained(text + "  - tools-list\n") == ["  - tools-list"], "the control: a line without a reason"


def test_a_client_that_does_nothing_fails() -> None:
    """The suite says ✓ for scenarios in which no check has run. A baseline line is wrong only if all sets pass it."""
    did = dict.fromkeys(CLIENT_SETS, "✓ initialize: 1 passed, 0 failed\n✓ auth/dpop: 3 passed, 0 failed")
    assert failures(did, set()) == []
    assert failures(did, {"auth/dpop"}) == ["auth/dpop passes"]
    assert failures(did | {"2025-11-25": "✗ auth/dpop: 2 passed, 0 failed, 1 warnings"}, {"auth/dpop"}) == []
    assert failures({"one": "✓ initialize: 0 passed, 0 failed"}, set()) == [
        "one, initialize: 0 checks passed, 0 failed, 0 warned"
    ]
    assert failures({"one": "Error"}, set()) == ["one: no scenario has run"]
    assert "prompts-list" in known_failures("server")
    assert known_failures("client") == set()


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_the_conformance_server_has_its_tools(era: str) -> None:
    async with client_of(conformance_server(), "memory", era) as client:
        names = {one.name for one in (await client.list_tools()).tools}
        assert {"test_simple_text", "test_elicitation", "slow_compute", "json_schema_2020_12_tool"} <= names
        assert (await client.call_tool("test_simple_text", {})).is_error is not True
