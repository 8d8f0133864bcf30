"""``Secrets``: tools get them, and they come back in nothing."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import traceback
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callgate import (
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    Provide,
    Question,
    Respond,
    Stage,
    ToolCall,
    ToolContext,
    ToolError,
    User,
    configure_logging,
    tool,
)
from callgate.errors import HookError
from callgate.hooks.stock.capacity.cache import Cache
from callgate.hooks.stock.privacy.secrets import Secrets, Source, from_env, from_keyring
from callgate.providers.scrubbing import Scrubber
from callgate.providers.spellings import spellings
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.pipeline.streams import Progress
from callgate.runtime.suspensions import suspensions
from callgate.testing import trace
from tests.harness.gate_options import gate_options
from tests.hooks.making import USER, Watch, at

CANARY = 'k3y "canary"/7Q2xZ+ü'
HAS_KEYRING = importlib.util.find_spec("keyring") is not None


@pytest.fixture(autouse=True)
def default_logging_afterwards() -> Iterator[None]:
    yield
    configure_logging()


@tool(effect="read")
async def pay(ctx: ToolContext, key: Annotated[str, Provide["billing_key"]], how: str = "plain") -> Any:
    """Uses its key, and is careless with it."""
    ctx.progress(1, 1, f"with {key}")
    await ctx.send({"part": key})
    return await careless(how, key)


async def careless(how: str, key: str) -> Any:
    raising: dict[str, Callable[[], BaseException]] = {
        "tool error": lambda: ToolError(f"no: {key}"),
        "any error": lambda: ValueError(key, [key]),
        "chained": lambda: _chained(key),
        "group": lambda: ExceptionGroup(key, [OSError(1, "x", key)]),
        "crash": lambda: SystemExit(key),
    }
    if how in raising:
        error = raising[how]()
        raise error
    return {
        "plain": {"used": key, key: [f"<{key}>"], "n": 1},
        "url": f"https://x.example/?k={quote(key)}",
        "base64": {"a": base64.b64encode(key.encode()).decode()},
        "json": json.dumps({"k": key}, ensure_ascii=False),
        "clean": {"n": 1},
    }[how]


def _chained(key: str) -> Exception:
    error = RuntimeError("no")
    error.__cause__ = ValueError(key)
    error.add_note(key)
    return error


HOWS = ["plain", "url", "base64", "json", "tool error", "any error", "chained", "group", "crash"]


class Everything(Hook):
    """Writes down all that a careless audit, tracer and cache could."""

    priority = -50

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        try:
            output = await next()
        except BaseException as error:
            self.seen.append(shown(error))
            raise
        self.seen.append(shown(output))
        return output

    def will_write_cache(self, ctx: InvokeContext) -> None:
        self.seen.append(shown(ctx.output))

    def on_error(self, ctx: InvokeContext) -> None:
        self.seen.append(shown(ctx.error))

    def will_audit(self, ctx: InvokeContext) -> None:
        self.seen += map(
            shown,
            [ctx.output, ctx.masked_input, ctx.input_history, ctx.output_history, ctx.error, ctx.suppressed, ctx.data],
        )


def shown(value: Any) -> str:
    if isinstance(value, BaseException):
        return "".join(traceback.format_exception(value, limit=0)) + repr(value) + shown(vars(value))
    return repr(value) + json.dumps(value, default=repr, ensure_ascii=False)


async def everything_of(how: str, *hooks: Any, key: str = CANARY) -> tuple[str, Any]:
    """All that anybody sees of a call, and its result."""
    events: list[Any] = []
    configure_logging(events.append, level="DEBUG", errors="text")
    watch, store = Everything(), MemoryStore()
    failing = at(
        Stage.ON_METRICS, lambda ctx: (_ for _ in ()).throw(RuntimeError(f"observer: {ctx.try_get('k2')}{key}"))
    )
    async with Gate([pay], [*hooks, watch, failing, Cache(60)], allow_unguarded=True, store=store) as gate:
        streamed = [one async for one in gate.stream(ToolCall(id="c1", name="pay", arguments={"how": how}), user=USER)]
        again = await gate.call(ToolCall(id="c2", name="pay", arguments={"how": how}), user=USER)
    told = [*streamed, again, events, watch.seen, [entry.value.decode() for entry in store.cache._entries.values()]]
    return "".join(map(repr, told)) + json.dumps(told, default=repr, ensure_ascii=False), again


def leaks(text: str, key: str = CANARY) -> list[str]:
    doubled = [json.dumps(one, ensure_ascii=False)[1:-1] for one in spellings(key)]
    return [one for one in {*spellings(key), *doubled} if one in text]


@pytest.mark.parametrize("how", HOWS)
async def test_an_injected_secret_is_in_nothing_that_comes_back(how: str) -> None:
    """Issue 4: scrubbed from output, errors, logs, spans, cache and audit; a canary test greps them all."""
    text, result = await everything_of(how, Secrets({"billing_key": lambda ctx: CANARY}))
    assert leaks(text) == []
    assert "***" in text
    assert (result.outcome is Outcome.SUCCESS) == (how in HOWS[:4])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "shape",
    [lambda key: (key,), lambda key: (0.5, key), lambda key: (0.5, 1, [key])],
    ids=["progress", "total", "message"],
)
async def test_progress_of_another_type_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, shape: Callable[[str], tuple[Any, ...]], masked: bool
) -> None:
    """The call fails instead. Without the check of the types, the secret would pass."""

    @tool(effect="read")
    async def report(ctx: ToolContext, key: Annotated[str, Provide["billing_key"]]) -> int:
        ctx.progress(*shape(key))
        return 1

    if not masked:
        monkeypatch.setattr(Progress, "__post_init__", lambda _: None)
        monkeypatch.setattr(Scrubber, "text", lambda _, text: text)
    secrets = Secrets({"billing_key": lambda ctx: CANARY})
    async with Gate([report], [secrets], allow_unguarded=True) as gate:
        events = [one async for one in gate.stream(ToolCall(id="c", name="report", arguments={}), user=USER)]
    assert (leaks(repr(events)) == []) is masked
    assert len(events) == (1 if masked else 2)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("place", ["prompt", "schema", "question", "schema of a question"])
async def test_a_question_shows_no_secret(place: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to its caller nor to an approver, nor in the store; the answer reaches the tool. The control does not mask."""

    @tool(effect="read", resumable=True)
    async def ask(ctx: ToolContext, key: Annotated[str, Provide["billing_key"]]) -> str:
        schema: dict[str, Any] = {"type": "string", "description": f"for {key}", "examples": [{key: [key]}]}
        prompt = f"Use {key}?"
        if place in ("prompt", "schema"):
            return str(
                ctx.suspend("input", prompt if place == "prompt" else "", schema=schema if place == "schema" else None)
            )
        one = Question(prompt) if place == "question" else Question("", schema)
        return str(ctx.suspend("input", "", questions={"a": one})["a"])

    if not masked:
        monkeypatch.setattr(suspensions, "without_secrets", lambda asked, _: asked)
    store, secrets = MemoryStore(), Secrets({"billing_key": lambda ctx: CANARY})
    async with Gate([ask], [secrets], **gate_options(store=store, signing_keys=["k" * 32], open=True)) as gate:
        result = await gate.call(ToolCall(id="c", name="ask", arguments={}), user=USER)
        assert result.pending is not None
        assert result.pending.handle is not None
        seen = [result, await gate.waits.look(result.pending.handle, USER), await gate.waits.pending(USER)]
        rows = [one.body.decode() for one in store.suspensions._suspensions.values()]
        assert (leaks("".join(map(repr, seen)) + "".join(rows)) == []) is masked
        answer: Any = Respond("yes" if "question" not in place else {"a": "yes"})
        assert (await gate.resume(result.pending.handle, answer, approver=USER)).output == "yes"


