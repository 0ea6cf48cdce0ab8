#!/usr/bin/env python3
"""Prints the manual page makegood(1), in mdoc, from what the program says of itself.

    deploy/manual.py PROGRAM > makegood.1

Asks PROGRAM for `--experimental-dump-help` (JSON of swift-argument-parser) and `--version`. One page has all commands.
The page's day is today, or the day of SOURCE_DATE_EPOCH (seconds since 1970). deploy/package packs the page.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
import time

# Every command has these, and the page tells them once.
COMMON = {"help", "version"}
DASHES = {"short": "", "long": "-", "longWithSingleDash": ""}


def escaped(text):
    """Text that troff prints as it is, but with `code` in bold."""
    text = text.replace("\\", "\\e").replace('"', "\\(dq")
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fP", text)


def prose(text):
    """Lines of running text: each sentence begins a line, as mdoc wants it."""
    for number, paragraph in enumerate(filter(None, text.split("\n\n"))):
        if number:
            yield ".Pp"
        for sentence in re.split(r"(?<=[.?!]) +(?=[A-Z`])", paragraph):
            for line in textwrap.wrap(escaped(sentence), 76, break_long_words=False, break_on_hyphens=False):
                yield "\\&" + line if line.startswith((".", "'")) else line


def word(text):
    """An argument of a macro: never itself taken for a macro."""
    return "\\&" + escaped(text).replace(" ", "\\ ")


def flag(name):
    return "Fl " + word(DASHES[name["kind"]] + name["name"])


def value(argument):
    return "" if argument["kind"] == "flag" else " Ar " + word(argument["valueName"])


def own(command):
    return [
        argument for argument in command.get("arguments", [])
        if argument["shouldDisplay"] and argument["valueName"] not in COMMON]


def subcommands(command):
    return [
        inner for inner in command.get("subcommands", []) if inner["shouldDisplay"] and inner["commandName"] != "help"]


def synopsis(path, command):
    yield f".Nm makegood {' '.join('Cm ' + word(name) for name in path)}"
    for argument in own(command):
        name = "" if argument["kind"] == "positional" else flag(argument["preferredName"])
        line = (name + value(argument)).strip()
        yield (".Op " if argument["isOptional"] else ".") + line + (" ..." if argument["isRepeating"] else "")


def options(command):
    arguments = own(command)
    if not arguments:
        return
    yield ".Bl -tag -width Ds -offset indent"
    for argument in arguments:
        if argument["kind"] == "positional":
            yield ".It" + value(argument)
        else:
            yield ".It " + " , ".join(map(flag, argument["names"])) + value(argument)
        yield from prose(argument.get("abstract", ""))
        if "defaultValue" in argument:
            yield f"(default: {escaped(argument['defaultValue'])})"
    yield ".El"


def section(path, command):
    yield ".Ss " + " ".join(path)
    # A command that has others and no argument of its own does nothing by itself.
    if own(command) or not subcommands(command):
        yield from synopsis(path, command)
        yield ".Pp"
    yield from prose(command["abstract"])
    if command.get("discussion"):
        yield ".Pp"
        yield from prose(command["discussion"])
    yield from options(command)
    for inner in subcommands(command):
        yield from section(path + [inner["commandName"]], inner)


def page(command, version, day):
    yield from (
        ".Dd " + day,
        ".Dt MAKEGOOD 1",
        f".Os makegood {version}",
        ".Sh NAME",
        ".Nm makegood",
        ".Nd " + escaped(command["abstract"][0].lower() + command["abstract"][1:].rstrip(".")),
        ".Sh SYNOPSIS",
        ".Nm",
        ".Ar command",
        ".Op Ar argument ...",
        ".Nm",
        ".Fl \\&-version",
        ".Nm",
        ".Cm help",
        ".Op Ar command",
        ".Sh DESCRIPTION")
    yield from prose(command.get("discussion", ""))
    yield ".Sh COMMANDS"
    for inner in subcommands(command):
        yield from section([inner["commandName"]], inner)
    yield ".Sh SEE ALSO"
    yield "The folder"
    yield ".Pa /usr/share/doc/makegood"
    yield "of the Debian package: README.md, configuration.md, operating.md,"
    yield "integrating.md and runbook.md."


def main(program):
    def told(option):
        return subprocess.run([program, option], check=True, stdout=subprocess.PIPE, text=True).stdout

    moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    day = time.strftime(f"%B {moment.tm_mday}, %Y", moment)
    command = json.loads(told("--experimental-dump-help"))["command"]
    print("\n".join(page(command, told("--version").strip(), day)))


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
