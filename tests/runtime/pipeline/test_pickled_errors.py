"""Errors cross a process boundary whole: a pool of processes, a result backend of Celery, a copy."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from callgate import Invalid, RetryLater, errors
from callgate.errors import CallgateError, ModelError, SchemaRefused, StoreError, StreamCut, Suspended
from callgate.tools.calls import Issue

MADE: dict[type[CallgateError], Callable[[], CallgateError]] = {
    RetryLater: lambda: RetryLater(5_000, "busy", code="threads_busy", no_effect=True),
    SchemaRefused: lambda: SchemaRefused("reference", "the reference leads nowhere", "/properties/n"),
    StoreError: lambda: StoreError("it failed", sqlstate="40001"),
    ModelError: lambda: ModelError("it failed", provider="openai_chat", retry_after=3_000),
    StreamCut: lambda: StreamCut("it broke off", reply={"text": "Hel"}, provider="anthropic"),
    Suspended: lambda: Suspended({"handle": "h"}),
}
"""Errors that are made with more than a text."""
KINDS = sorted(
    (one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, CallgateError)),
    key=lambda one: one.__name__,
)
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_after_it_was_pickled_or_copied(kind: type[CallgateError], way: str) -> None:
    error = MADE.get(kind, lambda: kind("for developers"))()
    error.public, error.correlation_id = "for a model", "r1"
    if isinstance(error, Invalid):
        error.issues = (Issue("/n", "type", "an integer"),)
    error.__notes__ = ["a note"]
    made = WAYS[way](error)
    assert type(made) is kind
    assert (made.args, str(made), made.code, vars(made)) == (error.args, str(error), error.code, vars(error))


def test_the_kinds_are_all_errors() -> None:
    """The control: the errors come from the module, so that a new one is tested, too."""
    assert len(KINDS) > 25
    assert set(MADE) <= set(KINDS)