@pytest.mark.parametrize("how", HOWS)
async def test_the_same_search_finds_a_secret_that_nobody_scrubs(how: str) -> None:
    """The control: the value bound, and nothing else done."""

    class Lame(Secrets):
        async def will_inject_secrets(self, ctx: InvokeContext) -> None:
            ctx.bind_provider("billing_key", CANARY)

    text, _ = await everything_of(how, Lame({"billing_key": lambda ctx: CANARY}))
    assert leaks(text)


KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=6, max_size=30).filter(
    lambda key: len(set(key)) > 3 and key.strip() == key
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(KEYS, st.data())
def test_no_spelling_of_a_secret_survives_in_any_value(key: str, data: st.DataObject) -> None:
    """Property: canaries over random nested values."""
    spelled = st.sampled_from(spellings(key)).flatmap(lambda one: st.sampled_from([one, f"<{one}>", f"{one}{one}"]))
    holding = st.recursive(
        spelled,
        lambda inner: (
            st.lists(inner | PLAIN, min_size=1, max_size=3)
            | st.dictionaries(spelled | st.text(max_size=3), inner | PLAIN, min_size=1, max_size=3)
        ),
        max_leaves=6,
    )
    scrubber = Scrubber()
    scrubber.add_secrets(spellings(key))
    value = data.draw(holding)
    clean = scrubber.value(value)
    assert [one for text in texts(clean) for one in spellings(key) if one in text] == []


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from (name, *texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


@given(PLAIN)
def test_a_value_without_secrets_is_handed_on_as_it_is(value: Any) -> None:
    scrubber = Scrubber()
    scrubber.add_secrets(spellings("canary-7Q2xZ-canary"))
    assert scrubber.value(value) is value


async def test_a_secret_of_digits_is_found_in_a_number() -> None:
    _, result = await everything_of("clean", Secrets({"billing_key": lambda ctx: "8271"}), key="8271")
    assert result.output == {"n": 1}
    scrubber = Scrubber()
    scrubber.add_secrets(spellings("8271"))
    assert scrubber.value({"pin": 8271, "n": 12, "ok": True}) == {"pin": "***", "n": 12, "ok": True}


async def test_a_nested_call_shows_nothing_of_its_callers_secrets() -> None:
    """Request providers are shared with nested calls; so is what must not be shown."""
    seen: list[str] = []

    @tool(effect="read")
    async def inner(ctx: ToolContext) -> str:
        """Takes what is not its own."""
        raise ValueError(ctx.get("billing_key"))

    @tool(effect="read", hooks=[Secrets({"billing_key": lambda ctx: CANARY})])
    async def outer(ctx: ToolContext, key: Annotated[str, Provide["billing_key"]]) -> Any:
        """Calls another."""
        return await ctx.call("inner", {})

    events: list[Any] = []
    configure_logging(events.append, level="DEBUG", errors="text")
    audit = at(Stage.WILL_AUDIT, lambda ctx: seen.append(shown(ctx.error)))
    async with Gate([inner, outer], [audit], allow_unguarded=True) as gate:
        result = await gate.call(ToolCall(id="c1", name="outer", arguments={}), user=USER)
    text = f"{seen}{events}{result}"
    assert len(seen) == 2
    assert "ValueError" in text
    assert leaks(text) == []


# ---------------------------------------------------------------------- sources


async def test_secrets_come_from_the_environment_and_from_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 4: env and callback sources, sync and async; per invocation."""
    seen: list[Any] = []

    @tool(effect="read")
    async def use(
        one: Annotated[str, Provide["one"]],
        two: Annotated[str, Provide["two"]],
        three: Annotated[str, Provide["three"]],
    ) -> None:
        """Takes three."""
        seen.append((one, two, three))

    async def looked_up(ctx: InvokeContext) -> str:
        await asyncio.sleep(0)
        return f"{ctx.user.id}-of-{ctx.tenant}"

    monkeypatch.setenv("FIRST_SECRET", "from the environment")
    sources: dict[Any, Source] = {
        "one": from_env("FIRST_SECRET"),
        "two": lambda ctx: f"for {ctx.user.id}",
        "three": looked_up,
    }
    async with Gate([use], [Secrets(sources)]) as gate:
        await gate.invoke(use, {}, user=User("ann", tenant="acme"))
        monkeypatch.setenv("FIRST_SECRET", "changed meanwhile")
        await gate.invoke(use, {}, user=User("ben", tenant="acme"))
    assert seen == [
        ("from the environment", "for ann", "ann-of-acme"),
        ("changed meanwhile", "for ben", "ben-of-acme"),
    ]


async def test_a_tool_whose_secret_nobody_binds_is_refused_at_the_start() -> None:
    """The start-up check knows what the hook binds."""
    with pytest.raises(Exception, match="billing_key"):
        Gate([pay], [Secrets({"other_key": lambda ctx: "long enough"})], allow_unguarded=True)
    Gate([pay], [Secrets({"billing_key": lambda ctx: "long enough"})], allow_unguarded=True)


@pytest.mark.parametrize("value", ["", "abc", None, b"bytes", 12345])
async def test_a_secret_that_is_missing_or_cannot_be_kept_fails_the_call(value: Any) -> None:
    """Fail closed: what cannot be scrubbed is not given out."""
    async with Gate([pay], [Secrets({"billing_key": lambda ctx: value})], allow_unguarded=True) as gate:
        result = await gate.call(ToolCall(id="c1", name="pay", arguments={"how": "clean"}), user=USER)
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert result.error.public == "The tool failed."


async def test_a_model_cannot_send_a_secret() -> None:
    """Design 5: an injected parameter is refused by name."""
    async with Gate([pay], [Secrets({"billing_key": lambda ctx: CANARY})], allow_unguarded=True) as gate:
        result = await gate.call(ToolCall(id="c1", name="pay", arguments={"how": "clean", "key": "mine"}), user=USER)
        assert result.outcome is Outcome.INVALID
        assert "billing_key" not in repr(gate.definitions("openai_chat"))


@pytest.mark.skipif(not HAS_KEYRING, reason="KEYRING IS NOT INSTALLED: its source is not tested")
async def test_secrets_come_from_a_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring import backend

    class Kept(backend.KeyringBackend):
        priority: Any = 1

        def get_password(self, service: str, username: str) -> str | None:
            return f"{service}:{username}:kept" if service == "billing" else None

        def set_password(self, service: str, username: str, password: str) -> None:
            raise NotImplementedError

    before = keyring.get_keyring()
    kept: Any = Kept
    keyring.set_keyring(kept())
    try:
        hooks = Secrets({"billing_key": from_keyring("billing", "callgate")})
        text, result = await everything_of("plain", hooks, key="billing:callgate:kept")
        assert result.output == {"used": "***", "***": ["<***>"], "n": 1}
        assert leaks(text, "billing:callgate:kept") == []
    finally:
        keyring.set_keyring(before)


def test_without_the_extra_the_keyring_source_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(HookError, match=r"callgate\[keyring\]"):
        from_keyring("billing", "callgate")


# ---------------------------------------------------------------------- shadow, options


async def test_in_shadow_it_binds_nothing_and_scrubs_nothing() -> None:
    """Issue 4: shadow decides, records, changes nothing."""
    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    provided = {"billing_key": lambda: CANARY}
    broken = Secrets({"billing_key": lambda ctx: ""}, mode="shadow")
    async with Gate([pay], [broken, watch.hook], allow_unguarded=True, provide=provided) as gate:
        result = await gate.call(ToolCall(id="c1", name="pay", arguments={}), user=USER)
    assert result.output["used"] == CANARY
    assert [getattr(one.error, "code", None) for one in watch.ctx.suppressed] == ["secret_missing"]


@pytest.mark.parametrize(
    ("sources", "says"), [({}, "needs sources"), ([], "needs sources"), ({"k": "VALUE"}, "not a function")]
)
def test_wrong_sources_are_refused_with_what_to_do(sources: Any, says: str) -> None:
    with pytest.raises(HookError, match=says) as refused:
        Secrets(sources)
    assert "VALUE" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "fault"), [(None, "is not set"), ("", "is not set"), ("abc", "has fewer than 4"), ("abcd", "")]
)
async def test_a_variable_that_cannot_be_a_secret_is_named_once_when_the_gate_opens(
    value: str | None, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in the error of each call, which never shows the value."""
    monkeypatch.delenv("BILLING_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("BILLING_KEY", value)
    events: list[dict[str, Any]] = []
    configure_logging(events.append)

    @tool(effect="read")
    async def bill(key: Annotated[str, Provide["billing_key"]]) -> int:
        """Bill."""
        return len(key)

    @tool(effect="read")
    async def later() -> None:
        """Come later."""

    try:
        async with Gate([bill], [Secrets({"billing_key": from_env("BILLING_KEY")})]) as gate:
            warned = [one["warning"] for one in events if one["event"] == "definition.warning"]
            gate.add(later)
            seen = await trace(gate, "bill", {})
    finally:
        configure_logging()
    assert len([one for one in events if one["event"] == "definition.warning"]) == len(warned) == bool(fault)
    assert seen.result.ok is (not fault)
    if fault:
        assert f"secret 'billing_key': the environment variable BILLING_KEY {fault}" in warned[0]
        assert seen.error is not None
        cause = str(seen.error.__cause__)
        assert "'billing_key'" in cause
        assert "BILLING_KEY is not set" in cause or fault in cause
