"""The methods of ``Gate`` state the signature of each verb; the other faces have the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_overloads, get_type_hints

import pytest

from callgate import Bound, Gate
from callgate.runtime.gate.sync import SyncGate
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.options.jobs import SubmitOptions

VERBS = ("invoke", "call", "call_many", "stream", "submit")
OTHERS = ("resume", "job", "definitions", "hydrate", "hydrate_all")
KNOWN_USER = {"user", "approver"}
"""Parameters that a bound gate fills in."""


def parameters(function: Callable[..., Any], without: set[str] = frozenset()) -> dict[str, tuple[Any, Any, Any]]:  # type: ignore[assignment]
    """The kind, the default and the annotation of each parameter."""
    return {
        name: (one.kind, one.default, one.annotation)
        for name, one in inspect.signature(function).parameters.items()
        if name not in without
    }


def differences(face: type[Any], name: str, without: set[str]) -> list[str]:
    """The parameters of a verb that are not those of the gate's."""
    stated, found = parameters(getattr(Gate, name), without), parameters(getattr(face, name))
    return [
        f"{name}({one}): {found.get(one)} instead of {stated.get(one)}"
        for one in {**stated, **found}
        if stated.get(one) != found.get(one)
    ] + ([f"{name}: order of {list(found)}"] if list(found) != list(stated) else [])


@pytest.mark.parametrize("name", [*VERBS, *OTHERS])
@pytest.mark.parametrize(("face", "without"), [(Bound, KNOWN_USER), (SyncGate, set[str]())], ids=["bound", "sync"])
def test_a_face_has_the_parameters_that_the_gate_states(face: type[Any], without: set[str], name: str) -> None:
    assert differences(face, name, without) == []


def test_a_difference_is_found() -> None:
    """The control."""

    class Face:
        def call(self, tool: Any, *, trace: bool = True, arguments: Any = None, **options: Any) -> None:
            """Another default, another kind, another order, a missing user."""

    found = differences(Face, "call", set())
    assert {line.split(":")[0] for line in found} == {
        *("call(tool)", "call(arguments)", "call(user)", "call(trace)", "call(options)", "call"),
    }


@pytest.mark.parametrize("name", VERBS)
def test_verbs_agree_on_their_common_parameters(name: str) -> None:
    stated, found = parameters(Gate.call), parameters(getattr(Gate, name))
    for one in found.keys() & stated.keys() - {"options"}:
        assert found[one][:2] == stated[one][:2], one
    assert found["user"] == stated["user"]


def test_overloads_differ_from_the_gates_by_the_user_only() -> None:
    gate, bound = get_overloads(Gate.invoke), get_overloads(Bound.invoke)
    assert len(gate) == len(bound) == 3
    for one, other in zip(gate, bound, strict=True):
        assert parameters(one, KNOWN_USER) == parameters(other)
    for one in get_overloads(SyncGate.invoke):
        assert [row[:2] for row in parameters(one).values()] == [row[:2] for row in parameters(gate[0]).values()]


def test_the_options_of_submit_are_the_keywords_of_the_queue() -> None:
    taken = {
        name
        for method in (JobQueue.submit, JobQueue.prepare)
        for name, one in inspect.signature(method).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }
    assert taken == set(get_type_hints(SubmitOptions))
