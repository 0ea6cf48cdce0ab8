#!/usr/bin/env python3
"""Fails where two folders of one target use each other, by way of others too.

The compiler holds the targets apart (Package.swift); of folders inside a target it knows nothing. A file uses another
one when it names a type that the other one alone declares. Files beside the folders belong to none of them.

    deploy/rooms.py          exit 0, or 1 and each circle with the names that close it
"""
import collections
import pathlib
import re
import sys

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "Sources"
TYPE = re.compile(
    r"^(?:@\w+(?:\([^)]*\))? )*(?:package |public |final |indirect )*(?:struct|class|enum|actor|protocol|typealias) (\w+)",
    re.MULTILINE,
)


def code(path: pathlib.Path) -> str:
    """The file without comments and without the words of its texts; what a text interpolates stays."""
    text = re.sub(r"//.*", "", path.read_text())
    inside = lambda match: " ".join(re.findall(r"\\\(([^()]*(?:\([^()]*\))?[^()]*)\)", match.group(0)))
    text = re.sub(r'"""[\s\S]*?"""', inside, text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', inside, text)


def uses(target: pathlib.Path) -> dict[str, dict[str, set[str]]]:
    """Of each folder of a target the folders that it uses, and the names by which it does."""
    files = {path: code(path) for path in target.rglob("*.swift") if path.parent != target}
    folder = lambda path: path.relative_to(target).parts[0]
    homes = collections.defaultdict(set)
    for path, text in files.items():
        for name in TYPE.findall(text):
            homes[name].add(folder(path))
    graph: dict[str, dict[str, set[str]]] = {folder(path): {} for path in files}
    for path, text in files.items():
        for name in set(re.findall(r"(?<![.\w])[A-Z]\w*", text)):
            if len(homes[name]) == 1 and (home := next(iter(homes[name]))) != folder(path):
                graph[folder(path)].setdefault(home, set()).add(name)
    return graph


def circle(graph: dict[str, dict[str, set[str]]]) -> list[str] | None:
    """The folders of one circle in order, or none."""
    ended: set[str] = set()

    def walk(room: str, way: list[str]) -> list[str] | None:
        if room in way:
            return way[way.index(room) :] + [room]
        if room in ended:
            return None
        for other in sorted(graph[room]):
            if found := walk(other, way + [room]):
                return found
        ended.add(room)
        return None

    for room in sorted(graph):
        if found := walk(room, []):
            return found
    return None


def main() -> int:
    failed = False
    for target in sorted(path for path in SOURCES.iterdir() if path.is_dir()):
        graph = uses(target)
        if found := circle(graph):
            failed = True
            print(f"{target.name}: {' uses '.join(found)}")
            for room, other in zip(found, found[1:]):
                print(f"    {room} names {', '.join(sorted(graph[room][other])[:5])} of {other}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
