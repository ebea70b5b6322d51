"""A proxy of a node's network: the one way to hosts whose names nobody else knows."""

from __future__ import annotations

import http.client
import http.server
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.bin.indexes import serving


@contextmanager
def proxy(address: str, known: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the hosts that it was asked for. known: name of a host -> address where it really is.

    It passes on GET and HEAD; a host that it does not know is answered with 502.
    """
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked.append(parts.hostname or self.path)
            if parts.hostname not in known:
                self.send_error(502)
                return
            there = http.client.HTTPConnection(known[parts.hostname], parts.port or 80, timeout=60)
            headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
            there.request(self.command, parts._replace(scheme="", netloc="").geturl(), headers=headers)
            answer = there.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            there.close()

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_CONNECT(self) -> None:
            self.do_GET()

    with serving(Handler, address) as port:
        yield f"http://{address}:{port}", asked
