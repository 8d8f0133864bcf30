"""Output as in a pipe."""

from __future__ import annotations

import pytest

from tests.examples.running import as_in_a_pipe


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    as_in_a_pipe(monkeypatch)
