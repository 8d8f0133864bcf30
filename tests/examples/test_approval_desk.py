"""The approval desk over a real socket: what waits outlives its process, is decided in another, and runs once."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from examples.approval_desk.keys import VARIABLE, UnsafeKey, signing_keys
from examples.approval_desk.web import HEADERS, HERE, application
from tests.examples.approving import REFUND, ROOT, TEXT, Running, Visitor, refunds, running

POSTS = ("/sign-in", "/sign-out", "/refunds", "/decisions", "/withdrawals")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("desk")


@pytest.fixture(scope="module")
def desk(folder: Path) -> Generator[Running]:
    with running(folder) as one:
        yield one


# ---------------------------------------------------------------------- over two processes


def test_what_waits_outlives_its_process_and_runs_once_when_another_one_approves(tmp_path: Path) -> None:
    """I5, I16: the first process is killed while the call waits."""
    with running(tmp_path) as first:
        ann = Visitor(first.url, "ann")
        ann.ask()
        assert ann.flash == f"It waits for a lead: {TEXT}"
        assert "Money leaves the house: a lead looks first." in ann.page
        first.kill()
    assert refunds(tmp_path) == []
    with running(tmp_path) as second:
        lea = Visitor(second.url, "lea")
        handle = lea.handle
        assert TEXT in lea.page
        assert "129.00 €, placed 2026-03-02, to DE" in lea.page
        lea.decide("approve")
        assert lea.flash == "It ran: 2900 cents are on their way back"
        assert re.search(r"cents=2900, .* ann success lea .*2900 cents are on their way back", lea.page)
        assert refunds(tmp_path) == [("A-1001", 2900, "late", "ann")]
        lea.decide("approve", handle=handle)
        assert lea.flash == "Nothing waits under this handle."
        assert "Nothing waits." in Visitor(second.url, "ann").page
        second.kill()
    with running(tmp_path) as third:
        lea = Visitor(third.url, "lea")
        assert "2900 cents are on their way back" in lea.page, "the receipt outlives the process, too"
        lea.decide("approve", handle=handle)
        assert lea.flash == "Nothing waits under this handle."
    assert refunds(tmp_path) == [("A-1001", 2900, "late", "ann")]


def test_what_was_declined_or_changed_elsewhere_runs_not_at_all_or_as_changed(tmp_path: Path) -> None:
    """I5."""
    with running(tmp_path) as first:
        ann = Visitor(first.url, "ann")
        ann.ask()
        ann.ask(order_id="A-1002", cents="4000")
        first.kill()
    with running(tmp_path) as second:
        lea = Visitor(second.url, "lea")
        lea.decide("deny", why="<b>no</b> receipt")
        assert lea.flash == "Lea has declined: <b>no</b> receipt"
        assert "lea: <b>no</b> receipt" in lea.page
        assert "<b>no" not in lea.answer.text, "what people type is text"
        lea.decide("edit", order_id="A-1002", cents="much", reason="damaged")
        assert lea.flash.startswith("The arguments are not valid: /cents")
        lea.decide("edit", order_id="A-1002", cents="1500", reason="damaged")
        assert lea.flash == "It ran: 1500 cents are on their way back"
    assert refunds(tmp_path) == [("A-1002", 1500, "damaged", "ann")]


def test_of_two_processes_that_approve_at_once_one_runs_it(tmp_path: Path) -> None:
    """I4, I16."""
    with running(tmp_path) as one, running(tmp_path) as other:
        Visitor(one.url, "ann").ask()
        leads = [Visitor(process.url, "lea") for process in (one, other)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda lead: lead.decide("approve"), leads))
        assert sorted(lead.flash for lead in leads) == [
            "It ran: 2900 cents are on their way back",
            "Nothing waits under this handle.",
        ]
    assert refunds(tmp_path) == [("A-1001", 2900, "late", "ann")]


def test_without_the_key_that_signed_it_nothing_waits(tmp_path: Path) -> None:
    """B8: and with the new key in front of the old one it does."""
    old, new = "o" * 32, "n" * 32
    with running(tmp_path, **{VARIABLE: old}) as first:
        Visitor(first.url, "ann").ask()
        handle = Visitor(first.url, "lea").handle
    with running(tmp_path, **{VARIABLE: new}) as stranger:
        lea = Visitor(stranger.url, "lea")
        assert "Nothing waits." in lea.page
        lea.decide("approve", handle=handle)
        assert lea.flash == "Nothing waits under this handle."
    assert refunds(tmp_path) == []
    assert not (tmp_path / "signing.key").exists()
    with running(tmp_path, **{VARIABLE: f"{new}, {old}"}) as renewed:
        lea = Visitor(renewed.url, "lea")
        lea.decide("approve")
        assert lea.flash.startswith("It ran")


# ---------------------------------------------------------------------- who may do what


def test_who_asked_can_neither_approve_nor_be_taken_for_who_may(desk: Running, folder: Path) -> None:
    """B7: the page offers it only to the lead, and the gate lets nobody else."""
    ann, lea = Visitor(desk.url, "ann"), Visitor(desk.url, "lea")
    ann.ask(order_id="A-1003")
    assert "decision" not in ann.answer.text
    lea.look()
    for handle in (lea.handle, "made.up", ""):
        ann.decide("approve", handle=handle or "x")
        assert ann.flash in {"The call was denied.", "Nothing waits under this handle."}
    lea.send("/withdrawals", handle=lea.handle)
    assert lea.flash == "Nothing waits under this handle.", "it is not hers to withdraw"
    assert "A-1003" not in str(refunds(folder))
    ann.look()
    ann.send("/withdrawals", handle=ann.handle)
    assert (ann.flash, "Nothing waits." in lea.look()) == ("It is withdrawn.", True)


def test_a_form_of_another_page_or_session_is_refused_and_does_nothing(desk: Running, folder: Path) -> None:
    """B7: a token beside a cookie that no other site's request carries."""
    ann, other, nobody = Visitor(desk.url, "ann"), Visitor(desk.url, "ann"), Visitor(desk.url)
    before = ann.look(), refunds(folder)
    for path in POSTS:
        for token in ({}, {"csrf": ""}, {"csrf": other.csrf}, {"csrf": ann.csrf[:-1]}):
            answer = ann.client.post(path, data={**REFUND, **token, "person": "lea", "decision": "approve"})
            assert (answer.status_code, "refused" in answer.text) == (403, True), path
        without_cookie = httpx.post(f"{desk.url}{path}", data={**REFUND, "csrf": ann.csrf}, trust_env=False)
        assert without_cookie.status_code == 403
    for path in ("/refunds", "/decisions", "/withdrawals"):
        assert nobody.client.post(path, data={**REFUND, "csrf": nobody.csrf}).status_code == 403
    too_large = ann.client.post("/refunds", data={**REFUND, "csrf": ann.csrf, "reason": "x" * 20_000})
    assert too_large.status_code == 403
    assert (ann.look(), refunds(folder)) == before
    ann.ask(order_id="A-1004")  # the control: with its own token it is done
    assert ann.page != before[0]
    ann.send("/withdrawals", handle=ann.handle)


