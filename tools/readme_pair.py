# SPDX-License-Identifier: Apache-2.0
"""README.pt-BR.md says what README.md says: the same commands, code, numbers and links, in the same sections.

usage: readme_pair.py [README.md README.pt-BR.md]. Prints what differs; exit code 1 then. Comments of commands, words and
the marks within numbers (1,016k and 1.38 are 1.016k and 1,38 in Portuguese) are each language's own.
"""
import pathlib
import re
import sys


def without_comments(block):
    lines = [re.sub(r"\s+#.*$", "", line).rstrip() for line in block.splitlines()]
    return [line for line in lines if line]


def parts(path):
    """What both must have in common: name -> list."""
    text = path.read_text(encoding="utf8")
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    code = [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose)]
    links = [target for target in re.findall(r"\]\(([^)]+)\)", prose) if not re.match(r"#|README", target)]
    plain = re.sub(r"\]\([^)]+\)|`[^`]+`", "", prose)
    number = lambda line: re.sub(r"(?<=\d)[.,](?=\d)", "", line)
    tables = [re.findall(r"\d+[kM]?", number(line)) for line in plain.splitlines() if line.startswith("|")]
    numbers = re.findall(r"\d+", number("\n".join(line for line in plain.splitlines() if not line.startswith("|"))))
    return {"commands": [line for block in blocks for line in without_comments(block)], "code": sorted(code),
            "links": sorted(links), "rows of tables": tables, "numbers": sorted(numbers),
            "levels of headings": re.findall(r"^(#+) ", prose, re.MULTILINE)}


def differences(first, second):
    one, two = parts(first), parts(second)
    for what in one:
        if one[what] == two[what]:
            continue
        for a in one[what]:
            if one[what].count(a) > two[what].count(a):
                yield f"{what}: {second.name} lacks {a}"
        for b in two[what]:
            if two[what].count(b) > one[what].count(b):
                yield f"{what}: {first.name} lacks {b}"
        if sorted(map(str, one[what])) == sorted(map(str, two[what])):
            yield f"{what}: in another order"
    for path, other in [(first, second), (second, first)]:
        if f"({other.name})" not in path.read_text(encoding="utf8"):
            yield f"{path.name} has no link to {other.name}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    paths = [pathlib.Path(p) for p in sys.argv[1:]] or [root / "README.md", root / "README.pt-BR.md"]
    found = sorted(set(differences(*paths)))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
