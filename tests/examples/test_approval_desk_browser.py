"""The approval desk in a real browser: with and without JavaScript, on a phone and on a desk, in the dark and by keyboard."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.examples.approving import TEXT, Visitor, refunds, running
from tests.examples.webdriver import ABSENT, Browser, browser

pytestmark = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)

TAB = "\ue004"
SIZES = {"phone": (390, 844), "desk": (1280, 900)}

CONTRASTS = """
    const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const ground = element => {
        for (; element; element = element.parentElement) {
            const found = numbers(getComputedStyle(element).backgroundColor);
            if (found.length === 3 || found[3] === 1) return found;
        }
        return [255, 255, 255];
    };
    const own = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    return [...document.querySelectorAll("body *")]
        .filter(element => own(element) && element.checkVisibility() && !["SCRIPT", "TITLE", "OPTION"].includes(element.tagName))
        .map(element => {
            const pair = [light(numbers(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
            return [(pair[0] + 0.05) / (pair[1] + 0.05), element.outerHTML.slice(0, 80)];
        })
        .filter(([ratio]) => ratio < arguments[0]);
"""
WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@contextlib.contextmanager
def visiting(url: str, person: str, *, javascript: bool = True) -> Generator[Browser]:
    """A browser in which somebody has signed in."""
    with browser(javascript=javascript) as window:
        window.open(url)
        window.click(f"button[value='{person}']")
        assert window.text("header strong") in {"Ann", "Lea"}
        yield window


def told(window: Browser, text: str) -> None:
    """Wait until the page says so; it is not loaded again, so nothing else tells."""
    window.until(f"(document.querySelector('.flash')?.textContent ?? '').trim() === {json.dumps(text)}")


def ask(window: Browser, cents: str) -> None:
    window.choose("#ask-order", "A-1001")
    window.type("#ask-cents", cents)
    window.choose("#ask-reason", "late")
    window.click("form[action='/refunds'] button")


def test_a_refund_is_asked_for_changed_by_the_lead_and_run_without_a_reload(tmp_path: Path) -> None:
    """I5, I16: over two processes, the first of which is killed; nothing is blocked, nothing complains."""
    with running(tmp_path) as first, visiting(first.url, "ann") as ann:
        ann.run("window.here = 'before'")
        ask(ann, "3900")
        told(ann, 'It waits for a lead: refund(order_id="A-1001", cents=3900, reason="late")')
        ann.until("document.activeElement.matches('.flash')")
        assert ann.run("return [window.here, location.pathname]") == ["before", "/"], "it was not loaded again"
        assert ann.complaints() == []
        first.kill()
    with running(tmp_path) as second, visiting(second.url, "lea") as lea:
        assert lea.text("article h3") == 'refund(order_id="A-1001", cents=3900, reason="late")'
        lea.click("article details:nth-of-type(1) summary")
        lea.type("#edit-1-cents", "2900")
        lea.click("button[value='edit']")
        told(lea, "It ran: 2900 cents are on their way back")
        assert "2900 cents are on their way back" in lea.text("tbody tr:first-child td[data-label='Receipt']")
        assert lea.text("tbody tr:first-child td[data-label='Approved by']") == "lea"
        assert lea.complaints() == []
    assert refunds(tmp_path) == [("A-1001", 2900, "late", "ann")]


def test_the_page_notices_by_itself_that_something_new_waits(tmp_path: Path) -> None:
    """And takes nothing from under the hands of whoever is typing: it says so, and no more."""
    with running(tmp_path) as desk, visiting(desk.url, "lea") as lea:
        assert lea.text(".news") == "0 calls wait. Look again"
        Visitor(desk.url, "ann").ask()
        lea.until("document.querySelector('.news').textContent.includes('has changed')")
        assert "Nothing waits." in lea.text("main")
        lea.click(".news a")
        assert lea.text("article h3") == TEXT
        assert lea.complaints() == []


def test_all_of_it_works_without_javascript(tmp_path: Path) -> None:
    """Plain forms and pages."""
    with running(tmp_path) as desk:
        with visiting(desk.url, "ann", javascript=False) as ann:
            ask(ann, "2900")
            assert ann.text(".flash") == f"It waits for a lead: {TEXT}"
        with visiting(desk.url, "lea", javascript=False) as lea:
            lea.click("article details:nth-of-type(2) summary")
            lea.type("#why-1", "no receipt")
            lea.click("button[value='deny']")
            assert lea.text(".flash") == "Lea has declined: no receipt"
    assert refunds(tmp_path) == []


def test_it_fits_a_phone_and_a_desk_and_can_be_read_by_day_and_by_night(tmp_path: Path) -> None:
    """Nothing is wider than the screen, every text has a contrast of 4.5 to its ground, and everything is there by keyboard."""
    with running(tmp_path) as desk:
        for person in ("ann", "lea"):
            Visitor(desk.url, "ann").ask(order_id="A-1002")
            with visiting(desk.url, person) as window:
                for scheme in ("light", "dark"):
                    window.prefer(scheme)
                    for name, size in SIZES.items():
                        window.resize(*size)
                        window.run("document.querySelectorAll('details').forEach(one => one.open = true)")
                        window.screenshot(tmp_path / f"{person}-{name}-{scheme}.png")
                        assert window.run(WIDE) == 0, (person, name, scheme)
                        assert window.run(CONTRASTS, 4.5) == [], (person, name, scheme)
                window.open(desk.url)
                window.press(TAB)
                assert window.text(":focus") == "Skip to the content"
                assert window.run("return document.activeElement.getBoundingClientRect().left >= 0"), (
                    "seen once it matters"
                )
                assert window.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_measure_of_contrast_finds_what_cannot_be_read(tmp_path: Path) -> None:
    """The control."""
    with running(tmp_path) as desk, visiting(desk.url, "lea") as window:
        window.run("document.querySelector('.empty').style.color = '#bbb'")
        assert len(window.run(CONTRASTS, 4.5)) == 1
        window.run("document.querySelector('h1').style.width = '3000px'")
        assert window.run(WIDE) > 0


def test_a_script_that_is_not_the_pages_own_does_not_run(tmp_path: Path) -> None:
    """The control of the policy: what is put into the page is blocked, and the console says so."""
    with running(tmp_path) as desk, visiting(desk.url, "lea") as window:
        window.run(
            "const s = document.createElement('script'); s.textContent = 'window.evil = 1'; document.body.append(s)"
        )
        assert window.run("return window.evil") is None
        assert any("Content Security Policy" in one for one in window.complaints())
