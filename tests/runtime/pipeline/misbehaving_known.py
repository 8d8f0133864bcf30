"""Programs that have broken a promise once, as small as they could be made. They run before those that are drawn."""

from __future__ import annotations

from callgate import Stage
from tests.runtime.pipeline.misbehaving import Body, Deeds, Misbehaving, Program


def _hook(name: str = "h0", *, limited: bool = False, repeats: bool = False, **acts: Deeds) -> Misbehaving:
    made = tuple((Stage(stage), deeds) for stage, deeds in acts.items())
    return Misbehaving(name, made, limited=limited, repeats=repeats)


_ONCE = Body(effect="irreversible")
_FAILS = Body(effect="irreversible", deeds=("raise ValueError",))

KNOWN: dict[str, Program] = {
    "a hook reads an output that a wrapper set before the tool ran": Program(
        -1, _ONCE, (_hook(around_execute=("set output wrongly", "next")),)
    ),
    "a hook raises GeneratorExit": Program(-2, Body(), (_hook(will_acquire_quota=("raise GeneratorExit",)),)),
    "a wrapper leaves its next behind": Program(
        -3,
        Body("own task", "irreversible", ("sleep",)),
        (_hook(around_execute=("next in a forsaken task",)),),
    ),
    "a task takes a lease as the call ends": Program(-4, Body(), (_hook(will_finalize_invoke=("lease later",)),)),
    "a task takes a lease after the call": Program(
        -5, Body(deeds=("lease later",)), (_hook(will_authorize=("lease later", "abort")),), witness="hardly"
    ),
    "a hook changes the masked input of another": Program(
        -6,
        Body(),
        (_hook(will_redact_input=("set masked input",)), _hook("h1", will_inject_secrets=("change masked input",))),
    ),
    "a hook refuses a part of an output": Program(
        -7,
        Body(effect="irreversible", deeds=("send",)),
        (_hook(will_validate_output=("abort",)),),
        kind="stream",
    ),
    "a hook that shapes a part sends another": Program(
        -8, Body(deeds=("send",)), (_hook(will_redact_output=("send",)),), kind="stream"
    ),
    "a shadow raises GeneratorExit for a part": Program(
        -9,
        Body("generator", "irreversible"),
        (Misbehaving("h0", ((Stage.WILL_VALIDATE_OUTPUT, ("raise GeneratorExit",)),), shadow=True),),
        kind="stream",
    ),
    "a call that has ended binds a provider": Program(
        -10, Body(), (_hook(will_authorize=("write later", "abort")),), witness="hardly"
    ),
    "a release in a nested call has a timeout of its own": Program(
        -11,
        Body(),
        (
            _hook(will_finalize_invoke=("nested",)),
            _hook("h1", limited=True, will_acquire_quota=(), did_release_quota=("hang",)),
        ),
    ),
    "a release makes a nested call in which a timeout ends": Program(
        -18,
        Body(),
        (
            _hook(will_acquire_quota=(), did_release_quota=("nested",)),
            _hook("h1", limited=True, will_redact_input=("hang",)),
        ),
    ),
    "a tool responds after its deadline": Program(
        -19, Body(effect="irreversible", deeds=("stubborn", "respond")), (), deadline=0.2
    ),
    "a tool changes its arguments and runs again": Program(
        -12, Body(deeds=("change arguments",)), (_hook(repeats=True, around_execute=("next twice",)),)
    ),
    "a hook sets invalid arguments after validation": Program(
        -13, Body(), (_hook(will_normalize_input=("set input wrongly",)),)
    ),
    "a tool suppresses its deadline": Program(-14, Body(deeds=("stubborn",)), (), deadline=0.02),
    "a wrapper handles the error of a tool": Program(-15, _FAILS, (_hook(around_execute=("fall back on an error",)),)),
    "tasks send at once": Program(-16, Body(deeds=("send at once", "send at once")), (), kind="stream"),
    "a hook that shapes a part stops the host": Program(
        -17, Body(deeds=("send at once",)), (_hook(will_redact_output=("raise SystemExit",)),), kind="stream"
    ),
}
