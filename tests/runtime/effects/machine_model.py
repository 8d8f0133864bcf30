"""What a gate with a ledger and waiting calls promises, in plain Python: what may run, and what everybody is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from callgate import Approval, Approve, Deny, Edit, Respond, User
from callgate.providers.principal import ANONYMOUS

Seen: TypeAlias = tuple[Any, ...]
"""What a caller was told: ``("raised", type, code)`` or ``(outcome, code, output, replayed)``."""

NOT_PENDING: Seen = ("raised", "NotPending", "not_pending")
INVALID: Seen = ("raised", "Invalid", "invalid_arguments")
SUSPENDED: Seen = ("suspended", "suspended", None, False)
CONFLICT: Seen = ("conflict", "conflict", None, False)
PLACE, BODY = "approval", "body"

SMALL = Approval(roles={"lead"}, expires=600.0)
LARGE = Approval(roles={"lead"}, quorum=2, expires=600.0, escalate_after=300.0, escalate_to={"boss"})
BOSS = Approval(roles={"boss"}, expires=900.0)
IN_BODY = Approval(roles={"lead"}, expires=500.0)
SOMEBODY = Approval(expires=800.0)
ANSWER = 800.0  # all of these within a day: older rows of a store in memory are forgotten
WITHIN = 100.0

WITH_KEY, ONCE_A_WHILE, AGAIN, READS = {"send"}, {"post"}, {"ping"}, {"peek"}
ASKS_IN_BODY = {"draft", "fill"}


def rules_of(tool: str, arguments: Mapping[str, Any], policy: str) -> tuple[Approval, ...]:
    """Who has to approve a call."""
    if tool == "pay":
        own = () if arguments["n"] < 10 else (SMALL,) if arguments["n"] < 100 else (LARGE,)
        return (*own, BOSS) if policy == "strict" else own
    return {"send": (SMALL,), "peek": (SOMEBODY,)}.get(tool, ())


def allows(rule: Approval, person: User, requester: str, waited: float) -> bool:
    """Whether a person of the caller's tenant may approve: the rule as the documentation has it."""
    if person.id in {ANONYMOUS.id, requester}:
        return False
    late = rule.escalate_after is not None and waited >= rule.escalate_after
    wanted = {*(rule.roles or ()), *(rule.escalate_to if late else ())}
    return not rule.roles or bool(wanted & set(person.roles))


@dataclass(frozen=True)
class Ran:
    """One effect, as the tool's body recorded it."""

    tool: str
    version: str
    arguments: str
    user: str
    tenant: str


