"""What the installed tools share. It lies beside them, and runs in a release's Python as well as in the host's.

A tool finds it in its own real folder, which only root writes to, whatever the current folder and PYTHONPATH are.
pd-env, pd-model and pd-patch also travel to a host as text, where nothing lies beside them: they do without.
"""

from __future__ import annotations

import argparse
import configparser
import errno
import hashlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType, GenericAlias, UnionType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

FAILED, USAGE = 1, 2
MOST_KEYS = 2  # the key, and the one before it
SYSTEMD_S = 30.0  # for an answer of systemd's, on a host that is busy


class Fault(argparse.ArgumentTypeError):  # so argparse itself tells one that the type of an argument raises
    """An expected failure, told in one line. code: the exit code of a tool that it ends."""

    def __init__(self, line: str, code: int = FAILED) -> None:
        super().__init__(line)
        self.code = code


def say(line: str) -> None:
    """One line on stderr, the tool's name before it."""
    print(f"{Path(sys.argv[0]).name}: {plain(line)}", file=sys.stderr, flush=True)


def plain(text: str) -> str:
    """Text as one line of a terminal: it may quote a server, a package source, another user."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


def exit_code(main: Callable[[], int]) -> int:
    """What `main` returns; what it raises for a user to read is said in one line, without a traceback."""
    try:
        return main()
    except Fault as fault:
        say(str(fault))
        return fault.code
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        say(f"{error.filename or 'output'}: {'no space left on the file system' if full else error.strerror}")
        return FAILED


def stop_with_a_fault(*signals: signal.Signals) -> None:
    """From now on these signals raise a Fault in the main thread, so that what was begun is cleared away."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Fault(f"stopped by {signal.Signals(number).name}")

    for number in signals:
        signal.signal(number, stop)


def parser_of(description: str | None, epilog: str) -> argparse.ArgumentParser:
    """A parser whose help shows the description of a tool, its configuration and its exit codes as they are written."""
    return argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def without_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """For a process that talks to servers of this host: a proxy for the whole system would get its calls.

    Programs read the names of proxies in any spelling.
    """
    return {name: value for name, value in environ.items() if not name.lower().endswith("_proxy")}


# ---- what tools are told


def read_file(path: Path, what: str = "") -> bytes:
    """Raises Fault, with `what` before the path."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Fault(f"cannot read {what}{' ' if what else ''}{path}: {error.strerror}", USAGE) from None


Kinds = Mapping[str, type | UnionType | GenericAlias]  # by key; of generic ones list[KIND] alone


def read_config(path: Path, kinds: Kinds, content: bytes | None = None) -> dict[str, Any]:
    """The JSON object in a file, with every key of `kinds` and no other; what may be None may be left out.

    content: of the file, where it was read already. Raises Fault.
    """
    try:
        found = json.loads(read_file(path) if content is None else content)
    except ValueError as error:
        raise Fault(f"{path} is not JSON: {error}", USAGE) from None
    if not isinstance(found, dict):
        raise Fault(f"{path} holds no JSON object", USAGE)
    if unknown := found.keys() - kinds.keys():
        raise Fault(f"{path}: unknown {', '.join(sorted(unknown))}", USAGE)
    for key, kind in kinds.items():
        if not _is_of(kind, found.setdefault(key, None)):
            raise Fault(f"{path}: {key} is missing or of the wrong type", USAGE)
    return found


def _is_of(kind: type | UnionType | GenericAlias, value: object) -> bool:
    if isinstance(kind, GenericAlias):
        return isinstance(value, list) and all(_is_of(kind.__args__[0], item) for item in value)
    return isinstance(value, kind)


def release_python(config: Mapping[str, Any]) -> str:
    """The interpreter of the release's environment. Raises Fault while the release is not built."""
    python: str = config["python"]
    if not Path(python).exists():
        raise Fault(f"python {python} is not there: build the release first", USAGE)
    return python


def read_keys(path: Path) -> list[str]:
    """The API keys in a file that holds them alone, the one to use first: lines of printable ASCII.

    Raises Fault, which never shows them.
    """
    keys = read_file(path, "api_key_file").decode(errors="replace").removesuffix("\n").split("\n")
    if len(keys) > MOST_KEYS or not all(re.fullmatch(r"[!-~]([ -~]*[!-~])?", key) for key in keys):
        raise Fault(f"api_key_file {path} holds no key: one line of printable ASCII, no blank at either end", USAGE)
    return keys


def read_key(path: str | Path | None) -> str | None:
    """The key to send, None without a file."""
    return None if path is None else read_keys(Path(path))[0]


def connection(url: str, limit_s: float, certificate: Path | None = None) -> http.client.HTTPConnection:
    """To a server of ours, without proxies. certificate: PEM file with the one that an https server has to show.

    That very certificate is asked for, and that it is valid now; its name is that of the clients' address, not of ours.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port, timeout=limit_s)
    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as error:
        raise Fault(f"cannot read certificate {certificate}: {error.strerror or error}") from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, parts.port, timeout=limit_s, context=context)


def address(url: str) -> str:
    """http[s]://HOST:PORT or http[s]://HOST:PORT/PATH, without a slash at its end. Raises Fault."""
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port and not parts.query
    except ValueError:  # no port number
        good = None
    if not good:
        raise Fault(f"not http://HOST:PORT or https://HOST:PORT: {url}", USAGE)
    return url.rstrip("/")


