"""Chromium without a screen, over its debugging pipe: messages of the DevTools protocol, each with a NUL at its end.  No
library: a test needs a dozen commands."""
import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

from procs import SLOW, die_with_us

PROGRAM = shutil.which("chromium")
TOOK = 60  # seconds that a command may take on a loaded machine


class Browser:
    def __init__(self, folder):
        assert PROGRAM, "no chromium: tests/tools/deps.sh test"
        to_read, self.to = os.pipe()
        self.source, to_write = os.pipe()

        def pipes():
            die_with_us()
            # the program has them as 3 and 4, whatever numbers they have here
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)
        with open(folder / "chromium.log", "wb") as log:
            self.p = subprocess.Popen(
                [PROGRAM, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
                 "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
                 "--disable-component-update", f"--user-data-dir={folder}/chromium"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False, preexec_fn=pipes)
        os.close(to_read)
        os.close(to_write)
        self.number, self.pending, self.session, self.log = 0, b"", None, []

    @contextlib.contextmanager
    def tab(self):
        """One that shares neither keys nor connections with those before it."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for what in "Page", "Runtime", "Log":
            self.call(f"{what}.enable")
        self.log.clear()
        self.view(1400)
        try:
            yield self
        finally:
            self.session = None
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self):
        self.p.kill()
        self.p.wait()
        os.close(self.to)
        os.close(self.source)

    def message(self):
        end = time.monotonic() + TOOK * SLOW
        while b"\0" not in self.pending:
            assert select.select([self.source], [], [], max(0, end - time.monotonic()))[0], "Chromium does not answer"
            got = os.read(self.source, 1 << 20)
            assert got, "Chromium has ended"
            self.pending += got
        one, self.pending = self.pending.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.number += 1
        text = json.dumps({"id": self.number, "method": method, "params": params,
                           **({"sessionId": self.session} if self.session else {})}).encode() + b"\0"
        while text:
            text = text[os.write(self.to, text):]
        while True:
            m = self.message()
            if m.get("id") == self.number:
                assert "error" not in m, f"{method}: {m['error']}"
                return m["result"]
            if m.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.log.append(m["params"])

    def run(self, code):
        """The value of an expression in the page; a promise is waited for."""
        r = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r["exceptionDetails"]
        return r["result"].get("value")

    def show(self, url):
        self.call("Page.navigate", url=url)

    def view(self, width, height=900, dark=False, calm=True):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"}])

    def picture(self, path):
        height = self.run("document.documentElement.scrollHeight")
        width = self.run("innerWidth")
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": min(height, 4000), "scale": 1})
        path.write_bytes(base64.b64decode(shot["data"]))

    def key(self, key, code=None):
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key,
                      **({"text": key} if len(key) == 1 and kind == "keyDown" else {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
                      windowsVirtualKeyCode={"Tab": 9, "Enter": 13, "Escape": 27}.get(key, ord(key[0])))
