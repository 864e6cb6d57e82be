#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""api.py HEADERS FOLDER: writes the reference of the API, FOLDER/*.md, from the headers of the folder HEADERS: each declaration
with the comment above it. Declarations without an empty line between them share a comment. Names each declaration that has no
comment, and ends with 1 then. The build calls it."""
import pathlib
import re
import sys

FIRST = ["world", "status", "tensor", "buffer", "op", "trace", "nn", "tp_overlap", "data_parallel", "optimizer", "data", "checkpoint"]


class Entry:
    """Declarations that share a comment."""

    def __init__(self, comment):
        self.comment, self.code, self.names = comment, [], []


def comment_text(lines):
    """The lines of a comment without what makes it one."""
    text = [re.sub(r"\s*\*/$", "", line) for line in lines]
    text = [re.sub(r"^\s*(/\*|\*) ?", "", line) for line in text]
    while text and not text[0]:
        del text[0]
    while text and not text[-1]:
        del text[-1]
    return text


def take_comment(lines, at):
    end = at
    while "*/" not in lines[end]:
        end += 1
    return comment_text(lines[at : end + 1]), end + 1


def take_code(lines, at):
    """A declaration, or a macro, from its first line to its last."""
    begin, depth = at, 0
    while True:
        line = re.sub(r"/\*.*?\*/", "", lines[at])
        depth += line.count("{") - line.count("}")
        at += 1
        if lines[begin].startswith("#"):
            if not lines[at - 1].endswith("\\"):
                return lines[begin:at], at
        elif depth == 0 and re.search(r"[;}]\s*(/\*.*)?$", line):
            return lines[begin:at], at


def name_of(code):
    """What is declared, or None for what is no declaration of ours."""
    text = re.sub(r"/\*.*?\*/", "", " ".join(code), flags=re.S)
    for pattern in (r"^#define (LAP_\w+)", r"^typedef .*\(\*(lap_\w+)\)\(", r"^typedef .*?\b(lap_\w+_t);\s*$",
                    r"^(?:LAP_API|static inline) [^(]*?\b(lap_\w+)\(", r"^(enum) \{"):
        found = re.search(pattern, text)
        if found:
            return found.group(1)
    return None


def shown(code):
    """A declaration as a page shows it."""
    text = "\n".join(code)
    if text.startswith("static inline"):
        text = text[: text.index("\n{")] + ";"
    if text.startswith("LAP_API "):
        text = text.replace("LAP_API ", "", 1).replace("\n" + " " * len("LAP_API "), "\n")
    if re.match(r"#define \w+_INIT ", text):
        return text.split()[0] + " " + text.split()[1] + " {...}"
    return re.sub(r" +\\$", r" \\", text, flags=re.M)


def parse(path):
    """The comment of a file, and its entries; a string among them is the title of a section."""
    lines = path.read_text().split("\n")
    private = set(re.findall(r"#undef (\w+)", "\n".join(lines))) | {"LAP_%s_H" % path.stem.upper()}
    about, at = take_comment(lines, 1)
    entries, entry, comment = [], None, None
    while at < len(lines):
        line = lines[at]
        section = re.match(r"/\* -+ (.*?) -+ \*/$", line)
        if section:
            entries.append(section.group(1))
            at += 1
        elif line.startswith("/*"):
            comment, at = take_comment(lines, at)
            entry = None
        elif not line or line.startswith(("#i", "#e", "#u", "LAP_BEGIN", "LAP_END", "struct CU", "struct nccl")):
            entry, comment = (None, None) if not line else (entry, comment)
            at += 1
        else:
            code, at = take_code(lines, at)
            name = name_of(code)
            if name is None:
                sys.exit("api: %s: what does this declare? %s" % (path.name, code[0]))
            if name in private:
                continue
            if entry is None:
                own = re.search(r"/\* (.*) \*/$", code[-1]) if code[0].startswith("#") else None
                entry = Entry(comment or (comment_text([own.group(0)]) if own else None))
                entries.append(entry)
            entry.code.append(shown(code))
            entry.names += [name] if name != "enum" and name not in entry.names else []
    return about, entries


def title_of(entry):
    return ", ".join(entry.names)


def prose(text, links, own):
    """Words of a comment: those that are names become code, and lead to where they are declared."""

    def name(found):
        word = found.group(0)
        return "[`%s`](%s)" % (word, links[word]) if word in links and word not in own else "`%s`" % word

    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*<])", r"\\\1", parts[i])
        parts[i] = re.sub(r"\b(lap_\w+|LAP_\w*[A-Z0-9])\b(?!\.h)", name, parts[i])
    return "".join(parts)


def markdown(comment, links, own=()):
    """A comment as paragraphs, which end with a sentence at the end of a line, and literal blocks, which are indented."""
    out, block, literal = [], [], False
    for line in comment + [""]:
        indented = line.startswith("  ")
        if block and (not line or indented != literal):
            out += ["```"] + block + ["```"] if literal else [prose(" ".join(block), links, own)]
            out.append("")
            block = []
        if line:
            literal = indented
            block.append(line)
        if block and not literal and line.endswith("."):
            out += [prose(" ".join(block), links, own), ""]
            block = []
    return out


def page(path, about, entries, links):
    out = ["# lap/%s" % path.name, ""]
    out += markdown(about, links)
    level = "### " if any(isinstance(entry, str) for entry in entries) else "## "
    for entry in entries:
        if isinstance(entry, str):
            out += ["## " + entry[0].upper() + entry[1:], ""]
            continue
        out += [level + title_of(entry), "", "```c"] + entry.code + ["```", ""]
        out += markdown(entry.comment, links, entry.names)
    return "\n".join(out).rstrip("\n") + "\n"


def index(headers, links):
    out = ["# Reference of the API", "",
           "Every declaration of the headers in `include/lap`, with its comment: the text is the headers', which are the only source.",
           "`#include <lap/lap.h>` includes all but `lap_cuda.h` and `lap_mpi.h`.", ""]
    for path, (about, entries) in headers.items():
        names = [name for entry in entries if isinstance(entry, Entry) for name in entry.names]
        if names:
            out += ["## [lap/%s](%s.md)" % (path.name, path.stem), ""] + [markdown(about, links)[0], ""]
            out += [", ".join("[`%s`](%s)" % (name, links[name]) for name in names), ""]
    return "\n".join(out).rstrip("\n") + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, folder = (pathlib.Path(argument) for argument in sys.argv[1:])
    order = sorted(source.glob("*.h"), key=lambda p: (FIRST.index(p.stem) if p.stem in FIRST else len(FIRST), p.stem))
    headers = {path: parse(path) for path in order}
    links, bare = {}, []
    for path, (_, entries) in headers.items():
        for entry in (entry for entry in entries if isinstance(entry, Entry)):
            slug = re.sub(r"[^\w\- ]", "", title_of(entry)).replace(" ", "-").lower()
            links.update({name: "%s.md#%s" % (path.stem, slug) for name in entry.names})
            if not entry.comment:
                bare.append("api: lap/%s: %s has no comment above it" % (path.name, title_of(entry) or entry.code[0].split("\n")[0]))
    if bare:
        sys.exit("\n".join(bare))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for path, (about, entries) in headers.items():
        if entries:
            (folder / (path.stem + ".md")).write_text(page(path, about, entries, links))
    (folder / "README.md").write_text(index(headers, links))


main()