@dataclass
class Waiting:
    """A call that waits. ``signer`` is the key that sealed its row last; ``broken``: somebody changed the row."""

    tool: str
    version: str
    policy: str
    user: User
    arguments: dict[str, Any]
    place: str
    rules: tuple[Approval, ...]
    made: float
    expires: float
    request: str
    call: str
    given: str | None
    signer: str
    approvals: list[tuple[str, User, float]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    state: str = "waiting"
    broken: bool = False
    chained: bool = False  # other calls find it by an identity
    id: str = ""
    asked: dict[str, Any] | None = None  # the arguments of the caller, before an approver edited them
    more: list[tuple[Any, ...]] = field(default_factory=list)  # the keys of callers who repeated it while it waited

    def met(self, rules: tuple[Approval, ...], place: str) -> bool:
        """Whether enough different people have approved, for every rule."""
        given = [(person, waited) for where, person, waited in self.approvals if where == place]
        return all(
            len({person.id for person, waited in given if allows(rule, person, self.user.id, waited)}) >= rule.quorum
            for rule in rules
        )

    def has_passed(self, place: str) -> bool:
        """Whether the call has the decision of a place, and waits at a later one."""
        return place in self.answers or any(where == place for where, _, _ in self.approvals)

    def may_decide(self, person: User, now: float) -> bool:
        """By any of the rules; without rules, the caller alone."""
        if not self.rules:
            return person.id == self.user.id
        return any(allows(rule, person, self.user.id, now - self.made) for rule in self.rules)


@dataclass
class Entry:
    """One key of the ledger: its state, the arguments, and what a repeat is told."""

    state: str
    arguments: dict[str, Any]
    told: Seen = ()
    until: float | None = None


def text_of(arguments: Mapping[str, Any]) -> str:
    """Arguments as the body records them."""
    return json.dumps(arguments, sort_keys=True)


class Model:
    """All that has been promised so far. What happens to a call is asked of ``call`` and ``resume``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.version, self.policy = "1", "plain"
        self.keys: tuple[str, ...] = ("a",)
        self.drift = 0
        self.status: dict[tuple[str, str], str] = {}
        self.waits: list[Waiting] = []
        self.ledger: dict[tuple[Any, ...], Entry] = {}
        self.aliases: dict[
            tuple[Any, ...], tuple[tuple[Any, ...], Entry]
        ] = {}  # of callers' keys: the key, and its claim
        self.chains: dict[tuple[Any, ...], list[int]] = {}  # of identities: indices of what waits, or waited
        self.ran: list[Ran] = []
        self.requests = 0
        self.denied: set[str] = set()  # ids: a store with signed counters refuses their rows if they are put back

    def twin(self) -> Model:
        """The same again, to find out what would happen."""
        return deepcopy(self)

    # ------------------------------------------------------------------ from the top

    def call(self, tool: str, arguments: Mapping[str, Any], user: User, given: str | None, asked: Any) -> Seen:
        """A call; *asked* is its request id, or None, and its call id."""
        request, call = asked
        named = request is not None
        if not named:
            self.requests += 1
            request = f"made {self.requests}"
        first = Waiting(
            tool, self.version, self.policy, user, dict(arguments), "", (), self.now, 0.0, request, call, given, ""
        )
        return self._from_the_top(first, resumed=False, named=named)

    def _from_the_top(self, call: Waiting, *, resumed: bool, named: bool = True) -> Seen:
        status = self.status.get((call.user.id, call.user.tenant or ""), "")
        if status == "lost":
            return "denied", "lost", None, False
        if type(call.arguments["n"]) is not int:
            return "invalid", "invalid_arguments", None, False
        arguments = call.arguments
        if call.tool == "pay":
            arguments = {**arguments, "n": arguments["n"] + self.drift}
        decided = replace(call, approvals=call.approvals if resumed else [], answers=call.answers if resumed else {})
        if resumed and arguments != call.arguments:
            decided.approvals, decided.answers = [], {}
        decided.arguments, decided.asked = arguments, call.asked if resumed else arguments
        rules = rules_of(call.tool, arguments, self.policy)
        if PLACE in decided.answers:
            error, value = decided.answers[PLACE]
            return ("denied", "policy_error", None, False) if error else ("success", None, value, False)
        if rules and not decided.met(rules, PLACE):
            if not resumed and (known := self._known(call, arguments, named)) is not None:
                return known
            return self._waits(call, decided, PLACE, rules, min(rule.expires for rule in rules), resumed, named)
        if not rules and resumed and PLACE in call.answers:  # to other arguments
            return "denied", "stale", None, False
        return self._effect(call, decided, resumed=resumed, named=named)

    def _waits(
        self,
        call: Waiting,
        decided: Waiting,
        place: str,
        rules: tuple[Approval, ...],
        lasts: float,
        resumed: bool,
        named: bool,
    ) -> Seen:
        found, chains = None, self._identities(call, decided.arguments, named)
        without = list[tuple[Any, ...]]()
        for chain in chains:
            for index in self.chains.get(chain, []):
                one = self.waits[index]
                same = (one.version, one.policy) == (self.version, self.policy)
                if same and (one.place == place or one.has_passed(place)) and self.is_open(one) and one.id != call.id:
                    if one.asked != decided.asked:
                        return CONFLICT
                    found = index if found is None else found
                    break
            else:
                without.append(chain)
        for chain in without:
            self.chains.setdefault(chain, []).append(len(self.waits) if found is None else found)
        if found is not None:
            self.waits[found].chained = True
            if call.tool in WITH_KEY and (given := self._given(call)) is not None:
                self.waits[found].more.append(given)
            return SUSPENDED
        if resumed:
            self._use(call)
        waits = replace(
            deepcopy(decided),
            version=self.version,
            policy=self.policy,
            place=place,
            rules=rules,
            made=self.now,
            expires=self.now + lasts,
            signer=self.keys[0],
            state="waiting",
            id="",
            chained=bool(chains),
        )
        self.waits.append(waits)
        return SUSPENDED

    def _use(self, call: Waiting, state: str = "used") -> None:
        """It waits no more."""
        if call.id:
            kept = self.find(call.id)
            kept.state, kept.signer, kept.arguments = state, self.keys[0], call.arguments
            if state == "denied":
                self.denied.add(call.id)

    def _identities(self, call: Waiting, arguments: Mapping[str, Any], named: bool) -> list[tuple[Any, ...]]:
        """What makes a call the same as one that waits: the key of its caller, and its own, such as the ids of the call."""
        own = self._key(call, arguments, named) if call.tool in WITH_KEY or call.given is None else None
        return [one for one in (self._given(call), own) if one is not None]

    def _known(self, call: Waiting, arguments: dict[str, Any], named: bool) -> Seen | None:
        """What the ledger answers before anybody is asked; None if the effect may run."""
        key = None if call.tool in READS else self._key(call, arguments, named)
        entry = self._entry(call, key, arguments)
        if self._is_free(entry, call, arguments):
            return None
        same = entry.arguments == arguments
        chains = (self.chains.get(one, []) for one in self._identities(call, arguments, named))
        edited = any(
            one.signer in self.keys and not one.broken and (one.asked, one.arguments) == (arguments, entry.arguments)
            for chain in chains
            for one in (self.waits[index] for index in chain)
        )
        if not (same or edited):
            return CONFLICT
        unknown: Seen = ("unknown", "outcome_unknown", None, False)
        return (*entry.told[:3], True) if entry.state == "committed" else unknown

    # ------------------------------------------------------------------ the ledger

    def _key(self, call: Waiting, arguments: Mapping[str, Any], named: bool) -> tuple[Any, ...] | None:
        whose = (call.user.tenant, call.user.id, call.tool)
        if call.tool in WITH_KEY:
            return (*whose, "declared", arguments["n"])
        if call.given is not None:
            return self._given(call)
        if call.tool in ONCE_A_WHILE:
            return (*whose, "arguments", text_of(arguments))
        return (*whose, "call", call.request, call.call) if named else None

    def _given(self, call: Waiting) -> tuple[Any, ...] | None:
        return None if call.given is None else (call.user.tenant, call.user.id, call.tool, "given", call.given)

    def _is_free(self, entry: Entry, call: Waiting, arguments: Mapping[str, Any]) -> bool:
        """Whether a call may claim an effect."""
        over = entry.state == "committed" and entry.until is not None and entry.until <= self.now
        again = entry.state == "unknown" and entry.arguments == arguments and call.tool in AGAIN
        return entry.state == "no_effect" or over or again

    def _entry(self, call: Waiting, key: tuple[Any, ...] | None, arguments: dict[str, Any]) -> Entry:
        """The effect of a call, by the key of its caller or by its own; a repeat of it has both from then on."""
        given = self._given(call) if call.tool in WITH_KEY else None
        if given in self.aliases:
            of, claim = self.aliases[given]
            if self.ledger.get(of) is claim and not self._is_free(claim, call, arguments):
                return claim
        entry = Entry("no_effect", {}) if key is None else self.ledger.get(key, Entry("no_effect", {}))
        if given is not None and key is not None and entry.state == "committed" and entry.arguments == arguments:
            self.aliases[given] = key, entry
        return entry

    def _effect(self, call: Waiting, decided: Waiting, *, resumed: bool, named: bool) -> Seen:
        if call.tool in READS:
            return self._body(call, decided, Entry("read", {}), resumed=resumed, named=named)
        arguments, key = decided.arguments, self._key(call, decided.arguments, named)
        entry = self._entry(call, key, arguments)
        over = entry.until is not None and entry.until <= self.now
        same = entry.arguments == arguments
        if entry.state == "committed" and not over:
            self._use(call)
            return (*entry.told[:3], True) if same else ("conflict", "conflict", None, False)
        if entry.state == "unknown" and not (same and call.tool in AGAIN):
            return ("unknown", "outcome_unknown", None, False) if same else ("conflict", "conflict", None, False)
        self._use(call)
        entry = Entry("running", arguments)
        told = self._body(call, decided, entry, resumed=resumed, named=named)
        if key is not None:
            self.ledger[key] = entry
            for given in (self._given(call), *call.more) if call.tool in WITH_KEY else ():
                if given is not None:
                    self.aliases[given] = key, entry
        return told

    def _body(self, call: Waiting, decided: Waiting, entry: Entry, *, resumed: bool, named: bool) -> Seen:
        """What the tool does, and what its caller is told."""
        tool, how = call.tool, decided.arguments["how"]
        answer: Any = None
        if tool in ASKS_IN_BODY:
            if BODY not in decided.answers:
                entry.state = "no_effect"
                rules = (IN_BODY,) if tool == "draft" else ()
                lasts = IN_BODY.expires if rules else ANSWER
                return self._waits(call, decided, BODY, rules, lasts, resumed=False, named=named)
            error, answer = decided.answers[BODY]
            if error:
                entry.state, entry.told = "committed", ("error", "declined", None, False)
                return entry.told
        entry.state = {"abort": "no_effect", "later": "no_effect", "raise": "unknown"}.get(how, "committed")
        if entry.state != "no_effect":
            user = call.user
            self.ran.append(Ran(tool, self.version, text_of(decided.arguments), user.id, user.tenant or ""))
        output = answer if tool == "fill" else len(self.ran)
        entry.told = {
            "ok": ("success", None, output, False),
            "responds": ("success", None, -1, False),
            "tool_error": ("error", "tool_error", None, False),
            "raise": ("error", "tool_failed", None, False),
            "abort": ("denied", "denied", None, False),
            "later": ("retry_later", "retry_later", None, False),
            "bad": ("error", "invalid_output", None, False),
        }[how]
        if tool in ONCE_A_WHILE and entry.state == "committed":
            entry.until = self.now + WITHIN
        return entry.told

    # ------------------------------------------------------------------ waiting calls

    def find(self, id: str) -> Waiting:
        """A call that waits, or waited."""
        return next(one for one in self.waits if one.id == id)

    def is_open(self, waiting: Waiting) -> bool:
        """Whether it can be decided by whoever may."""
        known = waiting.signer in self.keys and not waiting.broken
        return known and waiting.state == "waiting" and waiting.expires > self.now

    def pending(self, viewer: User) -> set[str]:
        """What somebody may see."""
        mine = [one for one in self.waits if self.is_open(one) and one.user.tenant == viewer.tenant]
        return {one.id for one in mine if one.may_decide(viewer, self.now)}

    def opened(self, handle: Any, person: User) -> Waiting | None:
        """What waits under a handle, for somebody of the right tenant."""
        if not handle.whole or handle.signer not in self.keys or handle.tenant != person.tenant:
            return None
        found = self.find(handle.id)
        return found if self.is_open(found) else None

    def look(self, handle: Any, person: User) -> Seen:
        """What somebody sees who looks at one."""
        found = self.opened(handle, person)
        sees = found is not None and (person.id == found.user.id or found.may_decide(person, self.now))
        return ("saw", text_of(found.arguments)) if found is not None and sees else NOT_PENDING

    def withdraw(self, handle: Any, person: User) -> Seen:
        """The caller takes its call back."""
        found = self.opened(handle, person)
        if found is None or found.user.id != person.id:
            return NOT_PENDING
        self._use(found, "denied")
        return ("withdrawn",)

    def sweep(self) -> None:
        """What has waited too long."""
        for one in self.waits:
            if one.state == "waiting" and one.expires <= self.now and not one.broken:
                one.state, one.signer = "expired", self.keys[0] if one.signer in self.keys else one.signer

    def resume(self, handle: Any, decision: Any, person: User) -> Seen:
        """A decision."""
        found = self.opened(handle, person)
        if found is None:
            return NOT_PENDING
        if not found.may_decide(person, self.now):
            own = found.user.id == person.id
            return ("raised", "Denied", "not_an_approver") if own else NOT_PENDING
        if isinstance(decision, Deny):
            self._use(found, "denied")
            return "denied", "declined", None, False
        if (found.version, found.policy) != (self.version, self.policy):
            return "raised", "Stale", "stale"
        after = deepcopy(found)
        if (refused := self._decided(after, decision, person)) is not None:
            return refused
        if not (_is_final(after, decision) or after.met(after.rules, after.place)):
            after.signer = self.keys[0]
            self.waits[self.waits.index(found)] = after
            return SUSPENDED
        if self.status.get((after.user.id, after.user.tenant or "")) in {"gone", "other"}:
            return "denied", "no_user", None, False
        place, before = self.waits.index(found), deepcopy(found)
        if after.tool in READS or (isinstance(decision, Respond) and after.place == PLACE):
            self._use(found)
        told = self._from_the_top(after, resumed=True)
        if told[0] == "retry_later":  # put off: it waits as before the decision
            self.waits[place] = replace(before, signer=self.keys[0])
        return told

    def _decided(self, after: Waiting, decision: Approve | Edit | Respond, person: User) -> Seen | None:
        """Put a decision on a call; what is raised where it does not fit."""
        answer: tuple[str | None, Any] = (None, None)
        if isinstance(decision, Respond):
            fits = type(decision.value) is int or (after.place == BODY and after.tool == "draft")
            if decision.error is None and not fits:
                return INVALID
            answer = (decision.error, None if decision.error else decision.value)
            if _is_final(after, decision):
                after.answers[after.place] = answer
                return None
        elif after.place == BODY and after.tool == "fill":
            return "raised", "Invalid", "answer_expected"
        elif isinstance(decision, Edit):
            if type(decision.arguments["n"]) is not int:
                return INVALID
            after.arguments, after.approvals, after.answers = dict(decision.arguments), [], {}
        if after.rules:
            said = after.answers.get(after.place, answer)
            others = [one for one in after.approvals if one[0] != after.place or (said == answer and one[1] != person)]
            after.approvals = [*others, (after.place, person, self.now - after.made)]
        if after.place != PLACE:
            after.answers[after.place] = answer
        return None


def _is_final(waiting: Waiting, decision: Any) -> bool:
    """Whether one answer is enough, however many have to approve."""
    return isinstance(decision, Respond) and (waiting.place == PLACE or decision.error is not None)
