# SPDX-License-Identifier: Apache-2.0
"""Both READMEs hold the same commands, numbers and links; and what compares them sees each kind of difference."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "readme_pair.py"


class Readme(unittest.TestCase):
    def compare(self, *files):
        done = subprocess.run([sys.executable, TOOL, *files], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_english_and_portuguese_say_the_same(self):
        self.assertEqual(self.compare(), (0, ""))

    def test_differences_are_seen(self):
        other = (ROOT / "README.pt-BR.md").read_text(encoding="utf8")
        ratio = re.search(r"\d,\d\d \|", other)[0]  # of a table, whatever was measured last
        for was, now, says in [("--preset gpt2-124m --out", "--preset gpt2-355m --out", "commands: "),
                               ("saturate check ", "saturate chekc ", "commands: "), ("--print-config`", "--show`", "code: "),
                               (ratio, "9,99 |", "rows of tables: "), (" 345.", " 346.", "numbers: "),
                               ("docs/glossary.md", "docs/adr", "links: "), ("## Python", "### Python", "levels of headings: "),
                               ("(README.md)", "(docs)", "has no link to README.md")]:
            self.assertIn(was, other)
            with tempfile.TemporaryDirectory() as folder:
                changed = pathlib.Path(folder) / "README.pt-BR.md"
                changed.write_text(other.replace(was, now, 1), encoding="utf8")
                code, said = self.compare(ROOT / "README.md", changed)
                self.assertEqual(code, 1, was)
                self.assertIn(says, said)


if __name__ == "__main__":
    unittest.main()
