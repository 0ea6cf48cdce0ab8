"""Carries out the last stage of a Dockerfile in a directory that holds its base image, and tries the result.

    stage.py DOCKERFILE ROOT [STAGE:PATH=FILE…]      FILE stands in for what COPY --from=STAGE takes

Knows the instructions that our Dockerfile has; an unknown one is an error, so none is skipped in silence. RUN is carried
out with chroot; afterwards the ENTRYPOINT is started as USER, with ENV, without capabilities and on a read-only root, by
itself (CMD) and as `doctor`, which must start and find the libraries; the HEALTHCHECK must say no where nothing runs.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys


def instructions(text):
    """(word, rest) of each instruction, continuation lines joined and comments left out."""
    joined = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        joined += line.rstrip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined.strip():
            word, _, rest = joined.strip().partition(" ")
            yield word.upper(), rest.strip()
        joined = ""


def last_stage(text):
    stages = [[]]
    for word, rest in instructions(text):
        if word == "FROM":
            stages.append([])
        else:
            stages[-1].append((word, rest))
    return stages[-1]


class Stage:
    def __init__(self, root, copies):
        self.root, self.copies = root, copies
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.user = self.entrypoint = self.command = self.health = None

    def carry_out(self, word, rest):
        if word == "RUN":
            # Names are looked up as on this machine, as a container engine arranges it.
            open(self.root + "/etc/resolv.conf", "a").close()
            mounts = (
                f"mount -t proc proc {self.root}/proc && "
                f"mount --bind /etc/resolv.conf {self.root}/etc/resolv.conf && "
                f"exec chroot {self.root} /bin/sh -c {shlex.quote(rest)}")
            subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "sh", "-c", mounts], check=True,
                env=self.environment | {"DEBIAN_FRONTEND": "noninteractive"}, stdout=subprocess.DEVNULL)
        elif word == "COPY":
            option, source, target = rest.split()
            stage = option.removeprefix("--from=")
            shutil.copyfile(self.copies[f"{stage}:{source}"], self.root + target)
        elif word == "ENV":
            self.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "USER":
            self.user = rest.split(":")
        elif word == "HEALTHCHECK":
            self.health = json.loads(rest.partition(" CMD ")[2])
        elif word == "ENTRYPOINT":
            self.entrypoint = json.loads(rest)
        elif word == "CMD":
            self.command = json.loads(rest)
        elif word not in ("EXPOSE", "STOPSIGNAL", "LABEL"):
            raise SystemExit(f"stage.py: {word} is not known here")

    def run(self, arguments):
        """As a container engine would: read-only root, another user, no capabilities, a private /proc."""
        user, group = self.user
        inner = " ".join(map(shlex.quote, arguments))
        # The root's own setpriv, so that no capability is needed after it.
        script = (
            f"mount --bind {self.root} {self.root} && mount -o remount,ro,bind {self.root} && "
            f"mount -t proc proc {self.root}/proc && exec chroot {self.root} setpriv --reuid={user} --regid={group} "
            f"--clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs -- {inner}")
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script], env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)

    def expect(self, what, arguments, code, words):
        result = self.run(arguments)
        missing = [word for word in words if word not in result.stdout]
        if result.returncode != code or missing:
            raise SystemExit(f"stage.py: {what}: exit {result.returncode}, without {missing}:\n{result.stdout}")
        print(f"ok    {what}")


def main(dockerfile, root, *copies):
    stage = Stage(os.path.abspath(root), dict(copy.split("=", 1) for copy in copies))
    with open(dockerfile) as file:
        for word, rest in last_stage(file.read()):
            stage.carry_out(word, rest)
    print("ok    every instruction of the last stage was carried out")
    if stage.user[0] in ("0", "root"):
        raise SystemExit("stage.py: the image runs as root")
    stage.expect("the command by itself prints its help", stage.entrypoint + stage.command, 0, ["USAGE: makegood"])
    # No database, no broker, no configuration: those are found missing, everything of the image is found right.
    stage.expect("doctor finds the image's libraries right", stage.entrypoint + ["doctor"], 1,
                 ["libpq", "librabbitmq", "settings"])
    stage.expect("the root file system cannot be written", ["/bin/sh", "-c", "! touch /tmp/x"], 0, ["Read-only"])
    stage.expect("the health check says no where nothing runs", stage.health, 1, [])


main(*sys.argv[1:])