def test_without_the_comparison_of_tokens_a_foreign_form_would_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same request, and a guard that always says yes."""
    statuses = []
    with TestClient(application(tmp_path, ["k" * 32]), "http://127.0.0.1", follow_redirects=False) as client:
        found = re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)
        assert found is not None
        client.post("/sign-in", data={"csrf": found[1], "person": "ann"})
        for guarded in (True, False):
            if not guarded:
                monkeypatch.setattr("secrets.compare_digest", lambda *_: True)
            statuses.append(client.post("/refunds", data={**REFUND, "csrf": "made up"}).status_code)
    assert statuses == [403, 303]


def test_a_session_begins_anew_with_who_signs_in_and_ends_with_them(desk: Running) -> None:
    """B7: and its cookie is for this page alone."""
    visitor = Visitor(desk.url)
    before = visitor.csrf
    answer = visitor.send("/sign-in", person="lea")
    assert {"httponly", "samesite=strict", "path=/"} <= set(answer.headers["set-cookie"].lower().split("; "))
    assert visitor.csrf != before
    assert "You are Lea" in visitor.page
    visitor.send("/sign-out")
    assert "Who are you?" in visitor.page
    visitor.send("/sign-in", person="root")
    assert "Who are you?" in visitor.page
    visitor.client.cookies.set("desk", "eyJ1c2VyIjogImxlYSJ9.forged.signature", domain="127.0.0.1")
    assert visitor.client.get("/news").status_code == 401


# ---------------------------------------------------------------------- the page


def pages(url: str) -> list[tuple[str, httpx.Response]]:
    """Every page that there is, with something on it."""
    nobody, ann, lea = Visitor(url), Visitor(url, "ann"), Visitor(url, "lea")
    ann.ask(order_id="A-1002")
    flash = ann.answer
    lea.look()
    refused = ann.client.post("/refunds")
    news = lea.client.get("/news")
    found = [("sign in", nobody.answer), ("clerk", flash), ("lead", lea.answer), ("refused", refused), ("news", news)]
    ann.look()
    ann.send("/withdrawals", handle=ann.handle)
    return found


class Outline(HTMLParser):
    """What a screen reader goes by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.labels: set[str] = set()
        self.fields: list[str] = []
        self.named_by: set[str] = set()
        self.headings: list[int] = []
        self.odd: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "label":
            self.labels.add(given["for"])
        if tag in {"input", "select", "textarea"} and given.get("type") != "hidden":
            self.fields.append(given.get("id", ""))
        self.named_by |= {given[name] for name in ("aria-labelledby", "aria-describedby") if name in given}
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        inline = [name for name in given if name == "style" or name.startswith("on")]
        if inline or tag == "style" or (tag == "script" and not given.get("src", "").startswith("/static/")):
            self.odd.append(self.get_starttag_text() or tag)


