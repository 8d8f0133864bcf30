"""Stores of other packages: found by the scheme of their address, loaded on first use."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from callgate.errors import StoreError
from callgate.stores import MemoryStore, store_at

ADDRESS = "etcd://user:secret@host/db"


def of_package(address: str, now: Any) -> MemoryStore:
    assert address == ADDRESS
    return MemoryStore(now)


no_function = 7


def declare(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [metadata.EntryPoint("etcd", value, "callgate.stores") for value in values]
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: points if group == "callgate.stores" else [])


def test_the_scheme_names_the_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, f"{__name__}:of_package")
    assert isinstance(store_at(ADDRESS), MemoryStore)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"no store 'etcd'; known: memory://, .*entry point in the group 'callgate\.stores'; install that package"),
        (
            [f"{__name__}:of_package", "another:make"],
            rf"the store 'etcd' is registered by another:make and {__name__}:of_package; uninstall all but one",
        ),
        (
            ["no_such_package_here:make"],
            "cannot be loaded from 'no_such_package_here:make': ModuleNotFoundError.*; upgrade",
        ),
        ([f"{__name__}:no_function"], r"it is not a function \(address, now\) -> Store; upgrade or repair"),
    ],
)
def test_a_package_that_is_missing_or_broken_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, values: list[str], message: str
) -> None:
    declare(monkeypatch, *values)
    with pytest.raises(StoreError, match=message) as caught:
        store_at(ADDRESS)
    assert "secret" not in str(caught.value)
