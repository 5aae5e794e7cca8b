"""A headless Chromium driven over its DevTools protocol: what a page asks for, complains of, shows and does."""

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium in PATH; docs/report.md explains how to install one"
)
START_SECONDS = 120.0
"""A browser that starts on a machine that may be busy with other work."""


NO_PAGE = (
    "Inspected target navigated or closed",
    "Execution context was destroyed.",
    "Cannot find default execution context",
)
"""What the protocol answers to a command while one page takes the place of another."""


class NavigatedError(Exception):
    """The tab went to another page, or loaded its page again, while it carried out a command."""


class Page:
    """One tab. `complaints` are console messages, exceptions and refusals of the content policy; `requests` all addresses,
    and `statuses` those of all answers, also of answers that the page may not read."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.statuses: list[int] = []
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.send(f"{domain}.enable")
        self.send("Performance.enable", timeDomain="threadTicks")

    def send(self, method: str, **parameters: Any) -> Any:
        """A command of the protocol, and its answer; NavigatedError if the page went away meanwhile."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=START_SECONDS))
            if message.get("id") == number:
                if message.get("error", {}).get("message") in NO_PAGE:
                    raise NavigatedError(method)
                assert "error" not in message, message
                return message["result"]
            self._heard(message)

    def _heard(self, event: dict[str, Any]) -> None:
        match event["method"], event["params"]:
            case "Runtime.consoleAPICalled", parameters:
                self.complaints.append(str(parameters["args"]))
            case "Runtime.exceptionThrown", parameters:
                self.complaints.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded", parameters:
                self.complaints.append(parameters["entry"]["text"])
            case "Page.javascriptDialogOpening", parameters:
                self.complaints.append(f"a dialog: {parameters['message']}")
            case "Network.requestWillBeSent", parameters:
                self.requests.append(parameters["request"]["url"])
            case "Network.responseReceivedExtraInfo", parameters:
                self.statuses.append(parameters["statusCode"])

    def open(self, path: Path) -> float:
        """Seconds until the page has loaded and its script has run."""
        return self.visit(path.resolve().as_uri())

    def visit(self, url: str) -> float:
        """As `open`, by address."""
        # The page before may report errors until it is gone.
        self.send("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank'")
        self.complaints.clear()
        self.requests.clear()
        self.statuses.clear()
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && performance.timing.loadEventEnd > 0")
        return self.evaluate("(performance.timing.loadEventEnd - performance.timing.navigationStart) / 1000")

    def processor_seconds(self) -> float:
        """What the page has taken of a processor since it was opened, whatever else the machine does."""
        metrics = self.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, which must have a form in JSON."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression without effects is true, also in a page that loads itself again meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        while not self._holds(expression):
            assert time.monotonic() < deadline, (expression, self.evaluate("document.body?.innerText.slice(0, 300)"))
            time.sleep(0.02)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(expression))
        except NavigatedError:
            return False

    def click(self, selector: str) -> None:
        """Click an element, which may load another page."""
        with suppress(NavigatedError):
            self.evaluate(f"document.querySelector({selector!r}).click()")

    def press(self, key: str) -> None:
        """A key, as a person presses it."""
        code = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "ArrowUp": 38}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def prefer(self, scheme: str) -> None:
        """`dark` or `light`."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path) -> None:
        """What is on the screen, as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(folder: Path, *options: str) -> Iterator[Page]:
    """A fresh browser without network, whose profile lies in `folder`, with more options of its command line."""
    assert CHROMIUM is not None
    profile = folder / "chromium"
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        *options,
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        port = _port(profile / "DevToolsActivePort")
        address = _page_address(port)
        with connect(address, max_size=None, open_timeout=START_SECONDS) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)


def _port(path: Path) -> int:
    deadline = time.monotonic() + START_SECONDS
    while not path.is_file() or "\n" not in path.read_text():
        assert time.monotonic() < deadline, "chromium did not start"
        time.sleep(0.05)
    return int(path.read_text().split()[0])


def _page_address(port: int) -> str:
    from httpx import Client

    with Client(trust_env=False, timeout=START_SECONDS) as client:
        targets = client.get(f"http://127.0.0.1:{port}/json/list").json()
    return next(one["webSocketDebuggerUrl"] for one in targets if one["type"] == "page")
