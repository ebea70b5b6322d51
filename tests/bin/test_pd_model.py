"""pd-model against a small hub on loopback. Needs huggingface_hub in the Python that runs the tests."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.bin.tools import BIN

TOOL = BIN / "pd-model"
REPO = "org/tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
OTHER_REVISION = "f" * 40
TOKEN = "hf_hush_hush"

assert importlib.util.find_spec("huggingface_hub"), "huggingface_hub is missing: install the development requirements"


def safetensors(data: bytes) -> bytes:
    """A safetensors file of one tensor."""
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]},
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
CHUNK = 10 << 20  # bytes that huggingface_hub writes at a time
INDEX = json.dumps({"metadata": {}, "weight_map": {"a": FIRST, "b": SECOND}}).encode()
FILES = {
    "config.json": b'{"model_type": "tiny"}\n',
    "tokenizer.json": b"{}\n",
    "empty.txt": b"",
    "extra/notes.txt": b"some notes\n",
    "model.safetensors.index.json": INDEX,
    FIRST: safetensors(os.urandom(1 << 20) * 25),
    SECOND: safetensors(os.urandom(1 << 20)),
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def spoilt(content: bytes) -> bytes:
    """One bit is another, whatever the content."""
    return content[:-1] + bytes([content[-1] ^ 1])


# --- the hub ---------------------------------------------------------------------------------------------


@dataclass
class Asked:
    method: str
    path: str
    range: str
    authorization: str


@dataclass
class Hub:
    """What the hub holds, how it fails and what it was asked. Large files are served by another origin."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    revisions: list[str] = field(default_factory=lambda: [REVISION])
    status: dict[str, list[int]] = field(default_factory=dict)  # part of a path -> answers with these first
    cut: dict[str, list[int]] = field(default_factory=dict)  # file -> the connection ends after so many bytes
    sent: dict[str, bytes] = field(default_factory=dict)  # file -> content sent in place of the listed one
    sizes: dict[str, int] = field(default_factory=dict)  # file -> size listed in place of the real one
    held: set[str] = field(default_factory=set)  # files that wait for `go`, half sent
    half: threading.Event = field(default_factory=threading.Event)  # a held file is half sent
    go: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    store: str = ""

    def large(self, name: str) -> bool:
        return name.endswith(".safetensors")

    def listing(self, revision: str) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, content in self.files.items():
            size = self.sizes.get(name, len(content))
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": blob}
            if self.large(name):
                entry["lfs"] = {"size": size, "sha256": sha256(content), "pointerSize": 134}
            siblings.append(entry)
        return {"_id": "1", "id": REPO, "modelId": REPO, "sha": revision, "siblings": siblings, "tags": []}

    def gets(self, name: str) -> list[Asked]:
        """The requests for the content of a file."""
        start = "/store/" if self.large(name) else "/org/"
        return [a for a in self.asked if a.method == "GET" and a.path.startswith(start) and a.path.endswith(name)]


def handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            wanted = self.headers.get("Range", "")
            hub.asked.append(Asked(self.command, path, wanted, self.headers.get("Authorization", "")))
            for part, answers in hub.status.items():
                if part in path and answers:
                    return self.answer(answers.pop(0), b"", {})
            if match := re.fullmatch(rf"/api/models/{REPO}/revision/(\w+)", path):
                if match[1] not in hub.revisions:
                    return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
                return self.answer(
                    200, json.dumps(hub.listing(match[1])).encode(), {"Content-Type": "application/json"}
                )
            if match := re.fullmatch(rf"/{REPO}/resolve/(\w+)/(.+)", path):
                return self.resolve(match[1], match[2])
            if path.startswith("/store/"):
                return self.content(path.removeprefix("/store/"), wanted)
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

        def resolve(self, revision: str, name: str) -> None:
            if not hub.large(name):
                return self.content(name, self.headers.get("Range", ""))
            content = hub.files[name]
            headers = {
                "Location": f"{hub.store}/store/{name}",
                "X-Repo-Commit": revision,
                "X-Linked-Size": str(len(content)),
                "X-Linked-Etag": f'"{sha256(content)}"',
            }
            return self.answer(302, b"", headers)

        def content(self, name: str, wanted: str) -> None:
            content = hub.sent.get(name, hub.files[name])
            start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            if hub.cut.get(name):
                self.wfile.write(body[: hub.cut[name].pop(0)])
                self.close_connection = True
            elif name in hub.held:
                self.wfile.write(body[: len(body) // 2])
                hub.half.set()
                hub.go.wait(60)
                self.wfile.write(body[len(body) // 2 :])
            else:
                self.wfile.write(body)

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client that was ended by the test
                super().handle()

    return Handler


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        hub.go.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    with serving(hub) as hub.url, serving(hub) as hub.store:
        yield hub


@dataclass
class Host:
    """A place for a model, and how pd-model runs there."""

    hub: Hub
    directory: Path
    home: Path

    def command(self, *more: str, repo: str = REPO, revision: str = REVISION) -> list[str]:
        target = ["--repo", repo, "--revision", revision, "--directory", str(self.directory)]
        return [sys.executable, str(TOOL), "fetch", *target, "--python", sys.executable, "--retries", "0", *more]

    @property
    def environ(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        return kept | {"HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "HF_TOKEN": TOKEN}

    def fetch(self, *more: str, **other: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*more, **other)
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=120)
        assert TOKEN not in done.stdout + done.stderr
        return done

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*more), env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def contents(self) -> dict[str, bytes]:
        paths = (p for p in self.directory.rglob("*") if p.is_file())
        return {str(p.relative_to(self.directory)): p.read_bytes() for p in paths}

    def whole(self) -> bool:
        """Exactly the files of the hub and the record, which tells of each."""
        contents = self.contents()
        record = json.loads(contents.pop(".pd-model.json"))
        files = {name: {"size": len(c), "sha256": sha256(c)} for name, c in self.hub.files.items()}
        return contents == self.hub.files and record["files"] == files and record["repo"] == REPO


@pytest.fixture
def host(hub: Hub, tmp_path: Path) -> Host:
    return Host(hub, tmp_path / "models/tiny", tmp_path)


def failed(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("pd-model: ")
    for word in words:
        assert word in done.stderr


# --- fetch -----------------------------------------------------------------------------------------------


def test_fetch_brings_every_file_and_the_record(host: Host) -> None:
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert host.whole()
    record = json.loads((host.directory / ".pd-model.json").read_text())
    assert (record["repo"], record["revision"]) == (REPO, REVISION)
    assert "7 files, 27.3 MB" in done.stdout


def test_there_already_asks_the_hub_nothing(host: Host) -> None:
    assert host.fetch().returncode == 0
    host.hub.asked.clear()
    done = host.fetch()
    assert (done.returncode, "there already" in done.stdout) == (0, True)
    assert host.hub.asked == []


def test_token_goes_to_the_hub_and_not_to_the_store_behind_it(host: Host) -> None:
    assert host.fetch().returncode == 0
    hub = {a.authorization for a in host.hub.asked if not a.path.startswith("/store/")}
    store = {a.authorization for a in host.hub.asked if a.path.startswith("/store/")}
    assert hub == {f"Bearer {TOKEN}"}
    assert store == {""}


def test_cut_connection_is_gone_on_from_where_it_was(host: Host) -> None:
    host.hub.cut[FIRST] = [CHUNK + 1000]
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert host.whole()
    assert [a.range for a in host.hub.gets(FIRST)] == ["", f"bytes={CHUNK}-"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted_fetch_is_gone_on_by_the_next(host: Host, number: signal.Signals) -> None:
    host.hub.held.add(FIRST)
    process = host.start("--progress", "0.05")
    assert process.stdout is not None
    whole = sum(len(c) for n, c in FILES.items() if n != FIRST)
    percent = 100 * (whole + CHUNK) // (whole + len(FILES[FIRST]))
    # the lines say how far it is: all but the second half of a file, which the hub holds back
    for line in process.stdout:
        if f", {percent} %" in line:
            break
    else:
        pytest.fail(f"never {percent} %: {process.communicate()}")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    if number is signal.SIGTERM:
        assert (process.returncode, stderr.count("\n")) == (1, 1)
        assert "goes on from here" in stderr
    assert not (host.directory / FIRST).exists()
    assert not (host.directory / ".pd-model.json").exists()
    checked = check(host.directory)
    assert (checked["code"], checked["reason"]) == (1, "a fetch into it is not finished")
    host.hub.held.clear()
    host.hub.go.set()
    host.hub.asked.clear()
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert host.whole()
    assert [a.range for a in host.hub.gets(FIRST)] == [f"bytes={CHUNK}-"]
    assert host.hub.gets(SECOND) == [], "what was finished is not fetched again"


def test_two_fetches_at_once(host: Host) -> None:
    host.hub.held.add(FIRST)
    first = host.start()
    assert host.hub.half.wait(60)
    second = host.start()
    assert second.stdout is not None
    assert "another fetch" in second.stdout.readline()
    host.hub.go.set()
    assert first.wait(60) == 0
    rest, _ = second.communicate(timeout=60)
    first.communicate()
    assert (second.returncode, "there already" in rest) == (0, True)
    assert len(host.hub.gets(FIRST)) == 1


@pytest.mark.parametrize("name", [FIRST, "config.json"])
def test_wrong_content_is_tried_twice_and_never_kept(host: Host, name: str) -> None:
    right = host.hub.files[name]
    host.hub.sent[name] = spoilt(right)
    done = host.fetch()
    failed(done, name, "twice")
    assert "fetching it once more" in done.stdout
    assert len(host.hub.gets(name)) == 2
    assert not (host.directory / name).exists()
    assert check(host.directory)["code"] == 1
    host.hub.sent.clear()
    assert host.fetch().returncode == 0
    assert host.whole()


def test_size_other_than_listed(host: Host) -> None:
    host.hub.sizes[SECOND] = len(FILES[SECOND]) + 5
    failed(host.fetch(), SECOND)
    assert not (host.directory / SECOND).exists()


def test_503_is_tried_again(host: Host) -> None:
    host.hub.status = {"/api/": [503], f"/store/{FIRST}": [503]}
    done = host.fetch("--retries", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("HTTP 503") == 2
    assert host.whole()


def test_503_that_stays_is_one_line(host: Host) -> None:
    host.hub.status = {f"/store/{FIRST}": [503] * 9}
    failed(host.fetch(), FIRST, "HTTP 503")
    assert not (host.directory / FIRST).exists()


@pytest.mark.parametrize(
    ("other", "status", "words"),
    [
        ({"revision": OTHER_REVISION}, [], [OTHER_REVISION, "no such revision"]),
        ({"repo": "org/unknown"}, [], ["org/unknown", "HTTP 404"]),
        ({}, [401], [REPO, "HF_TOKEN"]),
    ],
)
def test_what_the_hub_does_not_give(host: Host, other: dict[str, str], status: list[int], words: list[str]) -> None:
    host.hub.status = {"/api/": status}
    failed(host.fetch(**other), *words, host.hub.url)
    assert host.contents() == {}


def test_hub_that_is_not_there(host: Host) -> None:
    with serving(host.hub) as url:
        pass
    host.hub.url = url
    failed(host.fetch(), url, "refused")


def test_no_room_is_told_before_anything_is_fetched(host: Host) -> None:
    host.hub.sizes[FIRST] = 1 << 60
    failed(host.fetch(), "no room", "are free")
    assert host.contents() == {}
    assert [a for a in host.hub.asked if a.method == "GET" and "/resolve/" in a.path] == []


def test_directory_of_somebody_else_is_left_alone(host: Host) -> None:
    host.directory.mkdir(parents=True)
    (host.directory / "config.json").write_text("{}")
    failed(host.fetch(), "config.json", "not put there by pd-model")
    assert host.contents() == {"config.json": b"{}"}


def test_copied_files_are_taken_over_when_they_are_right(host: Host) -> None:
    host.directory.mkdir(parents=True)
    (host.directory / FIRST).write_bytes(FILES[FIRST])
    (host.directory / SECOND).write_bytes(spoilt(FILES[SECOND]))
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert f"{SECOND}: sha256" in done.stdout
    assert host.hub.gets(FIRST) == []
    assert host.whole()


def test_damaged_model_is_mended(host: Host) -> None:
    assert host.fetch().returncode == 0
    (host.directory / "config.json").unlink()
    (host.directory / SECOND).write_bytes(FILES[SECOND][:100])
    host.hub.asked.clear()
    assert host.fetch().returncode == 0
    assert host.whole()
    assert host.hub.gets(FIRST) == []


def test_other_revision_replaces_and_removes(host: Host) -> None:
    assert host.fetch().returncode == 0
    (host.directory / "own.txt").write_text("mine")
    del host.hub.files["extra/notes.txt"]
    host.hub.files["config.json"] = b'{"model_type": "tiny", "newer": true}\n'
    host.hub.revisions.append(OTHER_REVISION)
    done = host.fetch(revision=OTHER_REVISION)
    assert done.returncode == 0, done.stderr
    own = host.directory / "own.txt"
    assert own.read_text() == "mine"
    own.unlink()
    assert host.whole()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--revision", "main"], "--revision"),
        (["--repo", "tiny"], "--repo"),
    ],
)
def test_wrong_usage_exits_2(host: Host, arguments: list[str], words: str) -> None:
    done = host.fetch(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_python_without_huggingface_hub(host: Host, tmp_path: Path) -> None:
    failed(host.fetch("--python", "/nowhere/python"), "/nowhere/python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=60)
    failed(host.fetch("--python", str(tmp_path / "bare/bin/python")), "No module named 'huggingface_hub'")


# --- check -----------------------------------------------------------------------------------------------


def check(directory: Path, *more: str) -> dict[str, Any]:
    """The report of check --json, with the exit code as "code"."""
    command = [sys.executable, str(TOOL), "check", "--directory", str(directory), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    report: dict[str, Any] = json.loads(done.stdout)
    words = subprocess.run([c for c in command if c != "--json"], capture_output=True, text=True, timeout=60)
    assert words.returncode == done.returncode
    assert words.stdout.count("\n") == 1
    return report | {"code": done.returncode}


def test_fetched_model_is_whole_until_it_is_not(host: Host) -> None:
    assert host.fetch().returncode == 0
    size = sum(map(len, FILES.values()))
    whole = {
        "whole": True,
        "repo": REPO,
        "revision": REVISION,
        "missing": [],
        "changed": [],
        "bytes": size,
        "files": 7,
        "reason": None,
        "code": 0,
    }
    assert check(host.directory) == whole
    assert check(host.directory, "--deep") == whole
    (host.directory / FIRST).write_bytes(spoilt(FILES[FIRST]))
    assert check(host.directory) == whole, "the size is the same"
    found = check(host.directory, "--deep")
    assert (found["code"], found["whole"], found["changed"]) == (1, False, [FIRST])
    (host.directory / FIRST).write_bytes(FILES[FIRST][:-1])
    (host.directory / "extra/notes.txt").unlink()
    found = check(host.directory)
    assert (found["code"], found["changed"], found["missing"]) == (1, [FIRST], ["extra/notes.txt"])
    assert (found["files"], found["bytes"]) == (6, size - 1 - len(FILES["extra/notes.txt"]))


def test_absent_directory_exits_3(tmp_path: Path) -> None:
    found = check(tmp_path / "nowhere")
    assert (found["code"], found["whole"]) == (3, False)


def test_no_words_of_a_hub_or_user_move_the_cursor(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "check", "--directory", str(tmp_path / "x\x1b[2Jy")]
    assert "x [2Jy: not whole" in subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def test_broken_record_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / ".pd-model.json").write_text('{"files": []}')
    found = check(tmp_path)
    assert (found["code"], found["whole"]) == (1, False)
    assert "not a record" in found["reason"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's own model: no record."""
    directory = tmp_path / "own"
    for name, content in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def test_own_model_is_whole(own: Path) -> None:
    found = check(own)
    assert (found["code"], found["whole"], found["reason"], found["repo"]) == (0, True, None, None)
    assert (found["files"], found["bytes"]) == (7, sum(map(len, FILES.values())))


def test_own_model_of_one_file_is_whole(own: Path) -> None:
    (own / "model.safetensors.index.json").unlink()
    (own / FIRST).rename(own / "model.safetensors")
    (own / SECOND).unlink()
    assert check(own)["code"] == 0


def cut(name: str, left: int) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[:left])

    return damage


def grow(directory: Path) -> None:
    with (directory / SECOND).open("ab") as file:
        file.write(b"more")


def text(directory: Path) -> None:
    (directory / SECOND).write_text("<html>502 Bad Gateway, and some more text of a proxy</html>")


def without(*names: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        for name in names:
            (directory / name).unlink()

    return damage


@pytest.mark.parametrize(
    ("damage", "missing", "changed", "reason"),
    [
        (without("config.json"), ["config.json"], [], "missing: config.json"),
        (without("tokenizer.json"), ["tokenizer.json"], [], "missing: tokenizer.json"),
        (without(SECOND), [SECOND], [], f"missing: {SECOND}"),
        (cut(FIRST, 1 << 20), [], [FIRST], "its header says"),
        (cut(FIRST, 100), [], [FIRST], "no safetensors header"),
        (cut(FIRST, 4), [], [FIRST], "no safetensors header"),
        (cut(FIRST, 0), [], [FIRST], "no safetensors header"),
        (grow, [], [SECOND], "its header says"),
        (text, [], [SECOND], "no safetensors header"),
        (cut("model.safetensors.index.json", 9), [], ["model.safetensors.index.json"], "changed or cut off"),
        (without("model.safetensors.index.json", FIRST, SECOND), [], [], "no safetensors file"),
    ],
)
def test_own_model_that_is_not_whole(
    own: Path, damage: Callable[[Path], None], missing: list[str], changed: list[str], reason: str
) -> None:
    damage(own)
    found = check(own)
    assert (found["code"], found["whole"]) == (1, False)
    assert (found["missing"], found["changed"]) == (missing, changed)
    assert reason in found["reason"]


# --- revisions beside each other -----------------------------------------------------------------------


def test_what_another_revision_has_is_neither_fetched_nor_stored_twice(host: Host) -> None:
    assert host.fetch().returncode == 0
    before, first = host.contents(), host.directory
    host.hub.files["config.json"] = b'{"model_type": "tiny", "newer": true}\n'
    host.hub.revisions.append(OTHER_REVISION)
    host.hub.asked.clear()
    host.directory = first.with_name("tiny-ffffffffffff")
    done = host.fetch("--beside", str(first), revision=OTHER_REVISION)
    assert done.returncode == 0, done.stderr
    assert "are those of another revision: not fetched again" in done.stdout
    assert host.whole() and host.hub.gets(FIRST) == host.hub.gets("tokenizer.json") == []
    assert (host.directory / FIRST).stat().st_ino == (first / FIRST).stat().st_ino
    host.directory = first
    assert host.contents() == before


def test_a_file_that_only_looks_like_the_one_of_another_revision_is_fetched(host: Host) -> None:
    """Its record says what it held when it was fetched; a hash of what it holds now decides."""
    assert host.fetch().returncode == 0
    first = host.directory
    (first / FIRST).write_bytes(spoilt(FILES[FIRST]))
    host.directory = first.with_name("tiny-ffffffffffff")
    host.hub.revisions.append(OTHER_REVISION)
    host.hub.asked.clear()
    assert host.fetch("--beside", str(first), revision=OTHER_REVISION).returncode == 0
    assert host.whole() and len(host.hub.gets(FIRST)) == 1
    assert (first / FIRST).read_bytes() == spoilt(FILES[FIRST])


def test_revisions_that_are_kept_are_told_by_folder_and_record(host: Host) -> None:
    assert host.fetch().returncode == 0
    models = host.directory.parent
    for name in ("tiny-0123456789ab", "tiny-other", "tinier-0123456789ab"):
        (models / name).mkdir()
    (models / "tiny-ffffffffffff").symlink_to("tiny")
    command = [sys.executable, str(TOOL), "kept", "--directory", str(models), "--name", "tiny"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == {
        "tiny": {"kind": "directory", "revision": REVISION},
        "tiny-0123456789ab": {"kind": "directory", "revision": ""},
        "tiny-ffffffffffff": {"kind": "link", "revision": ""},
    }
