#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every operation's header says what a caller must know. Exits 1 and names each gap.

A launch function `void f(const Context&, const XArgs&)` in a header of src/kernels, and an operation `f(Tape&, ...)`
in one of src/ops, must say: Shapes, Types, Stream, Order (determinism), Errors, Cost, Source. What counts as said:
the comment above the function, the comments above the Args and Spec structs it takes (and above those they contain),
and the opening comment of the header. Headers of src/ops may name the kernel's header in a field `Kernel`, which then
speaks for all but Shapes and Errors.
Not contracts: *_impl.h, and what lies in a namespace inside saturate::kernels (parts of one implementation).
"""
import os
import re
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")
FIELDS = ("Shapes", "Types", "Stream", "Order", "Errors", "Cost", "Source")
OF_THE_KERNEL = ("Types", "Stream", "Order", "Cost", "Source")
FIELD = re.compile(r"(?:^// |\. )(Shapes|Types|Stream|Order|Errors|Cost|Source)(?::|  )", re.M)
KERNEL = re.compile(r"^// Kernel +(\S+\.h)", re.M)
STRUCT = re.compile(r"^((?://[^\n]*\n)*)struct (\w+) \{\n(.*?)^\};", re.M | re.S)
OPENING = re.compile(r"\A// SPDX[^\n]*\n((?://[^\n]*\n)*)")
DECLARATION = re.compile(r"^((?://[^\n]*\n)*)((?:\w[\w:<>]* )+?)(\w+)\(((?:const Context&|Tape&)[^;]*?)\);", re.M | re.S)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{|^\}  // namespace", re.M)


def read(path):
    with open(path, encoding="utf8") as file:
        return file.read()


def headers(layer):
    for folder, _, names in os.walk(os.path.join(SOURCE, layer)):
        for name in sorted(names):
            if name.endswith(".h") and not name.endswith(("_impl.h", "_test.h")) and "/testing" not in folder:
                yield os.path.join(folder, name)


def said(text):
    return set(FIELD.findall(text))


def namespace_at(text, position):
    open_ones = []
    for match in NAMESPACE.finditer(text, 0, position):
        if match.group(1):
            open_ones.append(match.group(1))
        elif open_ones:
            open_ones.pop()
    return "::".join(open_ones)


def contracts_of_structs():
    """By name: the fields that its comment says, with those of the structs among its members."""
    own, members = {}, {}
    for layer in ("kernels", "ops"):
        for path in headers(layer):
            text = read(path)
            opening = said(OPENING.match(text).group(1))
            for comment, name, body in STRUCT.findall(text):
                own[name] = said(comment) | opening
                members[name] = re.findall(r"^  (\w+) \w+(?: = \{\})?;", body, re.M)
    complete = {}
    for name in own:
        seen, todo = set(), [name]
        while todo:
            one = todo.pop()
            if one in own and one not in seen:
                seen.add(one)
                todo += members[one]
        complete[name] = set().union(*(own[one] for one in seen))
    return complete


def operations(layer, structs):
    """(header, function, fields that are said, header named as Kernel)."""
    for path in headers(layer):
        text = read(path)
        opening = OPENING.match(text).group(1)
        for match in DECLARATION.finditer(text):
            comment, result, name, parameters = match.groups()
            if namespace_at(text, match.start()) != "saturate::" + layer:
                continue
            launches = result.strip() == "void" or layer == "ops"
            if not launches or (layer == "kernels" and not re.search(r"const \w+Args&", parameters)):
                continue
            fields = said(comment) | said(opening)
            for struct in re.findall(r"\w+(?:Args|Spec|Arrays|Parameters)\b", parameters):
                fields |= structs.get(struct, set())
            kernel = KERNEL.search(comment) or KERNEL.search(opening)
            yield os.path.relpath(path, SOURCE), name, fields, kernel and kernel.group(1)


def main():
    structs = contracts_of_structs()
    gaps, count, files = [], 0, set()
    for layer in ("kernels", "ops"):
        for path, name, fields, kernel in operations(layer, structs):
            count += 1
            files.add(path)
            if kernel:
                if os.path.isfile(os.path.join(SOURCE, kernel)):
                    fields |= set(OF_THE_KERNEL)
                else:
                    gaps.append(f"src/{path}: {name} names {kernel}, which does not exist")
            missing = [field for field in FIELDS if field not in fields]
            if missing:
                gaps.append(f"src/{path}: {name} does not say {', '.join(missing)}")
    for gap in gaps:
        print(gap)
    print(f"{count} operations in {len(files)} headers, {len(gaps)} gaps")
    # Far fewer than there are: the pattern no longer finds them.
    return 1 if gaps or count < 40 else 0


if __name__ == "__main__":
    sys.exit(main())