# ---- what the host says


def run(words: list[str], limit_s: float) -> str:
    """What a command prints. Raises Fault with what it says where it fails."""
    try:
        ran = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env=os.environ | {"LC_ALL": "C"},
        )  # fmt: skip
    except OSError as error:
        raise Fault(f"{words[0]}: {error.strerror}") from None
    try:
        stdout, stderr = ran.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        ran.kill()  # and not waited for: what hangs in the driver ends with it
        raise Fault(f"{words[0]}: no answer within {limit_s:.0f} s") from None
    if ran.returncode:
        lines = (stderr.strip() or stdout.strip() or f"exit status {ran.returncode}").splitlines()
        raise Fault(f"{words[0]}: {lines[-1][:200]}")
    return stdout


def unit_states(units: Iterable[str], *properties: str) -> dict[str, dict[str, str]]:
    """What systemd says of each unit, by property; nothing of one that it does not name. Raises Fault."""
    units = list(units)
    said = run(["systemctl", "show", "-p", ",".join(("Id", *properties)), "--", *units], SYSTEMD_S)
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in said.split("\n\n")]
    by_name = {block.get("Id", ""): block for block in blocks}
    return {unit: by_name.get(unit, {}) for unit in units}


# ---- what a server is started from

SYSTEMDS_OWN = b"# Systemd alone reads what follows: a change of it restarts nothing."  # in a unit file
OVER_UNITS = [Path(f"{place}/systemd/{kind}") for place in ("/etc", "/run") for kind in ("system", "system.control")]


def seen(content: bytes) -> bytes:
    """What a server sees of a file that it is started from; tasks.plan.service.restarts.seen says the same."""
    lines = content.splitlines(keepends=True)
    end = next((number for number, line in enumerate(lines) if line.startswith(SYSTEMDS_OWN)), None)
    return b"".join(line for line in lines[:end] if not line.startswith(b"#"))


def unit_as_seen(unit: Path) -> bytes:
    """A unit file with what is laid over it. Raises Fault."""
    return b"".join(map(seen, [read_file(unit, "unit file"), *drop_ins(unit)]))


def drop_ins(unit: Path) -> list[bytes]:
    """What was laid over a unit, such as by `systemctl edit`; what is meant for several units is not this one's."""
    folders = dict.fromkeys(place / f"{unit.name}.d" for place in (unit.parent, *OVER_UNITS))
    return [read_file(path, "drop-in") for folder in folders for path in sorted(folder.glob("*.conf"))]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- what servers print


def samples(text: str, names: Iterable[str]) -> list[tuple[str, float]]:
    """Name and value of every sample of these metrics in an answer of /metrics, their labels left aside.

    Raises ValueError for a value that is no finite number.
    """
    row = re.compile(rf"^({'|'.join(map(re.escape, names))})(?:\{{.*\}})?[ \t]+(\S+)", re.MULTILINE)
    found = [(name, float(value)) for name, value in row.findall(text)]
    if wrong := [name for name, value in found if not math.isfinite(value)]:
        raise ValueError(f"{wrong[0]} is no finite number")
    return found


class Signature(NamedTuple):
    """One way in which a server fails, and how its log tells it: a section of pd_signatures.ini, which explains it."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    source: str
    lines: list[str]
    near: list[str]
    vague: bool


SIGNATURES = Path(__file__).with_name("pd_signatures.ini")
ARGUMENT_DUMP = "server_args="  # holds every setting's text: tells of no failure
PREFIX = re.compile(r"^\[[^\]]*\d\d:\d\d:\d\d[^\]]*\] ")  # "[time rank] ", before what SGLang says


def read_signatures(path: Path = SIGNATURES) -> list[Signature]:
    """Every known failure, the better explanation first."""
    parser = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    parser.read_string(path.read_text())
    return [
        Signature(
            name, re.compile("|".join(f"(?:{pattern})" for pattern in _lines(section["pattern"]))), section["cause"],
            section["remedy"], section["source"], _lines(section["lines"]), _lines(section["near"]),
            section.getboolean("vague", fallback=False),
        )
        for name, section in parser.items() if name != parser.default_section
    ]  # fmt: skip


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def find_signature(line: str, signatures: list[Signature]) -> Signature | None:
    """What a line of a log tells, with or without SGLang's prefix."""
    message = PREFIX.sub("", line)
    if ARGUMENT_DUMP in message:
        return None
    return next((known for known in signatures if known.pattern.search(message)), None)


# ---- what tools leave


def write_atomically(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """A new file in the place of whatever has its name; a link is replaced, not followed. Raises OSError.

    A power cut leaves the one before, or this one whole; once this returns, this one.
    """
    temporary = written_beside(path, content, mode)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    to_disk(path.parent)


def written_beside(path: Path, content: str | bytes, mode: int = 0o644) -> Path:
    """A new file under another name in the same folder, on the disk, to take the place of `path`. Raises OSError."""
    temporary = beside(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def beside(path: Path) -> Path:
    """A name that nothing has, in the same folder."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}")


def to_disk(folder: Path) -> None:
    """The names in a folder, as they are now, outlive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Whatever is there, if anything. A link is taken away, not followed. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
