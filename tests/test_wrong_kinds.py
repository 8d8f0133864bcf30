"""A value of another kind, given to a public function, is answered with a sentence and the line to write."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as plain_redis
from sqlalchemy import make_url

from callgate import Gate, Hook, ProviderRegistry, ToolCall, ToolRecord, ToolRegistry, User, converse, invoke_tool, tool
from callgate.errors import CallgateError, RegistrationError
from callgate.hooks import by_stage
from callgate.jobs import CeleryJobs, EmbeddedJobs, ProcrastinateJobs
from callgate.mcp import server as serve
from callgate.models import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIEmbeddings, OpenAIResponses
from callgate.picking import Cascade, Discovery, LLMScorer, Mixture, PickContext, pick_tools
from callgate.stores import MemoryStore, RedisStore, SqlStore
from callgate.testing import FakeClock, RecordingHook, Say, ScriptedModel

OBJECT = {"type": "object", "properties": {}}
CLIENT = OpenAIChat("http://127.0.0.1:9", model="m")


@tool(effect="read")
async def add(a: int = 1) -> int:
    """Add."""
    return a


class Looks(Hook):
    """A hook of one stage."""

    def will_execute(self, ctx: Any) -> None: ...


def record() -> ToolRecord:
    return ToolRecord(id="s", description="d", input_schema=OBJECT, execute=lambda input, ctx: 1)


def look_in(**settings: Any) -> Any:
    return invoke_tool(record(), {}, **settings)


async def talk(second: Any, messages: Any = "hi", **options: Any) -> Any:
    if second is not None:
        return await converse(CLIENT, second, messages, **options)
    async with Gate([add]) as gate:
        return await converse(CLIENT, gate, messages, **options)


STAGED = {"will_execute": [Looks]}
GATE: Any = Gate
REGISTRY: Any = ProviderRegistry
RECORD: Any = ToolRecord
ENGINES: tuple[Any, ...] = (EmbeddedJobs, ProcrastinateJobs, CeleryJobs)
WRONG: dict[str, tuple[Any, str]] = {
    "Gate(store=5)": (lambda: GATE([add], store=5), r"store is of type int; .*write store=SqlStore\(address\)"),
    "Gate(jobs=True)": (lambda: GATE([add], jobs=True), "jobs is of type bool; .*write jobs="),
    "Gate(signing_keys=None)": (
        lambda: GATE([add], signing_keys=None),
        r"signing_keys is of type NoneType; .*write signing_keys=\[",
    ),
    "Gate(signing_keys=5)": (lambda: GATE([add], signing_keys=5), r"signing_keys is of type int; .*write signing_keys=\["),
    "Gate(allow_unguarded=1)": (lambda: GATE([add], allow_unguarded=1), "allow_unguarded is of type int"),
    "[{stage: hook}]": (lambda: GATE([add], [{"will_execute": Looks()}]), r"write {'will_execute': \[Looks\]}"),
    "[{stage: class}]": (lambda: GATE([add], [{"will_execute": Looks}]), r"write {'will_execute': \[Looks\]}"),
    "hooks_by_stage={stage: hook}": (
        lambda: Gate([RECORD(id="s", input_schema=OBJECT, execute=print, hooks_by_stage={"will_execute": 5})]),
        "hooks_by_stage is of type dict",
    ),
    "hook.tools=5": (lambda: GATE([add], [type("H", (Looks,), {"tools": 5})()]), "H: tools is of type int"),
    "hook.effects=5": (lambda: GATE([add], [type("H", (Looks,), {"effects": 5})()]), "H.effects is of type int"),
    "register_singletons([pairs])": (
        lambda: REGISTRY().register_singletons([("a", 1)]), r"write register_singletons\({token: instance}\)",
    ),
    "override([pairs])": (lambda: GATE([add]).override([("a", 1)]), r"not list; write override\({token: instance}\)"),
    "override(None)": (lambda: GATE([add]).override(None), "override takes a mapping, not NoneType"),
    "EmbeddedJobs(queues=text)": (lambda: ENGINES[0](queues="mail"), "queues is of type str; give a list of text"),
    "EmbeddedJobs(None)": (lambda: ENGINES[0](None), "concurrency is of type NoneType"),
    "EmbeddedJobs(grace=nan)": (lambda: ENGINES[0](grace=float("nan")), "at least 0"),
    "ProcrastinateJobs(queues=text)": (lambda: ENGINES[1](queues="mail"), "queues is of type str; give a list of text"),
    "ProcrastinateJobs(poll=text)": (lambda: ENGINES[1](poll="1"), "poll is of type str"),
    "CeleryJobs(queues=[5])": (lambda: ENGINES[2]("memory://", queues=[5]), "queues is of type list; give a list of text"),
    "CeleryJobs(5)": (lambda: ENGINES[2](5), "give a Celery application, or the address of a broker"),
    "provide([pairs])": (lambda: REGISTRY().provide([("a", 1)]), r"write provide\({token: instance}\)"),
    "register_session_providers(s, [pairs])": (
        lambda: REGISTRY().register_session_providers("s", [("a", 1)]), "write register_session_providers",
    ),
    "invoke_tool(registry=Gate)": (lambda: look_in(registry=GATE([add])), r"registry is of type Gate; .*gate\.invoke\("),
    "invoke_tool(resolve=5)": (lambda: look_in(resolve=5), "resolve is of type int; .*write resolve=lambda cls"),
    "invoke_tool(resolve=f())": (lambda: look_in(resolve=lambda: 1), r"resolve takes \(\), .*write resolve=lambda cls"),
    "invoke_tool(store=5)": (lambda: look_in(store=5), "store is of type int; .*write store="),
    "global_hooks_by_stage=[]": (lambda: look_in(global_hooks_by_stage=[1]), r"write {stage: \[hook, \.\.\.\]}"),
    "global_hooks_by_stage={s: class}": (
        lambda: look_in(global_hooks_by_stage={"will_execute": Looks}), r"write {'will_execute': \[Looks\]}",
    ),
    "resolve returns None": (
        lambda: look_in(resolve=lambda cls: None, global_hooks_by_stage=STAGED), "write|resolve=lambda cls: cls",
    ),
    "resolve returns another": (
        lambda: look_in(resolve=lambda cls: 5, global_hooks_by_stage=STAGED), r"resolve\(Looks\) returned int",
    ),
    "converse(c, [tool])": (lambda: talk([add]), r"not list; write async with Gate\("),
    "converse(max_rounds='3')": (lambda: talk(None, max_rounds="3"), "max_rounds is of type str; give a whole number"),
    "converse(stream='yes')": (lambda: talk(None, stream="yes"), "stream is of type str"),
    "converse(repair=5)": (lambda: talk(None, repair=5), "repair is of type int; give a function"),
    "converse(tools=[tool])": (lambda: talk(None, tools=[add]), r'names of tools in a list, such as tools=\["find_book"\]'),
    "converse(tools=iterator)": (lambda: talk(None, tools=iter(["add"])), "names of tools in a list"),
    "converse(tools={name: False})": (lambda: talk(None, tools={"add": False}), "names of tools in a list"),
    "converse(results=[result])": (lambda: talk(None, results=[5]), r"write results=\{result\.call_id: result\}"),
    "converse(one message)": (lambda: talk(None, {"role": "user", "content": "x"}), r'write \[{"role": "user"'),
    "converse(5)": (lambda: talk(None, 5), "messages are a list, not int"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_a_value_of_another_kind_is_answered_with_the_line_to_write(name: str) -> None:
    make, line = WRONG[name]
    with pytest.raises((CallgateError, TypeError, ValueError), match=line) as caught:
        found = make()
        await found if inspect.isawaitable(found) else None
    assert "object has no attribute" not in str(caught.value)


STORES: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    *((SqlStore, {"pool_size": value}, "pool_size is") for value in (0, -1, "8", 2.5, None, True)),
    *((RedisStore, {"pool_size": value}, "pool_size is") for value in (0, -1, "8", 2.5, None, True)),
    *((MemoryStore, {"max_audit_rows": value}, "max_audit_rows is") for value in (0, -1, "8", None)),
    *((MemoryStore, {name: 0}, f"{name} is 0") for name in ("cache_size", "cache_bytes", "max_effects")),
    *((SqlStore, {"url": url}, "url is of type") for url in (Path("a.db"), make_url("sqlite://"), None)),
    (SqlStore, {"migrate": "no"}, "migrate is of type str"),
    (SqlStore, {"now": 5.0}, "now is of type float"),
    (RedisStore, {"url": plain_redis.Redis()}, "url is of type Redis"),
    (RedisStore, {"prefix": None}, "prefix is of type NoneType"),
    *((kind, {"now": lambda clock: 1.0}, "now takes") for kind in (SqlStore, RedisStore, MemoryStore)),
    *((kind, {"now": asyncio.sleep}, "now takes|now is async") for kind in (SqlStore, RedisStore, MemoryStore)),
]


@pytest.mark.parametrize(("kind", "settings", "says"), STORES)
def test_a_setting_of_a_store_of_another_kind_is_refused(
    kind: Callable[..., object], settings: dict[str, Any], says: str
) -> None:
    """A pool of 0 connections failed each call after 10 seconds, and ``migrate="no"`` migrated the tables."""
    urls: dict[object, dict[str, Any]] = {
        SqlStore: {"url": "sqlite://"},
        RedisStore: {"url": "redis://h"},
        MemoryStore: {},
    }
    with pytest.raises(TypeError, match=says):
        kind(**{**urls[kind], **settings})


def test_a_mapping_by_stage_of_the_right_form_is_accepted() -> None:
    """Control: the answer that the messages give."""
    Gate([add], [{"will_execute": [Looks]}, by_stage(Looks())])


# ------------------------------------------------------------------ clients of models, and picks

CLIENTS_AND_EMBEDDINGS: tuple[Any, ...] = (Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses, OpenAIEmbeddings)
OF_A_CLIENT = [
    *(("insecure", value) for value in ("no", 1, None)),
    *(("model", value) for value in ("", None, 5)),
    *(("timeout", value) for value in ("5", (5, 5), True)),
    *(("retries", value) for value in ("2", None, 1.5)),
    *(("headers", value) for value in ("x", ["x"], {"x": 1}, {1: "x"})),
]
OF_A_CHAT = [
    *(("text_calls", value) for value in ("no", 1, None)),
    *(("options", value) for value in ("x", [1], {1: 2})),
    *(("endings", value) for value in ("x", {"finished": 1}, {1: "done"})),
]


@pytest.mark.parametrize("kind", CLIENTS_AND_EMBEDDINGS)
@pytest.mark.parametrize(("name", "value"), [*OF_A_CLIENT, *OF_A_CHAT])
def test_a_setting_of_a_client_of_another_kind_is_refused(kind: Any, name: str, value: Any) -> None:
    """``insecure="no"`` sent the key over plain http, and ``text_calls="no"`` ran calls that a text only quotes."""
    if kind is OpenAIEmbeddings and (name, value) in OF_A_CHAT:
        pytest.skip("a setting that embeddings have not")
    settings: dict[str, Any] = {"base_url": "http://127.0.0.1:9", "model": "m", "api_key": "a-secret-key"}
    wrong: dict[str, Any] = {**settings, name: value}
    with pytest.raises(RegistrationError, match=name) as refused:
        kind(**wrong)
    assert "a-secret-key" not in str(refused.value)
    kind(**settings)


def picked(**options: Any) -> Any:
    return pick_tools("add numbers", [add], **options)


OF_A_PICK: dict[str, tuple[Any, ...]] = {
    "max_candidates": ("3", None, True, 1.5, float("inf"), 0),
    "min_score": ("0.5", None, True, -0.1, 1.1, float("nan"), float("inf")),
    "allow_unsafe": ("no", "false", 1, None),
    "debug": ("no", 1),
    "timeout_ms": ("5", True, -1, float("nan")),
    "visible": (5, "x", lambda: True),
    "context": ({"enabled": []}, PickContext, 5),
    "tools": (None, 5, "add", {"add": add}),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OF_A_PICK.items() for value in values])
async def test_an_option_of_a_pick_of_another_kind_is_refused(name: str, value: Any) -> None:
    """``allow_unsafe="no"`` offered unsafe tools, and a minimum score above 1 found nothing."""
    with pytest.raises((TypeError, ValueError), match=name) as refused:
        await (pick_tools("add", value) if name == "tools" else picked(**{name: value}))
    assert "not supported between" not in str(refused.value)
    if name != "tools":
        async with Gate([add]) as gate:
            with pytest.raises((TypeError, ValueError)):
                await gate.pick("add", **{name: value})
    assert len(await picked(min_score=0.0)) == 1


LOOSE: dict[str, Any] = {"mixture": Mixture, "cascade": Cascade, "llm": LLMScorer, "discovery": Discovery}
PARTS: dict[str, tuple[Callable[[], object], str]] = {
    "a mapping of names": (lambda: PickContext(enabled={"add": False}), "not a mapping; write {name for name, on in"),
    **{
        mode: (lambda mode=mode: PickContext(mode=mode), "write 'read-only'")  # type: ignore[misc]
        for mode in ("read_only", "readonly", "Read-Only", "READ ONLY")
    },
    "Mixture({})": (lambda: LOOSE["mixture"]({"a": 1}), r"write Mixture\(\(scorer, 0\.4\)"),
    "Mixture((scorer, text))": (lambda: LOOSE["mixture"]((print, "1")), r"write Mixture\(\(scorer, 0\.4\)"),
    "Cascade(scorer)": (lambda: LOOSE["cascade"](print), r"write Cascade\(CascadeStage\("),
    "LLMScorer(None)": (lambda: LOOSE["llm"](None), "ask is of type NoneType; give a function of"),
    "LLMScorer(f())": (lambda: LOOSE["llm"](lambda: ""), r"ask takes \(\)"),
    "LLMScorer(batch='5')": (lambda: LOOSE["llm"](str, batch="5"), "batch is of type str"),
    "Discovery(None)": (lambda: LOOSE["discovery"](None), "gate is of type NoneType; give Gate"),
    "Discovery(allow_unsafe='no')": (
        lambda: LOOSE["discovery"](Gate([add]), allow_unsafe="no"), "allow_unsafe is of type str; give True or False",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_pick_that_would_exclude_nothing_is_refused(name: str) -> None:
    """A mapping of names to False enabled them, and another spelling of the mode left tools with an effect in."""
    make, says = PARTS[name]
    with pytest.raises((TypeError, ValueError), match=says):
        make()
    PickContext(enabled={"add"}, mode="read-only")
    PickContext(mode="dry-run")


# ------------------------------------------------------------------ values that could not work

CALLS_OPTIONS = {"events": 5, "task": 5, "joins_waiting": "no", "idempotency_key": 5, "session_id": 5}
CODES = {"idempotency_key": "idempotency_key"}


@pytest.mark.parametrize("option", CALLS_OPTIONS)
async def test_an_option_of_a_call_of_another_type_is_refused(option: str) -> None:
    """``joins_waiting="no"`` joined, and ``events=5`` failed the tool at its first progress."""
    options: Any = {option: CALLS_OPTIONS[option]}
    async with Gate([add]) as gate:
        result = await gate.call("add", {}, **options)
        assert result.error is not None
        assert result.error.code == CODES.get(option, "bad_call")
        assert option.replace("idempotency_", "idempotency ") in result.error.public
        assert (await gate.call("add", {}, joins_waiting=False, idempotency_key="k")).ok


def ended_twice() -> None:
    """End a block of an override twice."""
    block = ProviderRegistry().override({})
    block.__enter__()
    for _ in range(2):
        block.__exit__(None, None, None)


async def resumed(here: Any) -> None:
    async with Gate([add]) as gate:
        await gate.resume("a handle", "approve", approver=User("lea"), here=here)


async def at_once(number: Any) -> None:
    async with Gate([add]) as gate:
        await gate.call_many([ToolCall(name="add", arguments={})], at_once=number)


TEXT: Any = "false"
"""The value of a variable of the environment: true, as any text."""
USELESS: dict[str, tuple[Callable[[], object], str]] = {
    "a page for all calls": (lambda: serve(Gate([add]), approvals_url="https://desk.example"), "has no {handle}"),
    "a text as a script": (lambda: LOOSE_KINDS["model"]("hello"), r"write ScriptedModel\(\[Say\('Hello\.'\)\]\)"),
    "a turn as a script": (lambda: LOOSE_KINDS["model"](Say("hello")), "a script is a list of turns"),
    "a text as stages": (lambda: RecordingHook("will_audit"), r"write RecordingHook\(\['will_audit'\]\)"),
    "no time": (lambda: FakeClock().advance(float("nan")), "give a finite number"),
    "an endless time": (lambda: FakeClock().advance(float("inf")), "give a finite number"),
    "a text as the permission to run unguarded": (lambda: GATE([add], allow_unguarded="false"), "is of type str"),
    "a text as the permission to replace a tool": (lambda: Gate([add]).add(add, replace=TEXT), "Duplicate tool names"),
    "a text as the permission to exchange": (lambda: Gate([add]).exchange([add], replace=TEXT), "Duplicate tool names"),
    "a text as the place of a resumption": (lambda: asyncio.run(resumed(TEXT)), "here is of type str"),
    "no number of calls at once": (lambda: asyncio.run(at_once(float("nan"))), "at_once must be at least 1"),
    "an end without a block": (ended_twice, "has ended already"),
    "a text as enabled tools": (lambda: ToolRegistry().definitions("add"), "not a text"),
    "a mapping of enabled tools": (lambda: ToolRegistry().definitions({"add": False}), "not a mapping"),
}
LOOSE_KINDS: dict[str, Any] = {"model": ScriptedModel}


@pytest.mark.parametrize("name", USELESS)
def test_a_value_that_could_not_work_is_refused(name: str) -> None:
    """Each was taken, and did something else or nothing."""
    make, says = USELESS[name]
    with pytest.raises((CallgateError, TypeError, ValueError), match=says):
        make()


def test_a_refused_call_can_be_shown() -> None:
    """A traceback with local variables raised another error."""
    with pytest.raises(TypeError, match="takes keywords") as refused:
        ToolCall("add")  # type: ignore[arg-type]
    assert "ToolCall(name=" in repr(refused.traceback[-1].frame.f_locals["self"])


# ------------------------------------------------------------------ messages

CLIENTS = [Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses]


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "usr", "content": "x"}, "has the role 'usr'; did you mean 'user'"),
        ({"role": "human", "content": "x"}, "has the role 'human'.*write \"user\""),
        ({"role": None, "content": "x"}, "has the role None"),
        ({"role": 5, "content": "x"}, "has the role '?5"),
        ({"content": "x"}, "has no role"),
        ({}, "has no role"),
        ({"text": "x"}, "has no role"),
    ],
)
async def test_a_message_without_a_role_that_providers_know_is_not_sent(kind: Any, message: Any, says: str) -> None:
    client = kind(base_url="http://127.0.0.1:9", model="m", api_key="k") if kind is not Ollama else kind(model="m")
    with pytest.raises(ValueError, match=f"message 1 {says}"):
        await client.reply([{"role": "user", "content": "hi"}, message], [])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "parts": [{"text": "x"}]},
        {"parts": [{"text": "x"}]},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "critic", "content": "x", "name": "a role of tomorrow, in a provider's own form"},
        {"id": "msg_1"},
    ],
)
def test_a_message_in_a_providers_own_form_is_left_to_the_provider(message: Any) -> None:
    from callgate.runtime.models.wire.codec import as_messages

    assert as_messages([message]) == [message]
