"""``OutputPolicy``: nothing larger goes out than may, and what was cut says so."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callgate import Gate, Outcome, Stage, ToolCall, ToolResult, User
from callgate.errors import HookError
from callgate.hooks.stock.privacy.output_policy import OutputPolicy
from callgate.providers.blobs import FolderBlobs
from callgate.tools.definition import ToolDefinition
from tests.hooks.making import ANYTHING, USER, Watch, at, record

LARGE = {"rows": ["x" * 100] * 30}


async def result_of(
    policy: OutputPolicy, answer: Any, *hooks: Any, schema: Any = None, user: User = USER
) -> ToolResult:
    async def run(**given: Any) -> Any:
        return answer

    definition = ANYTHING
    if schema is not None:
        definition = ToolDefinition(
            "echo", "What it was given.", {"type": "object"}, output_schema=schema, effect=ANYTHING.effect
        )
    async with Gate([record(run, definition)], [policy, *hooks], allow_unguarded=True) as gate:
        return await gate.call(ToolCall(id="c1", name="echo", arguments={}), user=user)


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_an_output_within_the_limit_is_left_alone() -> None:
    for way in ("refuse", "truncate"):
        fits = "x" * 998
        assert (await result_of(OutputPolicy(1000, on_too_large=way), fits)).output == fits


async def test_an_output_that_is_too_large_is_refused_before_it_is_validated() -> None:
    """Part C 4: size limits on outputs; the model is told no more than that."""
    watch = Watch(Stage.ON_ERROR)
    told = await result_of(OutputPolicy(1000), "x" * 999, watch.hook, schema={"type": "integer"})
    assert told.outcome is Outcome.ERROR
    assert told.error is not None
    assert (told.error.code, told.error.public) == ("output_too_large", "The tool's output is too large.")
    assert str(watch.ctx.error) == "the output has 1001 bytes; the maximum is 1000"


async def test_what_a_later_hook_makes_too_large_is_refused_as_well() -> None:
    def grow(ctx: Any) -> None:
        ctx.output = "x" * 2000

    told = await result_of(OutputPolicy(1000), "x", at(Stage.WILL_TRANSFORM_OUTPUT, grow))
    assert told.error is not None
    assert told.error.code == "output_too_large"


async def test_a_text_is_cut_and_says_so() -> None:
    """Issue 4: truncation that says so."""
    told = await result_of(OutputPolicy(300, on_too_large="truncate"), "ü" * 400)
    assert told.output.endswith("… [cut, 802 bytes in all]")
    assert 250 < len(orjson.dumps(told.output)) <= 300
    assert set(told.output.split("…")[0]) == {"ü"}


async def test_anything_else_becomes_a_marked_object() -> None:
    told = await result_of(OutputPolicy(300, on_too_large="truncate"), LARGE)
    data = orjson.dumps(LARGE)
    assert told.output["truncated"] is True
    assert told.output["bytes"] == len(data)
    assert data.decode().startswith(told.output["start"])


ANY = st.recursive(
    st.none() | st.integers(-(2**60), 2**60) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=20), inner, max_size=8),
    max_leaves=30,
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(ANY, st.integers(256, 1500), st.sampled_from(["refuse", "truncate"]))
async def test_nothing_larger_than_the_limit_goes_out_and_it_is_json(value: Any, most: int, way: Any) -> None:
    """Invariant I15: no result over the limit; a cut one is valid JSON still."""
    told = await result_of(OutputPolicy(most, on_too_large=way), [value] * 3)
    if told.error is None:
        assert len(orjson.dumps(told.output)) <= most
        assert json.loads(json.dumps(told.output)) == told.output
        assert told.output == [value] * 3 or told.output["truncated"]
    else:
        assert (way, told.error.code) == ("refuse", "output_too_large")


SCHEMAS: list[tuple[Any, Any, bool]] = [
    ({"type": "string"}, "x" * 900, True),
    ({"type": "string", "pattern": "^x*$"}, "x" * 900, False),
    ({"type": "array"}, ["x" * 900], False),
    ({"type": "object"}, {"x": "x" * 900}, True),
    ({"type": "object", "additionalProperties": {"type": "string"}}, {"x": "x" * 900}, False),
]


@pytest.mark.parametrize(("schema", "answer", "admits"), SCHEMAS)
async def test_an_output_schema_that_forbids_the_mark_has_the_output_refused(
    schema: Any, answer: Any, admits: bool, tmp_path: Path
) -> None:
    """Issue 4: only where no output schema forbids it; what goes out always conforms."""
    told = await result_of(OutputPolicy(300, on_too_large="truncate"), answer, schema=schema)
    assert (told.error is None) is admits
    blobs = FolderBlobs(tmp_path)
    told = await result_of(OutputPolicy(300, on_too_large="spill", spill=blobs), answer, schema=schema)
    handled = admits and schema["type"] == "object"
    assert (told.error is None) is handled
    assert bool(kept(tmp_path)) is handled  # refused, and nothing was kept


async def test_a_large_output_is_kept_elsewhere_with_a_handle_in_its_place(tmp_path: Path) -> None:
    """Invariant B5: limit, then spill to a blob handle; of one tenant, guessed by nobody."""
    blobs = FolderBlobs(tmp_path / "blobs")
    policy = OutputPolicy(300, on_too_large="spill", spill=blobs, preview=20)
    told = await result_of(policy, LARGE)
    data = orjson.dumps(LARGE)
    handle = told.output["blob"]
    assert told.output == {"blob": handle, "bytes": len(data), "start": data[:20].decode()}
    assert await blobs.get("acme", handle) == data
    assert await blobs.get("other", handle) is None
    assert await blobs.get("acme", f"../acme/{handle}") is None
    (file,) = kept(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "acme" not in str(file.relative_to(tmp_path))


async def test_an_output_larger_than_the_gate_would_let_out_can_be_spilled(tmp_path: Path) -> None:
    policy = OutputPolicy(300, on_too_large="spill", spill=FolderBlobs(tmp_path))
    told = await result_of(policy, "x" * 2_000_000)
    assert told.output["bytes"] == 2_000_002


async def test_a_spill_that_fails_fails_the_call_and_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where the folder should be", "utf-8")
    policy = OutputPolicy(300, on_too_large="spill", spill=FolderBlobs(tmp_path / "blobs"))
    told = await result_of(policy, LARGE)
    assert told.outcome is Outcome.ERROR
    assert told.output is None


@pytest.mark.parametrize("answer", [float("nan"), [float("inf")], b"\xff", object()])
async def test_what_is_not_finite_or_no_json_is_refused_with_any_policy(answer: Any) -> None:
    """Issue 4: non-finite and non-JSON refused (the gate does it)."""
    told = await result_of(OutputPolicy(300, on_too_large="truncate"), answer)
    assert told.error is not None
    assert told.error.code == "invalid_output"


async def test_in_shadow_it_changes_nothing_and_says_what_it_would_have_done(tmp_path: Path) -> None:
    """Issue 4: shadow decides, records, changes nothing."""
    for options in ({}, {"on_too_large": "truncate"}, {"on_too_large": "spill", "spill": FolderBlobs(tmp_path)}):
        watch = Watch(Stage.WILL_FINALIZE_INVOKE)
        given: Any = options
        told = await result_of(OutputPolicy(300, mode="shadow", **given), LARGE, watch.hook)
        assert told.output == LARGE
        assert watch.ctx.suppressed
        assert kept(tmp_path) == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_bytes": 100}, "at least 256"),
    ({"max_bytes": 1000, "on_too_large": "cut"}, "choose 'refuse' or"),
    ({"max_bytes": 1000, "on_too_large": "spill"}, "go together"),
    ({"max_bytes": 1000, "spill": FolderBlobs("x")}, "go together"),
    ({"max_bytes": 1000, "preview": -1}, "from 0"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_wrong_options_are_refused_with_what_to_do(options: Any, says: str) -> None:
    with pytest.raises(HookError, match=says):
        OutputPolicy(**options)