def test_every_page_is_fenced_in_and_has_nothing_inline_or_from_elsewhere(desk: Running) -> None:
    """B10: a Content-Security-Policy without exceptions, and pages that need none."""
    for name, answer in pages(desk.url):
        assert {key: answer.headers[key] for key in HEADERS} == HEADERS, name
        assert "unsafe" not in HEADERS["content-security-policy"]
        assert Outline(answer.text).odd == [], name
        assert re.findall(r"(?:https?:)?//[\w.]+", answer.text) == [], name
    assert httpx.get(desk.url, headers={"Host": "elsewhere.example"}, trust_env=False).status_code == 400


def test_what_the_page_loads_comes_from_this_checkout_and_names_no_other_place(desk: Running) -> None:
    """The one script is the registry's, unchanged, with its licence beside it."""
    script = (HERE / "static" / "htmx.min.js").read_bytes()
    note = (HERE / "static" / "htmx.LICENSE.txt").read_text("utf-8")
    assert hashlib.sha256(script).hexdigest() in note
    assert "Zero-Clause BSD" in note
    for file in (HERE / "static").iterdir():
        served = httpx.get(f"{desk.url}/static/{file.name}", trust_env=False)
        assert served.content == file.read_bytes()
        named = set(re.findall(r"https?://[\w./]+", file.read_text("utf-8")))
        assert named <= {"http://www.w3.org/2000/svg"}, file.name


def test_every_page_can_be_read_and_used_without_seeing_it(desk: Running) -> None:
    """One first heading, no level skipped, a label for every field, ids that are one thing's and lead somewhere."""
    for name, answer in pages(desk.url):
        if name == "news":
            continue
        page = Outline(answer.text)
        assert page.headings.count(1) == 1, name
        assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False)), name
        assert sorted(set(page.ids)) == sorted(page.ids), name
        assert set(page.fields) <= page.labels, name
        assert page.named_by <= set(page.ids), name
        assert '<html lang="en">' in answer.text
        assert 'name="viewport" content="width=device-width, initial-scale=1"' in answer.text


def test_it_serves_this_machine_alone(desk: Running) -> None:
    """``make example-approvals``: nobody is authenticated here."""
    assert desk.url.startswith("http://127.0.0.1:")
    assert re.search(r"^example-approvals:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


# ---------------------------------------------------------------------- keys


def test_a_key_of_its_own_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """B7: also when many processes begin at once."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: signing_keys(tmp_path, {})[0], range(32)))
    assert (len(set(found)), len(found[0])) == (1, 64)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    """B7."""
    signing_keys(tmp_path, {})
    (tmp_path / "signing.key").chmod(0o640)
    with pytest.raises(UnsafeKey, match="may be read by others"):
        signing_keys(tmp_path, {})
    with pytest.raises(AssertionError, match="may be read by others"), running(tmp_path):
        pass


def test_keys_of_the_environment_come_first_and_no_file_is_made(tmp_path: Path) -> None:
    """A service has its secrets from there."""
    assert signing_keys(tmp_path, {VARIABLE: " new-key-new-key , old-key-old-key,"}) == [
        "new-key-new-key",
        "old-key-old-key",
    ]
    assert list(tmp_path.iterdir()) == []
