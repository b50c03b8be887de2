"""A real browser for tests: Chromium without a window, driven over a pipe by its own protocol."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
    "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--disable-dev-shm-usage",
]  # fmt: skip
LAUNCH = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, fd in zip((3, 4), ours):
    os.dup2(fd, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page. Messages are JSON, ended by a zero byte, on the file descriptors 3 and 4 of Chromium."""

    def __init__(self, profile):
        asks, self.write = os.pipe()
        self.read, answers = os.pipe()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LAUNCH,
                str(asks),
                str(answers),
                CHROMIUM,
                *FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(asks, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(asks)
        os.close(answers)
        self.buffer, self.count, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        while b"\0" not in self.buffer:
            part = os.read(self.read, 1 << 20)
            if not part:
                raise RuntimeError("chromium went away")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, *, width=1280, height=900, dark=False):
        """Load a local file and wait until its page says that it is ready."""
        self.events.clear()
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        ready = "document.documentElement?.dataset.ready === 'yes'"
        self.wait(f"{ready} && document.querySelector('.plot .line')")

    def wait(self, expression, seconds=20):
        deadline = time.monotonic() + seconds
        while not self.eval(f"Boolean({expression})"):
            if time.monotonic() > deadline:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def eval(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def click(self, selector):
        """Click with the mouse in the middle of an element."""
        self.eval(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        x, y = self.eval(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def shot(self, path: Path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path):
        """Print as a reader would, on A4."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        found = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        path.write_bytes(base64.b64decode(found["data"]))

    def seen(self, *methods):
        return [event["params"] for event in self.events if event.get("method") in methods]

    def close(self):
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.read)
        os.close(self.write)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()
