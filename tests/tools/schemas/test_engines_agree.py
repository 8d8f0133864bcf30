"""fastjsonschema and jsonschema-rs give the same verdict on every schema that the gate admits (design 6, I2)."""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import jsonschema_rs
import pytest

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines import gate, rust
from callgate.tools.schemas.engines.base import MAX_TEXT, AuthorSchema
from callgate.tools.schemas.engines.dialect import KEYWORDS
from callgate.tools.schemas.engines.document import read
from callgate.tools.schemas.engines.fast import FastEngine
from callgate.tools.schemas.engines.raw import OUTPUT_LIMITS
from callgate.tools.schemas.validation import Validator, compile_schema, explain, lint_schema, verify_schema
from tests.tools.schemas.test_engines_samples import DRAFT7, DRAFT2020, broken, mcp_schemas, random_schema, value_for

Disagreement = tuple[str, dict[str, Any], Any]


class Referee:
    """Checks values with what was compiled and with a plain jsonschema-rs, and counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.opened: list[Disagreement] = []
        self.closed: list[Disagreement] = []

    def examine(self, name: str, schema: dict[str, Any], rng: Random, values: int, variants: int) -> None:
        compiled = [
            compile_schema(schema),
            compile_schema(schema, trusted=False, limits=OUTPUT_LIMITS, formats="assert"),
        ]
        try:
            compiled.append(compile_schema(AuthorSchema(schema), engine=FastEngine()))
        except SchemaRefused as refused:
            assert refused.reason == "not_enforced"  # noqa: PT017 - either outcome is right
        plain = jsonschema_rs.validator_for(schema, offline=True, validate_formats=True)
        self.counts[compiled[-1].engine] += 1
        for _ in range(values):
            value = value_for(schema, schema, rng)
            for candidate in [value, *broken(value, schema, rng, variants)]:
                wanted = plain.is_valid(candidate)
                self.counts["values"] += 1
                self.counts["valid"] += wanted
                for validator in compiled:
                    self._compare(name, schema, candidate, validator, wanted)

    def _compare(self, name: str, schema: dict[str, Any], value: Any, validator: Validator, wanted: bool) -> None:
        got = accepts(validator, value)
        if got and not wanted:
            self.opened.append((f"{name} ({validator.engine})", schema, value))
        elif wanted and not got:
            self.closed.append((f"{name} ({validator.engine})", schema, value))
        issues = validator.issues(value)
        assert bool(issues) != wanted, f"{name}: verdict {wanted}, issues {issues} for {value!r}"
        if issues:
            assert explain(validator, value) == tuple(issues)
            assert sum(len(issue.pointer + issue.keyword + issue.expected) for issue in issues[:-1]) <= MAX_TEXT

    def report(self, title: str) -> None:
        print(f"\n{title}: {dict(self.counts)}, fail-open {len(self.opened)}, fail-closed {len(self.closed)}")
        assert self.opened == []
        assert self.closed == []


def accepts(validator: Validator, value: Any) -> bool:
    try:
        validator.check(value)
    except Exception:  # noqa: BLE001
        return False
    return True


def test_real_mcp_schemas_are_all_accepted_and_nine_in_ten_pass_the_gate(shared_data: Path) -> None:
    schemas = mcp_schemas(shared_data)
    admitted = 0
    for _name, role, schema in schemas:
        for trusted in (True, False):
            verify_schema(schema, "output" if role == "output" else "parameters", trusted=trusted)
        admitted += gate.refusal(read(schema)) is None
    print(f"\nthe gate admits {admitted} of {len(schemas)} real schemas: {admitted / len(schemas):.1%}")
    assert len(schemas) > 700
    assert admitted / len(schemas) >= 0.9


def agree_on_mcp(data: Path, every: int, values: int, variants: int) -> None:
    referee = Referee()
    for name, _role, schema in mcp_schemas(data)[::every]:
        referee.examine(name, schema, Random(zlib.crc32(name.encode())), values, variants)
    referee.report("real schemas")


def agree_on_random(seed: int, schemas: int) -> None:
    rng, referee = Random(seed), Referee()
    for number in range(schemas):
        schema = random_schema(rng, rng.choice([None, DRAFT7, DRAFT2020]))
        referee.examine(f"seed {seed}, schema {number}", schema, rng, values=4, variants=4)
    assert referee.counts["fastjsonschema"] > schemas / 4
    assert referee.counts["jsonschema-rs"] > schemas / 4
    referee.report("random schemas")


def test_both_engines_agree_on_real_schemas(shared_data: Path) -> None:
    agree_on_mcp(shared_data, every=4, values=3, variants=4)


def test_both_engines_agree_on_random_schemas() -> None:
    agree_on_random(seed=11, schemas=300)


@pytest.mark.soak
def test_both_engines_agree_on_all_real_schemas_and_many_values(shared_data: Path) -> None:
    agree_on_mcp(shared_data, every=1, values=20, variants=10)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_both_engines_agree_on_many_random_schemas(seed: int) -> None:
    agree_on_random(1000 + seed, 2500)


def test_linting_real_schemas_never_fails_and_never_repeats_an_argument(shared_data: Path) -> None:
    lines = Counter(
        line.split(": ", 1)[1].split(" ")[0]
        for _, _, schema in mcp_schemas(shared_data)[::6]
        for line in lint_schema(schema)
    )
    assert lines


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    "",
    "a",
    "#",
    [],
    ["a"],
    [1],
    [{}],
    {},
    {"a": 1},
    {"a": {}},
    {"a": []},
    {"$ref": "#"},
    1e300,
    "(",
]


def spoil(schema: Any, rng: Random) -> Any:
    """*schema* with something in it replaced by junk, or a keyword given junk."""
    places = [(holder, key) for holder, key in walk(schema)]
    holder, key = rng.choice(places)
    if isinstance(holder, dict) and rng.random() < 0.3:
        key = rng.choice(sorted(KEYWORDS))
    holder[key] = copy.deepcopy(rng.choice(JUNK))
    return schema


def walk(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from walk(item)


def test_a_spoilt_schema_is_refused_properly_or_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, outcomes = Random(3), Counter[str]()
    for number in range(700):
        if number == 500:  # and the same on a platform without jsonschema-rs
            monkeypatch.setattr(rust, "_library", lambda: None)
        schema = random_schema(rng, rng.choice([None, DRAFT7, DRAFT2020]))
        for _ in range(rng.randint(1, 3)):
            spoil(schema, rng)
        steps: list[Callable[[], Any]] = [
            partial(compile_schema, AuthorSchema(schema)),
            partial(compile_schema, schema, trusted=False),
            partial(verify_schema, AuthorSchema(schema)),
            partial(verify_schema, schema, trusted=False),
            partial(lint_schema, schema),
        ]
        for step in steps:
            try:
                made = step()
            except SchemaRefused as refused:
                outcomes[refused.reason] += 1
                continue
            outcomes["made"] += 1
            values: list[Any] = [{}, [], "a", 1, None, {"a": 1}] if isinstance(made, Validator) else []
            for value in values:
                assert accepts(made, value) != bool(made.issues(value))
    print(f"\nspoilt schemas: {dict(outcomes)}")
    assert min(outcomes["made"], outcomes["invalid_schema"], outcomes["bad_subschema"]) > 20
