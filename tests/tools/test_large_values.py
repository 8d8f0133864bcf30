"""What an output costs is about what encoding it costs: a text of 1 MB must not stop the event loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callgate.hooks.stock.records import audit_chain
from callgate.providers.content_json import may_hold
from callgate.tools.values import PLAIN, canonical, canonical_fast
from tests.harness.cpu import cpu_seconds

MB = 1_000_000
TEXTS = {
    "letters": "y",
    "words": "hello world, order 12 ",
    "digits": "12345 ",
    "numbers": "at 1.5, or 2e5, ",
    "numbers in quotes": '"a": 1.5, ',
    "backslashes": "\\1.5\\",
    "controls": "\x00\n1.5 ",
    "other scripts": "1.5 日本 ",
}
SHAPES: dict[str, Callable[[str], Any]] = {
    "a text": lambda text: text,
    "a member": lambda text: {"output": text},
    "an element": lambda text: [1, text, None],
}
BOUND = 40.0
"""Times the encoding. A search through a text took 150 to 300 times as long."""


def cpu(work: Callable[[], object]) -> float:
    """The least CPU time of this thread in five runs: what else runs on the machine counts little."""
    return cpu_seconds(work, 0.0)


def times_the_encoding(value: object, work: Callable[[], object]) -> float:
    return cpu(work) / cpu(lambda: orjson.dumps(value, option=PLAIN))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TEXTS)
def test_a_large_text_costs_a_few_times_its_encoding(kind: str, shape: str) -> None:
    """Issue 34, 5: 200 outputs of 1 MB stopped the loop for 5 s of CPU."""
    value = SHAPES[shape](TEXTS[kind] * (MB // len(TEXTS[kind])))
    assert times_the_encoding(value, lambda: canonical_fast(value)) < BOUND


def test_the_bound_finds_a_search_through_the_text() -> None:
    """The control: the former way."""
    former = re.compile(rb"(?:^|[:,\[])-?[0-9]+[.eE]")
    value = {"output": "y" * MB}
    assert times_the_encoding(value, lambda: former.search(orjson.dumps(value))) > BOUND


def test_a_text_is_not_searched_for_content() -> None:
    """A JSON text holds no block, whatever it says."""
    assert not may_hold(orjson.dumps('{"mimeType":"image/png","blob":""}'))
    assert may_hold(orjson.dumps({"mimeType": "image/png"}))


PIECES = st.text(st.sampled_from(['"', "\\", "1", ".", "e", ":", ",", "[", "\n", "\x00", "ü"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | PIECES,
    lambda inner: st.lists(inner) | st.dictionaries(PIECES, inner),
    max_leaves=10,
)


@given(JSON)
@example('"1.5')
@example(["\\", 1.0])
@example({"\\": '\\"1.0', "n": 1e300})
@settings(max_examples=300)
def test_a_float_is_found_where_it_is_and_not_inside_of_texts(value: Any) -> None:
    """The fast encoder writes 1.0 where the canonical form has 1."""
    assert canonical_fast(value) == canonical(value)
    assert audit_chain._own_row_hash({"input": {"n": value}}, "s", 1, "") == audit_chain.row_hash(
        {"input": {"n": value}}, "s", 1, ""
    )
