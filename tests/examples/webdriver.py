"""A browser for tests: Chromium behind its driver, spoken to in plain HTTP (W3C WebDriver), so that no package is needed."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's name for a reference to an element
DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")
ABSENT = "" if DRIVER and CHROMIUM else "NO CHROMIUM with its driver here (Debian: chromium, chromium-driver)"


ATTEMPTS = 20
"""How often an element is looked for anew that was gone when it was reached: its page just made way for the next."""


class Stale(AssertionError):
    """An element is not in the page any more."""


class Browser:
    """One window."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver = driver
        self._session = session

    def _do(self, method: str, path: str, **body: Any) -> Any:
        sent = body if method == "POST" else None
        answer = self._driver.request(method, f"/session/{self._session}{path}", json=sent)
        value = answer.json()["value"]
        if not answer.is_success and value["error"] == "stale element reference":
            raise Stale(value["message"])
        assert answer.is_success, value["message"]
        return value

    def _at(self, css: str, method: str, what: str, **body: Any) -> Any:
        """Do something with an element; of the next page, if this one makes way for it meanwhile."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(Stale):
                return self._do(method, f"/element/{self._find(css)}/{what}", **body)
        raise Stale(f"{css}: gone each time it was found")

    def open(self, url: str) -> None:
        self._do("POST", "/url", url=url)

    def _find(self, css: str) -> str:
        found: dict[str, str] = self._do("POST", "/element", using="css selector", value=css)
        return found[ELEMENT]

    def click(self, css: str) -> None:
        self._at(css, "POST", "click")

    def type(self, css: str, text: str) -> None:
        """In the place of what was there."""
        self._at(css, "POST", "clear")
        self._at(css, "POST", "value", text=text)

    def choose(self, css: str, value: str) -> None:
        """An option of a list."""
        self.click(f"{css} option[value='{value}']")

    def press(self, key: str) -> None:
        """A key, wherever the focus is."""
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._do("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": strokes}])

    def text(self, css: str) -> str:
        found: str = self._at(css, "GET", "text")
        return found

    def run(self, script: str, *given: Any) -> Any:
        return self._do("POST", "/execute/sync", script=script, args=list(given))

    def until(self, condition: str) -> Any:
        """Wait, in the page, until an expression of JavaScript is true; it is asked anew when the page or the focus changes."""
        script = f"""
            const done = arguments[0], look = () => {{ const found = ({condition}); if (found) {{ watch.disconnect(); done(found); }} }};
            const watch = new MutationObserver(look);
            watch.observe(document, {{subtree: true, childList: true, characterData: true, attributes: true}});
            document.addEventListener("focusin", look);
            look();"""
        return self._do("POST", "/execute/async", script=script, args=[])

    def resize(self, width: int, height: int) -> None:
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``."""
        self._devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def _devtools(self, command: str, **given: Any) -> Any:
        return self._do("POST", "/goog/cdp/execute", cmd=command, params=given)

    def complaints(self) -> list[str]:
        """What stands in the console since the last time: errors, and what the Content-Security-Policy has blocked."""
        return [entry["message"] for entry in self._do("POST", "/se/log", type="browser") if entry["level"] == "SEVERE"]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._do("GET", "/screenshot")))


@contextlib.contextmanager
def browser(*, javascript: bool = True) -> Generator[Browser]:
    """A window of a browser of its own, without anything from another."""
    assert DRIVER
    assert CHROMIUM
    started = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert started.stdout is not None
    try:
        port = next(found[1] for line in started.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as driver:
            session = driver.post("/session", json={"capabilities": {"alwaysMatch": _wanted(javascript)}}).json()[
                "value"
            ]
            assert "sessionId" in session, session
            try:
                yield Browser(driver, session["sessionId"])
            finally:
                driver.delete(f"/session/{session['sessionId']}")
    finally:
        started.terminate()
        started.communicate()


def _wanted(javascript: bool) -> dict[str, Any]:
    arguments = ["--headless=new", "--window-size=1280,900", "--disable-dev-shm-usage", "--hide-scrollbars"]
    if os.geteuid() == 0:  # its sandbox does not work for root, as in containers
        arguments.append("--no-sandbox")
    options: dict[str, Any] = {"binary": CHROMIUM, "args": arguments}
    if not javascript:
        options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
    return {
        "browserName": "chrome",
        "goog:chromeOptions": options,
        "goog:loggingPrefs": {"browser": "ALL"},
        "timeouts": {"script": 30_000, "implicit": 5_000},
    }
