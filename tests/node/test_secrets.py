"""The API key on a simulated host: asked of clients, and nowhere to be seen by anybody else."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import certificates
from tests.node.asking import CONFIG, answers, out
from tests.node.deploying import deploy, plain_user, without_plain_user
from tests.node.node import Node

PART = "only-for-this-test-0123456789"
KEY = f'{PART} it\'s "mine" {string.punctuation}'  # each printable character that a shell or a header could take amiss
FILES = (f"{KEY}\n".encode(), KEY.encode(), f"PD_API_KEY={shlex.quote(KEY)}\n".encode())
SHAPES = [
    PART,
    *(hashlib.sha256(content).hexdigest() for content in FILES),
    *(base64.b64encode(content).decode()[:36] for content in FILES),
]
WATCH = """import os
seen = set()
while not os.path.exists("/run/watch-ends"):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            seen.add(open(f"/proc/{pid}/cmdline", "rb").read())
        except OSError:
            pass
os.write(1, b"\\n".join(seen))
"""
ASK = """
import json, ssl, sys, urllib.error, urllib.request
certificate, told = json.load(sys.stdin)
trust, url = None, "http://127.0.0.1:8000/v1/chat/completions"
if certificate:
    trust, url = ssl.create_default_context(cadata=certificate), url.replace("http:", "https:")
    trust.check_hostname = False  # it is made for the clients' address
body = json.dumps({"model": "rehearsal", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}).encode()
headers = {"Content-Type": "application/json", **told}
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, body, headers), context=trust)
    print(answer.status)
except urllib.error.HTTPError as error:
    print(error.code)
except urllib.error.URLError as error:
    print(getattr(error.reason, "reason", error.reason))
"""


def asked(node: Node, certificate: Path | None, *keys: str) -> list[str]:
    """What the router answers to a client that trusts this certificate and sends these keys; "" sends none."""
    trusted = certificate.read_text() if certificate else ""
    told = [[trusted, {"Authorization": f"Bearer {key}"} if key else {}] for key in keys]
    return [node.run(f"python3 -c {shlex.quote(ASK)}", text=json.dumps(one)).stdout.strip() for one in told]


def shown(text: str) -> list[str]:
    return [shape for shape in SHAPES if shape in text]


def leaks(node: Node, command: str, *more: str) -> list[str]:
    """What of the key, or of more secrets, stands in the output of a command."""
    node.run("umask 077; cat >/root/shapes", text="\n".join([*SHAPES, *more]) + "\n")
    found = node.run(f"{{ {command}; }} 2>/dev/null | grep -aoFf /root/shapes | sort -u")
    return found.stdout.split()


@contextmanager
def watched(node: Node) -> Iterator[None]:
    """Every command line that any user of the host could read meanwhile ends in /run/watched."""
    out(node, "rm -f /run/watch-ends /run/watched; touch /run/watch-begins")
    unit = "--unit=watcher -p User=nobody -p StandardOutput=file:/run/watched"
    out(node, f"systemd-run -q {unit} /usr/bin/python3 -c {shlex.quote(WATCH)}")
    try:
        yield
    finally:
        out(node, "touch /run/watch-ends; while systemctl -q is-active watcher; do :; done")


@pytest.fixture
def operator(served: Node) -> Iterator[tuple[str, ...]]:
    """How pyinfra is run as a user with sudo, who may write nothing in /tmp: what is sent must not pass through it."""
    as_plain = plain_user(served)
    out(served, "chgrp sglang /tmp && chmod 1775 /tmp")
    try:
        yield ("-y", *as_plain)
    finally:
        served.run("chgrp root /tmp; chmod 1777 /tmp")
        without_plain_user(served)


def test_a_key_is_asked_of_clients_and_shown_to_nobody(
    served: Node, operator: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PD_TEST_KEY", KEY)
    own, renewed = (certificates.made(tmp_path.parent, name) for name in ("own", "renewed"))
    data = {"router_api_key_env": "PD_TEST_KEY", "report_dir": tmp_path}
    data |= {"router_tls_certificate": own[0], "router_tls_key": own[1]}
    with watched(served):
        dry = deploy(served, "--dry", "--diff", *operator[1:], **data)
        ran = deploy(served, "--diff", "-vvv", *operator, **data)
    assert ran.status == 0, ran.output[-4000:]
    assert "Services | Running: router" in ran.changed

    assert asked(served, own[0], "", "wrong", KEY, KEY.rstrip("~")) == ["401", "401", "200", "401"]
    assert asked(served, renewed[0], KEY) == ["CERTIFICATE_VERIFY_FAILED"]
    assert answers(served), "the questions are asked with the key"
    assert out(served, f"stat -c '%a %U:%G' {CONFIG}/api-key {CONFIG}/tls.pem").split("\n") == ["640 root:sglang"] * 2
    private = own[1].read_text().splitlines()[1]
    assert private not in dry.output + ran.output
    assert leaks(served, f"cat {CONFIG}/tls.pem", private) == [private]

    assert shown(dry.output) == [] and shown(ran.output) == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and shown(path.read_text(errors="replace"))]
    for where in (
        "cat /run/watched",
        "cat /proc/[0-9]*/cmdline",
        "systemctl show --all '*'",
        "systemctl status --all --no-pager -n 1000 '*'",
        "journalctl --no-pager --all -o export",
    ):
        assert leaks(served, where, private) == [], where
    readable = "runuser -u nobody -- find / /run /tmp /dev/shm -xdev -type f -newer /run/watch-begins -readable -print0"
    assert leaks(served, f"{readable} | xargs -0 -r cat", private) == []
    assert leaks(served, f"cat {CONFIG}/api-key") == [PART], "what looks for it finds it"

    assert deploy(served, "-y", **data).changed == []
    monkeypatch.setenv("PD_TEST_KEY", f"another {KEY}")
    other = deploy(served, "-y", **{**data, "router_tls_certificate": renewed[0], "router_tls_key": renewed[1]})
    files = [f"Launch | API key {CONFIG}/api-key", f"Launch | Certificate and key {CONFIG}/tls.pem"]
    assert other.changed == [*files, "Services | Running: router", "Verify | Kept as what passed last"], other.output
    assert asked(served, renewed[0], KEY, f"another {KEY}") == ["401", "200"]


def test_what_an_interrupted_run_left_of_a_key_goes(served: Node) -> None:
    """Of this version and of earlier ones, which sent it through /tmp; another user's folder there is in nobody's way."""
    sent = "/tmp/pyinfra-" + hashlib.sha1(f"{CONFIG}/api-key.env.new".encode()).hexdigest()
    left = [f"{CONFIG}/api-key.new", f"{CONFIG}/api-key.env", f"{CONFIG}/api-key.env.new"]
    out(served, f"touch {shlex.join(left)}; runuser -u nobody -- mkdir {sent}")
    ran = deploy(served, "-y")
    assert ran.status == 0 and "Launch | No API key" in ran.changed, ran.output
    assert served.run(f"ls -d {shlex.join([*left, f'{CONFIG}/api-key'])}").stdout == ""
    out(served, f"rmdir {sent}; runuser -u nobody -- touch {sent}")
    assert deploy(served, "-y").changed == ["Launch | No API key"]
    assert served.run(f"ls -d {sent}").stdout == ""
    assert deploy(served, "-y").changed == []
    assert asked(served, None, "") == ["200"]
