# SPDX-License-Identifier: Apache-2.0
"""The page of `saturate serve`, used as people use it, in Chromium: usage: page_test.py PATH_OF_SATURATE [CASE...]

Skipped (77) where there is no Chromium, or the program has no server.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from browser import CONTROL, SHIFT, WAIT, Browser, find_browser

PROGRAM = os.path.abspath(sys.argv[1])
COMMON = {"model.d_model": 32, "model.heads": 2, "model.ffn": 64, "model.decoder_layers": 1, "batch.target_tokens": 512,
          "validate.every_steps": 0, "train.device": "cpu"}
KEY = "a-key-of-some-length"


def train(folder, *args, **settings):
    line = [PROGRAM, "train", "--out", folder, *args]
    for key, value in {**COMMON, **settings}.items():
        line += ["--set", f"{key}={value}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_models(base):
    data = f"{base}/data"
    subprocess.run([PROGRAM, "quickstart-data", "--out", data, "--pairs", "600", "--held-out", "50"], check=True, capture_output=True)
    train(f"{base}/mt", "--train", f"{data}/train.en", f"{data}/train.pt",
          **{"model.preset": "tiny", "model.encoder_layers": 1, "data.vocab_size": 200, "validate.metric": "loss", "optimizer.lr": 0.003,
             "train.max_steps": 60})
    draw = random.Random(1)
    with open(f"{base}/text", "w", encoding="utf8") as file:
        for _ in range(300):
            file.write(" ".join(draw.choices(["one", "two", "three", "four"], k=40)) + " ")
    # Large enough for a second or more of 2,000 tokens, in which a test can act.
    train(f"{base}/lm", "--train", f"{base}/text", "--preset", "llama-110m",
          **{"model.d_model": 256, "model.ffn": 1024, "model.decoder_layers": 3, "model.kv_heads": 2, "data.tokenizer_type": "byte", "data.max_length": 2048, "batch.target_tokens": 4096, "train.max_steps": 2})


class Server:
    def __init__(self, *args):
        self.process = subprocess.Popen([PROGRAM, "serve", "--device", "cpu", "--port", "0", *args], stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"listening on (http://\S+:\d+)", line):
                break
        else:
            raise AssertionError("".join(said))
        self.url = found[1] + "/"
        self.reader = threading.Thread(target=self.process.stderr.read)
        self.reader.start()

    def ask(self, path, body=None, key=None):
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, headers)
        try:
            with urllib.request.urlopen(request, timeout=WAIT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def running(self):
        with urllib.request.urlopen(self.url + "metrics", timeout=WAIT) as answer:
            return sum(float(n) for n in re.findall(r'^saturate_running\{model="lm"\} (\S+)', answer.read().decode(), re.M))

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(WAIT)
        self.reader.join(WAIT)
        self.process.stderr.close()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.base)
        make_models(cls.base)
        cls.models = ["--model", f"mt={cls.base}/mt", "--model", f"lm={cls.base}/lm", "--beam", "2"]
        cls.server = Server(*cls.models, "--max-body", "4KiB")
        cls.addClassCleanup(cls.server.end)
        cls.browser = Browser(find_browser())
        cls.addClassCleanup(cls.browser.close)

    def open(self, server=None, ready=True, **size):
        tab = self.browser.open((server or self.server).url, **size)
        self.addCleanup(self.check_requests, tab, (server or self.server).url)
        if ready:
            tab.until("document.getElementById('model').length == 2 && document.activeElement.id == 'text'")
        return tab

    def check_requests(self, tab, url):
        """Of every test: the page asks its own server and no other, and only for what it needs."""
        known = {"", "v1/models", "v1/translate", "v1/completions", "v1/chat/completions"}
        self.assertEqual([r for r in tab.requests if not r[1].startswith(url) or r[1][len(url):] not in known], [])

    def language_model(self, tab, tokens=100, temperature=0):
        tab.value("document.getElementById('model').focus()")
        tab.press("ArrowDown")
        tab.until("document.getElementById('model').value == 'lm'")
        tab.replace("tokens", str(tokens))
        tab.replace("temperature", str(temperature))

    def done(self, tab):
        """What the page says when it is ready again."""
        tab.until("!document.getElementById('go').disabled && document.getElementById('note').textContent.length > 1")
        return tab.text("note"), tab.value("document.getElementById('note').className") == "wrong"

    def succeeded(self, tab):
        said, wrong = self.done(tab)
        self.assertRegex(said, r"^\d+\.\d\d s$")
        self.assertFalse(wrong)
        self.assertEqual(tab.errors, [])
        return tab.text("result")

    def test_translates_what_is_typed(self):
        tab = self.open()
        self.assertEqual([tab.text(i) for i in ("go", "from", "to")], ["Translate", "Text (en), one sentence a line", "Translation (pt)"])
        self.assertFalse(tab.shown("sampling"))
        lines = ["It is seven.", "", "a red house <b>&amp;", "Olá 東京"]
        tab.click("text")
        tab.type("\n".join(lines))
        tab.click("go")
        found = self.succeeded(tab).split("\n")
        texts = [line for line in lines if line]
        expected = [t["text"] for t in self.server.ask("v1/translate", {"model": "mt", "texts": texts})["translations"]]
        self.assertEqual(found, [expected[0], "", *expected[1:]])
        self.assertNotEqual(expected[0], expected[1])
        self.assertTrue(expected[0])

    def test_nothing_typed_asks_nothing(self):
        tab = self.open()
        tab.type("  \n")
        tab.click("go")
        self.assertEqual(self.succeeded(tab), "")
        self.assertNotIn("POST", [method for method, _ in tab.requests])

    def test_a_continuation_appears_as_it_is_made(self):
        tab = self.open()
        self.language_model(tab, tokens=1900)
        self.assertEqual(tab.text("go"), "Continue")
        self.assertTrue(tab.shown("sampling"))
        tab.value("""window.seen = []; new MutationObserver(() => seen.push([document.getElementById('result').textContent.length,
            document.getElementById('go').disabled && document.getElementById('halt').checkVisibility()]))
            .observe(document.getElementById('result'), {childList: true, characterData: true, subtree: true})""")
        tab.click("text")
        tab.type("one two")
        tab.click("go")
        found = self.succeeded(tab)
        body = {"model": "lm", "prompt": "one two", "max_tokens": 1900, "temperature": 0}
        self.assertEqual(found, self.server.ask("v1/completions", body)["choices"][0]["text"])
        seen = tab.value("seen")
        self.assertGreater(len(seen), 1, "the text came at once")
        self.assertTrue(seen[0][1], "no Stop while the text grows")
        self.assertFalse(tab.shown("halt"))

    def test_a_chat_is_another_prompt(self):
        tab = self.open()
        self.language_model(tab, tokens=40)
        tab.click("chat")
        tab.click("text")
        tab.type("two")
        tab.click("go")
        body = {"model": "lm", "messages": [{"role": "user", "content": "two"}], "max_tokens": 40, "temperature": 0}
        self.assertEqual(self.succeeded(tab), self.server.ask("v1/chat/completions", body)["choices"][0]["message"]["content"])
        self.assertIn(("POST", self.server.url + "v1/chat/completions"), tab.requests)

    def test_stop_ends_it_here_and_in_the_server(self):
        tab = self.open()
        self.language_model(tab, tokens=2000)
        tab.click("text")
        tab.type("one")
        tab.click("go")
        tab.until("document.getElementById('result').textContent.length > 3")
        tab.click("halt")
        self.assertEqual(self.done(tab), ("Stopped.", False))
        self.assertFalse(tab.shown("halt"))
        self.assertLess(len(tab.text("result")), 2000)
        for _ in range(WAIT * 10):
            if not self.server.running():
                break
            tab.browser.take(.1)
        self.assertEqual(self.server.running(), 0)
        self.assertEqual(tab.errors, [])

    def test_the_keyboard_alone(self):
        tab = self.open()
        self.assertEqual(tab.focused(), "text")
        tab.type("It is seven.")
        tab.press("Tab")
        self.assertEqual(tab.focused(), "go")
        self.assertNotEqual(tab.value("getComputedStyle(document.activeElement).outlineStyle"), "none", "the focus is not seen")
        tab.press("Enter")
        first = self.succeeded(tab)
        self.assertTrue(first)
        tab.press("Tab", SHIFT)
        tab.press("a", CONTROL)
        tab.type("It is red.")
        tab.press("Enter", CONTROL)
        tab.until(f"!document.getElementById('go').disabled && document.getElementById('result').textContent != {json.dumps(first)}")
        self.assertNotEqual(self.succeeded(tab), first)
        self.assertEqual(tab.value("document.getElementById('text').value"), "It is red.", "Enter with Control typed a line")
        # Every control of the other model, in the order of reading.
        self.language_model(tab)
        tab.value("document.getElementById('model').focus()")
        order = []
        for _ in range(5):
            tab.press("Tab")
            order.append(tab.focused())
            if order[-1] == "chat":
                tab.press(" ")
        self.assertEqual(order, ["temperature", "tokens", "chat", "text", "go"])
        self.assertTrue(tab.value("document.getElementById('chat').checked"))

    def test_controls_have_names(self):
        tab = self.open()
        tab.value("for (const e of document.querySelectorAll('[hidden]')) e.hidden = false")
        roles = {}
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]:
            if (role := node.get("role", {}).get("value")) in ("combobox", "textbox", "spinbutton", "checkbox", "button"):
                roles.setdefault(role, []).append(node["name"]["value"])
        self.assertEqual(sorted(roles["button"]), ["Stop", "Translate"])
        self.assertEqual({role: len(names) for role, names in roles.items()}, {"combobox": 1, "textbox": 2, "spinbutton": 2, "checkbox": 1, "button": 2})
        self.assertTrue(all(name.strip() for names in roles.values() for name in names), roles)

    def test_refusals_are_told_in_the_servers_words(self):
        tab = self.open()
        line = "seven " * 600
        tab.type(line)
        tab.click("go")
        said, wrong = self.done(tab)
        self.assertTrue(wrong, said)
        self.assertEqual(said, "400 Bad Request: " + self.server.ask("v1/translate", {"model": "mt", "texts": [line]})["error"]["message"])
        # It is red, and what the browser itself notes of the answer is all there is.
        self.assertNotEqual(*tab.value("['note', 'from'].map(i => getComputedStyle(document.getElementById(i)).color)"))
        self.assertEqual(len(tab.errors), 1, tab.errors)
        self.assertIn("status of 400", tab.errors[0])
        # A shorter one goes through afterwards, and the message is gone.
        tab.errors.clear()
        tab.replace("text", "It is seven.")
        tab.click("go")
        self.assertTrue(self.succeeded(tab))

    def test_a_body_that_is_too_large_is_told(self):
        tab = self.open()
        tab.type("seven " * 50000)
        tab.click("go")
        said, wrong = self.done(tab)
        self.assertTrue(wrong, said)
        self.assertRegex(said, "^413 .*4096")

    def test_a_server_that_is_gone_is_told(self):
        server = Server(*self.models)
        self.addCleanup(server.end)
        tab = self.open(server)
        tab.type("It is seven.")
        server.end()
        tab.click("go")
        said, wrong = self.done(tab)
        self.assertTrue(wrong, said)
        self.assertIn("server does not answer", said)

    def test_a_stream_that_breaks_off_is_told(self):
        server = Server(*self.models)
        self.addCleanup(server.end, signal.SIGKILL)
        tab = self.open(server)
        self.language_model(tab, tokens=2000)
        tab.click("text")
        tab.type("one")
        tab.click("go")
        tab.until("document.getElementById('result').textContent.length > 3")
        server.end(signal.SIGKILL)
        said, wrong = self.done(tab)
        self.assertTrue(wrong, said)
        self.assertIn("breaks off", said)
        self.assertGreater(len(tab.text("result")), 3, "what had come is kept")

    def test_a_stream_that_ends_early_is_told(self):
        server = Server(*self.models, "--timeout", "0.1")
        self.addCleanup(server.end)
        tab = self.open(server)
        self.language_model(tab, tokens=2000)
        tab.click("text")
        tab.type("one")
        tab.click("go")
        said, wrong = self.done(tab)
        self.assertTrue(wrong, said)
        self.assertEqual(said, "the time of this request is over")
        # By a proxy between, say, without an error.
        tab.reply_to("*/v1/completions", 'data: {"choices": [{"index": 0, "text": "so far"}]}\n\n')
        tab.click("go")
        tab.until("document.getElementById('result').textContent == 'so far'")
        self.assertEqual(self.done(tab), ("The answer breaks off.", True))

    def test_a_key_is_asked_for(self):
        with open(f"{self.base}/keys", "w", encoding="utf8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(KEY + "\n")
        server = Server(*self.models, "--keys", f"{self.base}/keys")
        self.addCleanup(server.end)
        tab = self.open(server, ready=False)
        tab.until("document.getElementById('note').className == 'wrong'")
        self.assertEqual(tab.text("note"), "This server asks for a key.")
        self.assertTrue(tab.shown("key"))
        tab.click("key")
        tab.type("a-wrong-key")
        tab.press("Enter")
        tab.until("document.getElementById('note').textContent == 'That is not a key of this server.'")
        self.assertEqual(tab.value("document.getElementById('model').length"), 0)
        tab.replace("key", KEY)
        tab.press("Tab")
        tab.until("document.getElementById('model').length == 2")
        self.assertEqual(tab.text("note"), "")
        tab.errors.clear()
        tab.click("text")
        tab.type("It is seven.")
        tab.click("go")
        expected = server.ask("v1/translate", {"model": "mt", "texts": ["It is seven."]}, KEY)["translations"][0]["text"]
        self.assertEqual(self.succeeded(tab), expected)
        self.assertEqual(tab.value("location.href + document.cookie + JSON.stringify({...localStorage, ...sessionStorage})"), server.url + "{}")

    def test_a_narrow_screen_has_no_horizontal_scroll(self):
        tab = self.open(width=320, height=640)
        fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"

        def inside():
            outside = tab.value("""[...document.querySelectorAll('select, input, textarea, button, output, label, #note')]
                .filter(e => e.checkVisibility()).filter(e => { const r = e.getBoundingClientRect(); return r.left < 0 || r.right > 320; })
                .map(e => e.id || e.textContent)""")
            self.assertEqual((tab.value(fits), outside), (True, []))

        inside()
        word = "seven" * 60
        tab.click("text")
        tab.type(word)
        tab.click("go")
        self.succeeded(tab)
        tab.value(f"document.getElementById('result').textContent = '{word}'")
        inside()
        self.language_model(tab)
        tab.value(f"document.getElementById('keyed').hidden = false; say('{word}', true)")
        inside()


if __name__ == "__main__":
    if not find_browser():
        print("skipped: no chromium on PATH; apt-get install chromium")
        sys.exit(77)
    if "libevent" in subprocess.run([PROGRAM, "serve", "--model", "none"], capture_output=True, text=True, check=False).stderr:
        print("skipped: this program was built without libevent, so it has no server")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
