"""Random programs of misbehaving hooks and tools: what they are, how one is drawn, read and made smaller.

A program is data alone. ``misbehaving_deeds`` says what each deed does, ``misbehaving_world`` runs a program, and
``misbehaving_promises`` holds what it saw against the promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

from callgate import Stage
from callgate.hooks.stages import RELEASE_OF, STAGES, May, Section, stages_in
from tests.runtime.pipeline.misbehaving_deeds import BODY_DEEDS, DEEDS, NEXT_DEEDS, Deed, Group

FORMS = ("async", "in place", "own task", "thread", "inline", "generator", "class", "record")
EFFECTS = ("read", "idempotent", "keyed", "irreversible")
KINDS = ("call", "invoke", "stream", "traced")
WITNESSES = ("everywhere", "not around", "at the ends", "hardly")
"""Stages that the witness has: plans differ by which stages have hooks at all."""
IN_THREADS = ("thread", "inline")
MOST_HOOKS, LATEST_CANCEL = 6, 70

Deeds: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Misbehaving:
    """One hook: its deeds by stage, and its options."""

    name: str
    acts: tuple[tuple[Stage, Deeds], ...]
    is_async: bool = True
    shadow: bool = False
    ignores: bool = False
    is_class: bool = False
    repeats: bool = False
    limited: bool = False
    filter: str = ""
    priority: int = 0

    def __str__(self) -> str:
        names = ("is_async", "shadow", "ignores", "is_class", "repeats", "limited")
        options = [name for name in names if getattr(self, name)]
        options += [f"filter {self.filter}"] if self.filter else []
        acts = "; ".join(f"{stage}: {', '.join(deeds)}" for stage, deeds in self.acts)
        return f"hook {self.name} ({', '.join([*options, f'priority {self.priority}'])}) {acts}"


@dataclass(frozen=True)
class Body:
    """The tool: how it is written, its effect, and its deeds."""

    form: str = "async"
    effect: str = "read"
    deeds: Deeds = ()
    injected: bool = False

    def __str__(self) -> str:
        return f"tool {self.form}, {self.effect}{', injected' * self.injected}: {', '.join(self.deeds) or 'returns'}"


@dataclass(frozen=True)
class Program:
    """Hooks, a tool, and calls: one of each user, at the same time, and the same ones once more, one after another.

    *deadline* is in seconds; *cancel* is the callback of the loop before which the first call is cancelled.
    """

    seed: int
    body: Body
    hooks: tuple[Misbehaving, ...]
    users: int = 1
    kind: str = "call"
    witness: str = "everywhere"
    as_text: bool = False
    deadline: float | None = None
    cancel: int | None = None

    def __str__(self) -> str:
        lines = [f"program {self.seed}: {self.users} by {self.kind}, witness {self.witness}{', text' * self.as_text}"]
        lines += [f"  deadline {self.deadline}"] if self.deadline is not None else []
        lines += [f"  cancelled before callback {self.cancel}"] if self.cancel is not None else []
        return "\n".join([*lines, f"  {self.body}", *(f"  {hook}" for hook in self.hooks)])

    @property
    def is_steady(self) -> bool:
        """True if no other order of steps could change what comes of it."""
        deeds = {deed for hook in self.hooks for _, named in hook.acts for deed in named}
        groups = {DEEDS[deed].group for deed in deeds if deed in DEEDS}
        forked = {deed for deed in deeds if deed in NEXT_DEEDS and NEXT_DEEDS[deed].forks}
        waits = {deed for deed in self.body.deeds if BODY_DEEDS[deed].group in {Group.LATER, Group.WAITS}}
        timed = self.deadline is not None or self.cancel is not None or any(hook.limited for hook in self.hooks)
        return not (timed or forked or waits or groups & {Group.LATER, Group.WAITS})

    @property
    def nests_unlimited(self) -> bool:
        """True if no hook with a timeout makes nested calls."""
        limited = [deed for hook in self.hooks if hook.limited for _, deeds in hook.acts for deed in deeds]
        return not any(deed.startswith("nested") for deed in limited)

    def without_shadows(self) -> Program:
        """The same program, where hooks in shadow mode do not exist."""
        return replace(self, hooks=tuple(hook for hook in self.hooks if not hook.shadow))


# ---------------------------------------------------------------------- drawing

_CHANGES = tuple(name for name in DEEDS if name.startswith("change "))
_OUTPUT = (Stage.WILL_REDACT_OUTPUT, Stage.WILL_VALIDATE_OUTPUT, Stage.WILL_TRANSFORM_OUTPUT)
_CLOSING = (*stages_in(Section.CLOSING), *stages_in(Section.ERROR))
_SHARES = {Group.CALM: 60, Group.LATER: 10, Group.STEERS: 3, Group.RAISES: 4, Group.RETURNS: 1, Group.WAITS: 8}


@dataclass(frozen=True)
class _Mood:
    """What the programs of one kind have in common.

    They have a deadline, or no order that counts; their hooks hang, or close, or shape the parts of a stream.
    """

    timed: bool
    steady: bool
    hangs: bool
    closing: bool
    streams: bool
    late: bool = False

    def admits(self, deed: Deed, *, is_async: bool, closing: bool = False) -> bool:
        """Return True if a hook or a body of such a program may do a deed."""
        if deed.is_async and not is_async:
            return False
        if deed.hangs:
            return closing or (self.timed and self.hangs and not self.late)
        if deed.swallows and self.hangs:
            return False
        return not (self.steady and (deed.forks or deed.group in {Group.LATER, Group.WAITS}))


def drawn(seed: int) -> Program:
    """Return the program of a seed."""
    random = Random(seed)
    timed = random.random() < 0.3
    chance = random.random()
    mood = _Mood(timed, not timed and random.random() < 0.3, random.random() < 0.5, chance < 0.15, chance > 0.75)
    body = _body(random, mood)
    if body.form in {"thread", "own task"}:  # their own end counts, even a little late: then the deadline is over
        mood = replace(mood, late=True)
    hooks = tuple(_hook(random, f"h{number}", mood) for number in range(random.randint(1, MOST_HOOKS)))
    return Program(
        seed,
        body,
        hooks,
        users=random.choice((1, 1, 2)),
        kind="stream" if mood.streams else random.choice(KINDS),
        witness=random.choice(WITNESSES),
        as_text=random.random() < 0.5,
        deadline=random.choice((0.02, 0.2, 2.0)) if timed else None,
        cancel=random.randint(1, LATEST_CANCEL) if not mood.steady and random.random() < 0.3 else None,
    )


def _body(random: Random, mood: _Mood) -> Body:
    form = random.choice(FORMS)
    wanted = {n: deed for n, deed in BODY_DEEDS.items() if mood.admits(deed, is_async=form not in IN_THREADS)}
    if form != "thread":
        wanted.pop("park", None)
    usual = ("change arguments", *["send at once"] * mood.streams, *["stubborn"] * mood.timed)
    first = [name for name in usual if name in wanted and random.random() < 0.3]
    deeds = (*first, *_some(random, wanted, random.randint(0, 3)))
    return Body(form, random.choice(EFFECTS), deeds, random.random() < 0.4)


def _hook(random: Random, name: str, mood: _Mood) -> Misbehaving:
    is_async = random.random() < 0.6
    shadow = random.random() < (0.5 if mood.steady else 0.15)
    stages = _CLOSING if mood.closing else list(Stage)
    chosen = set(random.sample(stages, random.randint(1, 3)))
    chosen |= {random.choice(_OUTPUT)} if mood.streams and random.random() < 0.5 else set()
    chosen |= {Stage.WILL_REDACT_INPUT} if random.random() < 0.1 else set()
    if mood.closing or random.random() < 0.35:
        chosen |= set(random.choice(list(RELEASE_OF.items())))
    if random.random() < 0.25:
        chosen.add(Stage.AROUND_EXECUTE)
    chosen -= {stage for acquire, stage in RELEASE_OF.items() if acquire not in chosen}
    chosen -= {Stage.AROUND_EXECUTE} if shadow else set()
    ordered = sorted(chosen or {Stage.WILL_AUTHORIZE}, key=list(Stage).index)
    return Misbehaving(
        name,
        tuple((stage, _deeds(random, stage, is_async, mood)) for stage in ordered),
        is_async=is_async,
        shadow=shadow,
        ignores=random.random() < 0.2,
        is_class=random.random() < 0.2,
        repeats=random.random() < 0.5 and not shadow,
        limited=is_async and not mood.steady and random.random() < (0.5 if mood.closing else 0.1),
        filter=random.choice((*[""] * 20, "yes", "yes", "no", "raises")),
        priority=random.randint(-3, 3),
    )


def _deeds(random: Random, stage: Stage, is_async: bool, mood: _Mood) -> Deeds:
    closing = stage in _CLOSING
    wanted = {n: deed for n, deed in DEEDS.items() if mood.admits(deed, is_async=is_async, closing=closing)}
    deeds = _some(random, wanted, random.randint(1, 3))
    if random.random() < 0.2:
        deeds = (random.choice(_CHANGES), *deeds)
    if mood.streams and stage in _OUTPUT and random.random() < 0.2:
        deeds = (random.choice(("abort", "retry_after")),)
    if random.random() < 0.3 and (powers := STAGES[stage].may & _WRITES.keys()):
        deeds = (random.choice(_WRITES[random.choice(sorted(powers, key=str))]), *deeds)
    if mood.closing and closing and is_async and random.random() < 0.5:
        deeds = (random.choice(("nested", "hang")), *deeds)
    if stage is not Stage.AROUND_EXECUTE:
        return deeds
    nexts = [name for name, deed in NEXT_DEEDS.items() if mood.admits(deed, is_async=is_async)]
    nexts += 2 * ["next twice", "next once more on an error"]
    return (*deeds, random.choice(nexts) if is_async and random.random() < 0.6 else "next")


_WRITES: dict[May, Deeds] = {
    May.INPUT: ("set input", "set input wrongly", "keep and change"),
    May.MASK: ("set masked input", "keep and change"),
    May.OUTPUT: ("set output", "mask output", "keep and change"),
    May.BIND: ("bind", "bind for the session"),
    May.REPLACE_ERROR: ("set error",),
}
"""Deeds that a stage allows: they are done more often there."""


def _some(random: Random, wanted: Mapping[str, Deed], most: int) -> Deeds:
    """Return some deeds. Few of them end the call, or no program would get far."""
    shares = {group: share for group, share in _SHARES.items() if group in {deed.group for deed in wanted.values()}}
    chosen: list[str] = []
    for _ in range(most):
        (group,) = random.choices(list(shares), list(shares.values()))
        chosen.append(random.choice([name for name, deed in wanted.items() if deed.group is group]))
        if group in {Group.STEERS, Group.RAISES, Group.RETURNS}:
            break
    return tuple(chosen)


# ---------------------------------------------------------------------- making smaller


def smaller(program: Program) -> Iterator[Program]:
    """Yield programs that lack one thing each, the largest first."""
    for place, hook in enumerate(program.hooks):
        rest = program.hooks[:place], program.hooks[place + 1 :]
        yield replace(program, hooks=(*rest[0], *rest[1]))
        for less in _less(hook):
            yield replace(program, hooks=(*rest[0], less, *rest[1]))
    yield from _plainer(program)
    for place in range(len(program.body.deeds)):
        deeds = program.body.deeds[:place] + program.body.deeds[place + 1 :]
        yield replace(program, body=replace(program.body, deeds=deeds))


def _plainer(program: Program) -> Iterator[Program]:
    plain = Program(program.seed, Body(), ())
    for name in ("users", "kind", "witness", "as_text", "deadline", "cancel"):
        if getattr(program, name) != getattr(plain, name):
            yield replace(program, **{name: getattr(plain, name)})
    if program.body.injected:
        yield replace(program, body=replace(program.body, injected=False))
    if program.body.form != "async":
        yield replace(program, body=replace(program.body, form="async"))


def _less(hook: Misbehaving) -> Iterator[Misbehaving]:
    for place, (stage, deeds) in enumerate(hook.acts):
        others = hook.acts[:place], hook.acts[place + 1 :]
        if len(hook.acts) > 1 and RELEASE_OF.get(stage) not in dict(hook.acts):
            yield replace(hook, acts=(*others[0], *others[1]))
        for number, deed in enumerate(deeds):
            if deed not in NEXT_DEEDS:
                left = (stage, deeds[:number] + deeds[number + 1 :])
                yield replace(hook, acts=(*others[0], left, *others[1]))
    for name in ("shadow", "ignores", "is_class", "repeats", "limited"):
        if getattr(hook, name):
            changes: dict[str, Any] = {name: False}
            yield replace(hook, **changes)
    if hook.filter:
        yield replace(hook, filter="")
    if hook.priority:
        yield replace(hook, priority=0)


def is_before(stage: Stage) -> bool:
    """Return True for a stage in which a refusal keeps the tool from running."""
    return STAGES[stage].section is Section.BEFORE
