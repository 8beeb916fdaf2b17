# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven over the pipe of its DevTools protocol by the standard library alone.

A `Browser` opens a `Tab` a test. Clicks and keys are the browser's own input events, so that what lies under another
element, is disabled or has no focus cannot be used by a test either.
"""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT = 60  # seconds until something that does not happen is a failure, on the slowest machine
# The protocol is spoken on descriptors 3 and 4, which subprocess cannot give a child by itself.
EXEC = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "ArrowDown": ("ArrowDown", 40, ""), "ArrowUp": ("ArrowUp", 38, ""),
        " ": ("Space", 32, " "), "a": ("KeyA", 65, "a")}
CONTROL, SHIFT = 2, 8


def find_browser():
    return next((path for path in map(shutil.which, NAMES) if path), None)


def above(fd):
    """The same end of a pipe with a number that 3 and 4 cannot overwrite."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD, 10)
    os.close(fd)
    return moved


class Browser:
    def __init__(self, program):
        self.folder = tempfile.mkdtemp()
        child_in, self.write = map(above, os.pipe())
        self.read, child_out = map(above, os.pipe())
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder}", "--no-first-run", "--disable-gpu",
                 "--no-sandbox",  # it opens our own page alone, and a sandbox is not to be had in many containers
                 "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-extensions",
                 "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--window-size=1280,900"]
        self.process = subprocess.Popen([sys.executable, "-c", EXEC, str(child_in), str(child_out), program, *flags],
                                        pass_fds=(child_in, child_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.folder})
        os.close(child_in)
        os.close(child_out)
        self.rest, self.last, self.answers, self.tabs = b"", 0, {}, {}
        self.version = self.call("Browser.getVersion")["product"]

    def close(self):
        try:
            self.call("Browser.close")
        except (OSError, AssertionError):
            self.process.kill()
        self.process.wait(WAIT)
        os.close(self.write)
        os.close(self.read)
        shutil.rmtree(self.folder, ignore_errors=True)

    def take(self, seconds):
        """One message, if there is one within that time."""
        until = time.monotonic() + seconds
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, until - time.monotonic()))[0]:
                return False
            part = os.read(self.read, 1 << 20)
            assert part, "the browser has ended"
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        if "id" in message:
            self.answers[message["id"]] = message
        elif message.get("sessionId") in self.tabs:
            self.tabs[message["sessionId"]].event(message["method"], message["params"])
        return True

    def call(self, method, session=None, **params):
        self.last += 1
        number = self.last
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + WAIT
        while number not in self.answers:
            assert self.take(until - time.monotonic()), f"{method}: no answer in {WAIT} s"
        answer = self.answers.pop(number)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def open(self, url, width=1280, height=900):
        return Tab(self, url, width, height)


class Tab:
    def __init__(self, browser, url, width, height):
        self.browser, self.requests, self.errors = browser, [], []
        context = browser.call("Target.createBrowserContext")["browserContextId"]  # nothing is kept from another tab
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.tabs[self.session] = self
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def reply_to(self, pattern, body):
        """In the server's place, to requests for addresses like this."""
        self.body = base64.b64encode(body.encode()).decode()
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])

    def event(self, method, p):
        if method == "Network.requestWillBeSent":
            self.requests.append((p["request"]["method"], p["request"]["url"]))
        elif method == "Fetch.requestPaused":
            self.call("Fetch.fulfillRequest", requestId=p["requestId"], responseCode=200, body=self.body)
        elif method == "Runtime.exceptionThrown":
            details = p["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{p['entry']['text']} {p['entry'].get('url', '')}")

    def value(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def until(self, expression, seconds=WAIT):
        """The first value of the expression that is true."""
        end = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"not in {seconds} s: {expression}; the page says: {self.value('document.body.innerText')!r}"
            self.browser.take(.02)
        return found

    def text(self, element):
        return self.value(f"document.getElementById('{element}').textContent")

    def shown(self, element):
        return self.value(f"document.getElementById('{element}').checkVisibility()")

    def focused(self):
        return self.value("document.activeElement.id")

    def click(self, element):
        """In its middle, where the element must be on top."""
        x, y, top = self.value(f"""(() => {{ const e = document.getElementById('{element}'); e.scrollIntoView({{block: "nearest"}});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            return [x, y, e.contains(document.elementFromPoint(x, y))]; }})()""")
        assert top, f"#{element} cannot be clicked at {x}, {y}"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        """Into what has the focus, as a keyboard or an input method does."""
        self.call("Input.insertText", text=text)

    def press(self, key, modifiers=0):
        code, number, text = KEYS.get(key) or (f"Key{key.upper()}", ord(key.upper()), key)
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        typed = {"text": text} if text and not modifiers & CONTROL else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if typed else "rawKeyDown", **common, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def replace(self, element, text):
        """What a field holds, by clicking it, selecting all and typing."""
        self.click(element)
        self.value(f"document.getElementById('{element}').select()")
        self.type(text)
