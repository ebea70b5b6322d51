"""Package indexes of a test, which tell who asked, and a proxy that tells what else was asked."""

from __future__ import annotations

import base64
import http.server
import io
import re
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote


@dataclass
class Index:
    fault: str  # "503" or "401" for every answer; "half" or "wrong" (a file more) for wheels; it may change at any time
    spared: int = 0  # requests that are answered well before the fault sets in
    url: str = ""
    authorizations: list[str] = field(default_factory=list)  # of each request
    given: list[str] = field(default_factory=list)  # wheels that were given out
    asked: threading.Event = field(default_factory=threading.Event)  # a wheel was asked for
    go: threading.Event = field(default_factory=threading.Event)  # wheels are given out

    @property
    def port(self) -> int:
        return int(re.sub(r".*:|/.*", "", self.url.partition("//")[2]))

    @property
    def flat(self) -> str:
        """URL of one page with all wheels, as find-links wants it."""
        return self.url.removesuffix("simple") + "flat/"

    def strikes(self) -> str:
        """The fault of the next answer."""
        if self.fault and self.spared > 0:
            self.spared -= 1
            return ""
        return self.fault


def with_a_file_more(wheel: bytes) -> bytes:
    content = io.BytesIO(wheel)
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr("stray.py", "")
    return content.getvalue()


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], address: str, pem: Path | None = None) -> Iterator[int]:
    """A server on a free port of `address`; over TLS where `pem` holds its certificate and key."""

    class Quiet(handler):  # type: ignore[misc, valid-type]
        def log_message(self, *arguments: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError, ssl.SSLError):  # a client that was ended, or that does not trust us
                super().handle()

    server = http.server.ThreadingHTTPServer((address, 0), Quiet)
    if pem:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def index(
    wheels: Path, fault: str = "", held: bool = False, address: str = "127.0.0.1", pem: Path | None = None,
    user: str = "",
) -> Iterator[Index]:  # fmt: skip
    """A simple index of `wheels`; held: wheels wait for `go`; user: NAME:PASSWORD that it asks for."""
    served = Index(fault)
    if not held:
        served.go.set()
    wanted = f"Basic {base64.b64encode(user.encode()).decode()}" if user else ""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.authorizations.append(self.headers.get("Authorization", ""))
            folder, _, name = unquote(self.path).strip("/").partition("/")
            fault = served.strikes() if folder == "wheels" or served.fault.isdigit() else ""
            if wanted not in {"", served.authorizations[-1]}:
                self.answer(401, b"", challenge=True)
            elif fault.isdigit():
                self.answer(int(fault), b"")
            elif folder in {"simple", "flat"}:
                every = [path.name for path in wheels.glob("*.whl")]
                found = [file for file in every if folder == "flat" or normalised(file.split("-")[0]) == name]
                links = "".join(f'<a href="/wheels/{quote(file)}">{file}</a>\n' for file in found)
                self.answer(200 if links else 404, links.encode(), "text/html")
            else:
                served.asked.set()
                served.go.wait(60)
                served.given.append(name)
                body = (wheels / name).read_bytes()
                if fault == "wrong":
                    body = with_a_file_more(body)
                self.answer(200, body, length=len(body) // 2 if fault == "half" else None)

        def answer(
            self, status: int, body: bytes, kind: str = "application/octet-stream", length: int | None = None,
            challenge: bool = False,
        ) -> None:  # fmt: skip
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if challenge:
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.end_headers()
            self.wfile.write(body[:length])

    with serving(Handler, address, pem) as port:
        served.url = f"{'https' if pem else 'http'}://{address}:{port}/simple"
        try:
            yield served
        finally:
            served.go.set()


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """The URL of a proxy that lets nobody through, and the hosts that it is asked for."""
    hosts: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            hosts.append(re.sub(r"^\w+://|[:/].*$", "", self.path))
            self.send_error(403)

        do_GET = do_CONNECT

    with serving(Handler, "127.0.0.1") as port:
        yield f"http://127.0.0.1:{port}", hosts


def certificate(pem: Path, address: str) -> Path:
    """A new certificate and its key for a server of `address`, in the file `pem`; the certificate alone, beside it."""
    public = pem.with_suffix(".crt")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", f"/CN={address}", "-addext", f"subjectAltName=IP:{address}"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", str(pem), "-out", str(public)]
    subprocess.run(command, check=True, capture_output=True)
    with pem.open("a") as both:
        both.write(public.read_text())
    return public


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
