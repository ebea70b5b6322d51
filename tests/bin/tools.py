"""What the tests of the on-host tools share: running a tool, an HTTP server, waiting for a condition."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

BIN = Path(__file__).resolve().parents[2] / "files/bin"
GIVE_UP_S = 60.0  # only a broken tool makes a test wait this long

Handler = Callable[[BaseHTTPRequestHandler], None]


def load(tool: str) -> ModuleType:
    """A tool as a module, for its tables and pure functions."""
    name = tool.replace("-", "_")
    loader = SourceFileLoader(name, str(BIN / tool))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes_bytecode
    return module


def start(tool: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, BIN / tool, *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | variables,
    )  # fmt: skip


def finish(child: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = child.communicate(timeout=GIVE_UP_S)
    finally:
        child.kill()
        child.wait()
    assert "Traceback (most recent call last)" not in err, err
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def run(tool: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return finish(start(tool, *arguments, **variables))


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds; fail with its description when it never does."""
    deadline = time.monotonic() + GIVE_UP_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


class Site:
    """An HTTP server on a free loopback port. `answers` maps a path (without query) to what handles it."""

    def __init__(self) -> None:
        self.answers: dict[str, Handler] = {}
        self.requests: list[tuple[str, str]] = []  # method and path, with query
        site = self

        class Request(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append((self.command, self.path))
                site.answers.get(self.path.partition("?")[0], answer(404))(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.server.daemon_threads = True
        self.port = int(self.server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def asked(self, path: str) -> int:
        return sum(asked.partition("?")[0] == path for _, asked in self.requests)


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        thread.join()
        site.server.server_close()


def answer(status: int, body: bytes | str = b"", content_type: str = "text/plain") -> Handler:
    content = body.encode() if isinstance(body, str) else body

    def handle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return handle


_HELD: list[socket.socket] = []


def closed_port() -> int:
    """A port at which nobody listens, taken until the tests end so that nobody else can."""
    _HELD.append(held := socket.socket())
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


@contextmanager
def serving_socket() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])
