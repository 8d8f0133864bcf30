"""A benchmark thaws the heap as it ends; in a test run that holds all that the other tests import."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap stays frozen: no test looks at how long anything takes, and each would wait for long collections."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
