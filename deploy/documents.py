#!/usr/bin/env python3
"""Holds the documents against each other and against the code that cites them: every link and every citation resolves.

    deploy/documents.py         from the checkout's root; prints each dead citation, exit 0 only if there is none

A page is a Markdown file: README.md, deploy/**.md, and the catalogs Sources/*/*.docc. Looked at are:

- links between pages, and from pages to files: the file exists, and so does the heading behind a `#`;
- `<doc:Page>` in a catalog: the catalog has the page;
- the name of a Markdown file anywhere in Sources, Migrations, Tests and deploy: the repository has the file;
- `AppleFacts 3.3`: the page has the section; `Ownership, row 0a` and `note 2`: the page has the row and the note;
- requirement ids (S0-13, P5, B7, …): the page Requirements has a line for each, and each of its lines is cited;
- numbers of issues: there is no place where a reader could look them up.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(".")
# What a corpus holds is data.
UNREAD = ("Tests/Corpus/",)
OWN_NAME = "documents.py"
ENDINGS = {".swift", ".sql", ".sh", ".py", ".yml", ".yaml", ".conf", ".md", ".c", ".h", ".service", ".target", ""}
# Not a part of a fingerprint or an encoded byte.
REQUIREMENT = r'(?<![\w%.+/:-])(?:S[0-4]-\d+[a-z]?|[PBLF][1-9]\d?[a-z]?)(?!\w|-\w|:\w)'

dead = []


def report(path, line, what):
    dead.append(f"{path}:{line}: {what}")


def files():
    for top in ("Sources", "Migrations", "Tests", "deploy"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and path.suffix in ENDINGS and not str(path).startswith(UNREAD) and path.name != OWN_NAME:
                yield path
    yield ROOT / "README.md"


def anchor(heading):
    """As GitHub makes it."""
    text = re.sub(r"[`*_]", "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    found = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"#+ (.+)", line):
            name = anchor(match[1])
            count = 0
            while (unique := name if count == 0 else f"{name}-{count}") in found:
                count += 1
            found.add(unique)
    return found


def prose(text):
    """The lines of a page with their numbers, without its blocks of code."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


def check_links(path, text):
    for number, line in prose(text):
        for target in re.findall(r"(?<!`)\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, heading = target.partition("#")
            other = path.parent / name if name else path
            if not other.exists():
                report(path, number, f"{target} does not exist")
            elif heading and other.suffix == ".md" and heading not in anchors(other):
                report(path, number, f"{target}: {other} has no such heading")
        for page in re.findall(r"<doc:([\w-]+)>", line):
            if not (path.parent / f"{page}.md").exists():
                report(path, number, f"<doc:{page}>: the catalog has no such page")


def page(name):
    found = list(ROOT.glob(f"Sources/*/*.docc/{name}.md"))
    return found[0].read_text(encoding="utf-8") if found else ""


def check_citations(path, text, names, sections, rows, notes):
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"[\w./-]*\w\.md\b", line):
            if pathlib.Path(name).name not in names:
                report(path, number, f"{name} does not exist")
        for section in re.findall(r"AppleFacts (\d+(?:\.\d+)*)", line):
            if section not in sections:
                report(path, number, f"AppleFacts has no section {section}")
        for row in re.findall(r"Ownership, rows? (\d+[a-e]?'?)", line):
            if row not in rows:
                report(path, number, f"Ownership has no row {row}")
        for note in re.findall(r"Ownership, note (\d+)", line):
            if note not in notes:
                report(path, number, f"Ownership has no note {note}")
        # Those of a library that is used have an address.
        if match := re.search(r"(?<!rabbitmq-c )\bissues? #?\d+", line):
            report(path, number, f"{match[0]}: nobody can look that up")


def check_requirements(texts):
    known = re.findall(rf"^\| ({REQUIREMENT}) \|", page("Requirements"), re.M)
    cited = {}
    for path, text in texts.items():
        if path.name == "Requirements.md":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = re.findall(REQUIREMENT, line)
            for letter, first, last in re.findall(r"\b([PBLF])(\d+) to \1(\d+)\b", line):
                found += [f"{letter}{index}" for index in range(int(first), int(last) + 1)]
            for requirement in found:
                cited.setdefault(requirement, (path, number))
    for requirement, (path, number) in sorted(cited.items()):
        if requirement not in known:
            report(path, number, f"Requirements has no line {requirement}")
    for requirement in known:
        if requirement not in cited:
            report("Requirements.md", 1, f"nothing cites {requirement}")
        if known.count(requirement) > 1:
            report("Requirements.md", 1, f"{requirement} has two lines")


def main():
    texts = {}
    for path in files():
        try:
            texts[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    names = {path.name for path in texts if path.suffix == ".md"}
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", page("AppleFacts"), re.M))
    ownership = page("Ownership")
    rows = set(re.findall(r"^\| (\d+[a-e]?'?) \|", ownership, re.M))
    notes = set(re.findall(r"^(\d+)\. ", ownership, re.M))
    for path, text in texts.items():
        if path.suffix == ".md":
            check_links(path, text)
        check_citations(path, text, names, sections, rows, notes)
    check_requirements(texts)
    for line in dead:
        print(line)
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
