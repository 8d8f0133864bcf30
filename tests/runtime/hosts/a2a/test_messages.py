"""Client messages: parsing of texts and data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.runtime.hosts.a2a.messages import MAX_ID, MAX_PARTS, BadMessage, parse
from callgate.runtime.suspensions.pending import Answer

CALL = {"type": "tool_call", "name": "add", "arguments": {"a": 1}}
RESULT = {"type": "tool_result", "id": "c1", "result": None}

BAD: list[Any] = [
    [],
    [None],
    ["text"],
    [{}],
    [{"type": "unknown"}],
    [{"type": ["tool_call"]}],
    [{"type": "tools", "tools": []}],
    [{"type": "tools", "tools": {}}],
    [{"type": "tools", "tools": ["search"]}],
    [{"type": "tools", "tools": [{}]}, {"type": "tools", "tools": [{}]}],
    [{"type": "tool_call"}],
    [CALL | {"name": ""}],
    [CALL | {"name": 1}],
    [CALL | {"arguments": [1]}],
    [CALL | {"arguments": 1}],
    [CALL | {"arguments": None}],
    [CALL | {"id": ""}],
    [CALL | {"id": 1}],
    [CALL | {"id": "x" * (MAX_ID + 1)}],
    [CALL | {"idempotency_key": 1}],
    [CALL, CALL],
    [{"type": "tool_result", "id": "c1"}],
    [RESULT | {"error": "no"}],
    [{"type": "tool_result", "id": "c1", "error": 5}],
    [{"type": "tool_result", "result": 1}],
    [RESULT, RESULT],
    [RESULT, {"type": "answer", "id": "c1", "value": 1}],
    [{"type": "answer", "id": "c1"}],
    [{"type": "decision", "id": "c1"}],
    [{"type": "decision", "id": "c1", "decision": "yes"}],
    [{"type": "decision", "id": "c1", "decision": True}],
    [{"type": "decision", "id": "c1", "decision": "deny", "reason": 1}],
    [{"type": "decision", "id": "c1", "decision": "deny"}, {"type": "decision", "id": "c1", "decision": "approve"}],
    [CALL, RESULT],
    [RESULT, {"type": "continue"}],
    [{"type": "decision", "id": "c1", "decision": "deny"}, RESULT],
    [{"type": "tools", "tools": [{}]}, RESULT],
    [RESULT | {"id": str(number)} for number in range(MAX_PARTS + 1)],
]


@pytest.mark.parametrize("data", BAD, ids=lambda data: str(data)[:60])
def test_what_is_not_clear_is_refused_and_not_quoted(data: Any) -> None:
    """Contract 37, B6."""
    with pytest.raises(BadMessage) as refused:
        parse([], data)
    assert "c1" not in str(refused.value)


def test_a_message_without_words_is_empty() -> None:
    """Contract 37."""
    with pytest.raises(BadMessage):
        parse(["", " \n"], [])


def test_a_call_has_the_id_that_it_was_given_or_a_new_one() -> None:
    """Contract 40, C10b."""
    given_id, made = parse([], [CALL | {"id": "c1"}]).call, parse([], [CALL]).call
    assert given_id is not None
    assert made is not None
    assert (given_id.id, given_id.synthetic_id, given_id.arguments) == ("c1", False, {"a": 1})
    assert made.synthetic_id
    assert made.id != parse([], [CALL]).call.id  # type: ignore[union-attr]


def test_results_answers_and_decisions_go_by_the_id_of_their_call() -> None:
    """Contract 40."""
    asked = parse(
        [], [RESULT, {"type": "tool_result", "id": "c2", "error": "no"}, {"type": "answer", "id": "q", "value": 1}]
    )
    assert asked.answers == {"c1": Answer(None), "c2": Answer(None, "no"), "q": Answer(1)}
    decided = parse([], [{"type": "decision", "id": "c1", "decision": "deny", "reason": "too much"}]).decisions["c1"]
    assert (decided.approve, decided.reason) == (False, "too much")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "name"]), inner),
    max_leaves=6,
)
KINDS = st.sampled_from(["tools", "tool_call", "tool_result", "answer", "decision", "continue", "x"])


@given(
    st.lists(st.text(max_size=3), max_size=2),
    st.lists(
        JSON
        | st.builds(
            lambda k, v: {"type": k, **v},
            KINDS,
            st.dictionaries(
                st.sampled_from(["id", "name", "tools", "result", "error", "value", "decision", "arguments"]), JSON
            ),
        ),
        max_size=3,
    ),
)
def test_any_message_is_read_or_refused(texts: list[str], data: list[Any]) -> None:
    """Contract 37, B6."""
    try:
        asked = parse(texts, data)
    except BadMessage:
        return
    assert asked.starts != asked.continues or (asked.tools and not asked.text)
