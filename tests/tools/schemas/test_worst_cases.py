"""No engine works long on the most expensive value of the largest allowed size: the cost is counted before it starts."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Any

import pytest

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines import budget as budgets
from callgate.tools.schemas.engines import graph, patterns
from callgate.tools.schemas.engines.base import AuthorSchema, Rejected, guard_json
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.document import read
from callgate.tools.schemas.engines.fast import FastEngine
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS, INPUT_LIMITS
from callgate.tools.schemas.engines.rust import RustEngine
from callgate.tools.schemas.outside import admit_schema
from callgate.tools.schemas.validation import Engine, compile_schema, explain, from_validate
from tests.harness.cpu import cpu_seconds
from tests.harness.hostile_schemas import COPIED, FAMILIES, TEXTS
from tests.harness.memory import peak

ENGINES: dict[str, Engine] = {"jsonschema-rs": RustEngine(), "fastjsonschema": FastEngine()}
TOO_COSTLY = "is too costly to check against the schema; send less"


class Counting:
    """An engine of an application that counts how often it starts."""

    name, version = "counting", "1"

    def __init__(self) -> None:
        self.started = 0

    def compile(self, schema: Any, *, trusted: bool) -> Any:
        def validate(value: Any) -> list[Any]:
            self.started += 1
            return []

        return from_validate(validate, engine=self.name, version=self.version, schema=schema)


def started(schema: Any, value: Any) -> bool:
    """Return True if an engine starts to check *value* against the schema of an author."""
    engine = Counting()
    try:
        compile_schema(schema, engine=engine).check(value)
    except Rejected:
        return False
    return engine.started == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_starts_only_where_the_counted_cost_is_within_the_budget(family: str) -> None:
    schema, value = FAMILIES[family]
    try:
        budget = Budget(read(schema), AUTHOR_LIMITS)
    except SchemaRefused:
        return
    if not started(schema, value):
        return
    nodes, characters = guard_json(value, nodes=AUTHOR_LIMITS.value_nodes)
    within = budget.quick(nodes, characters) <= AUTHOR_LIMITS.budget
    if not within and budget.guarded:
        assert budget.cost(value) <= AUTHOR_LIMITS.budget
    assert within or budget.guarded or budget.worst <= budgets.WORST


SLOW = (
    "enum objects",
    "enum numbers",
    "multipleOf float",
    "allOf wide",
    "nested if",
    "unevaluated wide",
    "oneOf nested",
    "uniqueItems large",
    "uniqueItems large objects",
    "uniqueItems of one float",
    "uniqueItems few floats",
)


@pytest.mark.parametrize("family", SLOW)
def test_what_was_measured_to_be_slow_is_refused_before_an_engine_starts(family: str) -> None:
    schema, value = FAMILIES[family]
    assert not started(schema, value)
    with pytest.raises(Rejected, match=TOO_COSTLY):
        compile_schema(schema).check(value)


@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "control that counts no text"])
def test_a_text_that_a_schema_from_outside_reads_many_times_is_refused(
    family: str, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not counted:
        monkeypatch.setattr(budgets, "CHARACTERS_PER_CHECK", 60)
    schema, value = TEXTS[family]
    validator = admit_schema(schema, "parameters").compile(None)
    assert (cpu_seconds(lambda: explain(validator, value), 0.05) < 0.05) is counted
    if counted:
        with pytest.raises(Rejected, match=TOO_COSTLY):
            validator.check(value)


@pytest.mark.parametrize("copied", COPIED)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "control that counts no text"])
def test_the_errors_about_a_value_copy_little_text(copied: str, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not counted:
        for module in (graph, budgets):
            monkeypatch.setattr(module, "CHARACTERS_PER_NODE", 10**9)
        monkeypatch.setattr(graph, "_COPIED", ())
    schema, value = COPIED[copied]
    validator = admit_schema(schema, "parameters").compile(None)
    with peak() as memory:
        assert explain(validator, value)
    assert (memory.grown < 32_000_000) is counted


def test_an_ordinary_set_of_numbers_is_accepted() -> None:
    """Long ids, which a float would round, differ in their floats."""
    unique = compile_schema({"uniqueItems": True})
    for values in ([2**60 + 7_919 * i for i in range(9_000)], [i / 8 for i in range(9_000)], list(range(40_000))):
        unique.check(values)
    with pytest.raises(Rejected, match="does not match"):
        unique.check([2**60, 2**60 + 1, 2**60])


def test_the_probe_finds_an_engine_that_starts_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(budgets, "WORST", budgets.UNBOUNDED)
    assert started(*FAMILIES["nested if"])


def test_fastjsonschema_is_guarded_as_well() -> None:
    schema = {"type": "array", "items": {"anyOf": [{"type": "array", "minItems": n} for n in range(100, 200)]}}
    value: list[list[int]] = [[]] * 20_000
    with pytest.raises(Rejected, match=TOO_COSTLY):
        FastEngine().compile(AuthorSchema(schema), trusted=True).check(value)


def test_a_schema_that_no_value_makes_costly_has_no_guard() -> None:
    """A call of an ordinary tool counts nothing."""
    flat = {
        "type": "object",
        "properties": {f"p{n}": {"type": "number", "minimum": 0.5, "multipleOf": 0.01} for n in range(40)},
        "additionalProperties": False,
    }
    assert not Budget(read(flat), AUTHOR_LIMITS).guarded
    listed = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer", "minimum": 0}}}}
    assert not Budget(read(listed), AUTHOR_LIMITS).guarded


def test_branches_that_nest_are_counted_with_each_other() -> None:
    """Forty branches with forty branches below are 1,600 checks of each part below."""
    inner = {"type": "array", "items": {"anyOf": [{"type": "string", "minLength": n} for n in range(1, 41)]}}
    schema = {"type": "array", "items": {"anyOf": [{**inner, "maxItems": n} for n in range(40)]}}
    budget = Budget(read(schema), INPUT_LIMITS)
    assert budget.quick(1, 0) >= 1_600


@pytest.mark.parametrize("value", [10**300, [1, {"a": [-(10**50)]}]])
def test_integers_beyond_64_bits_count_as_what_they_cost(value: Any) -> None:
    assert budgets.holds_large(value)
    assert not budgets.holds_large([2**63, 1.5, "1", True])


@pytest.mark.soak
def test_soak_the_worst_time_of_each_engine_and_family_is_printed() -> None:
    """Prints milliseconds; the bound is a count, so a slow machine fails nothing here."""
    rows = []
    for family, (schema, value) in FAMILIES.items():
        for engine, trusted in (("jsonschema-rs", True), ("jsonschema-rs", False), ("fastjsonschema", True)):
            try:
                validator = ENGINES[engine].compile(AuthorSchema(schema), trusted=trusted)
            except SchemaRefused as refused:
                rows.append((0.0, f"{family}: {engine} {trusted=}: refused at registration: {refused}"[:120]))
                continue
            began = time.process_time()
            try:
                validator.check(value)
                verdict = "valid"
            except ValueError as error:
                verdict = str(error)[:50]
            checked = time.process_time()
            explain(validator, value)
            explained = time.process_time() - checked
            took = (checked - began) * 1000
            rows.append(
                (
                    took,
                    f"{family}: {engine} {trusted=}: {took:.1f} ms, explained in {explained * 1000:.1f} ms: {verdict}",
                )
            )
    print(*(text for _, text in sorted(rows, reverse=True)), sep="\n")
    assert len(rows) == 3 * len(FAMILIES)


ATOMS = [".", "[^x]", r"\w", r"\D", r"\s", r"\S", r"\s\w", r"[\S\W]", r"\p{L}", "(?i)k", "(?:a|bc)"]
REPEATS = ["", "{0,60}", "{0,400}"]


def most_expensive(atom: str, repeat: str) -> float:
    """Return the CPU seconds of compiling the most expensive admitted schema of one kind of pattern, or 0."""
    best = 0.0
    for parts, count in ((1, 20), (10, 20), (30, 8), (80, 2)):
        pattern = (atom + repeat) * parts
        properties = {f"{at}": {"pattern": f"{pattern}{at}"} for at in range(count)}
        try:
            admitted = admit_schema({"type": "object", "properties": properties}, "parameters")
            best = max(best, cpu_seconds(partial(admitted.compile, None), 0.05))
        except SchemaRefused:
            continue
    return best


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "control that counts no escapes"])
def test_no_admitted_schema_is_compiled_for_50_ms_in_one_step(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library compiles a schema in one call, in which no other thread runs."""
    if not counted:
        monkeypatch.setattr(patterns, "_CLASS_ESCAPE", re.compile("(?!)"))
        assert most_expensive(r"\s\s", "") > 0.05
        return
    assert {(atom, repeat) for atom in ATOMS for repeat in REPEATS if most_expensive(atom, repeat) > 0.05} == set()
