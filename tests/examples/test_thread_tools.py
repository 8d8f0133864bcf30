"""The example of tools by thread runs, and prints what it is there to show."""

from __future__ import annotations

import pytest

from examples import thread_tools


async def test_each_thread_sees_and_runs_its_own_tools(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 72, 73, 78, C28."""
    await thread_tools.main()
    printed = capsys.readouterr().out
    shop, sums, unheard_of = printed.split("told of ")[1:]
    assert [line[2:12] for line in shop.splitlines()[1:4]] == ["c1 success", "c2 success", "c3 error: "]
    assert "c1 success: {'result': 12}" in sums
    assert sums.count("This tool is not enabled.") == 2
    assert unheard_of.count("This tool is not enabled.") == 3
    assert printed.endswith("9 calls, 3 of them for the shop\n")
