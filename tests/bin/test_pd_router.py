"""pd-router against a module that stands in for a router: the key reaches it, and no command line."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.plan.service.api_key import key_of, written
from tests.bin.tools import load, run

shared = load("pd_shared.py")
ROUTER = """
import argparse, json, pathlib
def parse_router_args(words):
    parser = argparse.ArgumentParser(prog="router")
    parser.add_argument("--port", type=int)
    parser.add_argument("--api-key")
    parser.add_argument("--prefill", nargs="+", action="append")
    parser.add_argument("--control-plane-api-keys", nargs="*", default=[])
    parser.add_argument("--tenant-api-keys", nargs="*", default=[])
    return parser.parse_args(words)
def launch_router(args):
    told = [args.port, args.prefill, args.api_key, args.control_plane_api_keys]
    told += [getattr(args, "tenant_api_keys", [])]
    print(json.dumps([*told, pathlib.Path("/proc/self/cmdline").read_text()]))
"""
KEYS = st.text(string.digits + string.ascii_letters + string.punctuation + " ", min_size=16, max_size=60).filter(
    lambda key: key == key.strip()
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("router")
    (made / "a_router.py").write_text(ROUTER)
    (made / "keyless.py").write_text(ROUTER.replace('    parser.add_argument("--api-key")\n', ""))
    (made / "single.py").write_text(
        ROUTER.replace('    parser.add_argument("--tenant-api-keys", nargs="*", default=[])\n', "")
    )
    (made / "other.py").write_text("x = 1\n")
    return made


@given(KEYS)
@settings(max_examples=15)
def test_any_key_goes_from_the_setting_to_router_and_client(folder: Path, key: str) -> None:
    """Router and client read what the playbook wrote; the routers themselves are asked on a simulated host."""
    (folder / "key").write_bytes(written(key_of("PD_KEY", key)))
    ran = run("pd-router", "--key", folder / "key", "--module", "a_router", "--", "--port", "1", PYTHONPATH=str(folder))
    assert ran.returncode == 0, ran.stderr
    _, _, found, _, _, command_line = json.loads(ran.stdout)
    assert found == key
    assert key not in command_line and command_line.endswith("--port\x001\x00")
    assert shared.read_key(folder / "key") == key


def test_the_arguments_arrive_as_they_are(folder: Path) -> None:
    (folder / "key").write_bytes(written("k" * 16))
    words = ["--prefill", "http://a:1", "8998", "--prefill", "http://b:1", "--port", "8000"]
    ran = run("pd-router", "--key", folder / "key", "--module", "a_router", "--", *words, PYTHONPATH=str(folder))
    assert json.loads(ran.stdout)[:2] == [8000, [["http://a:1", "8998"], ["http://b:1"]]]


def test_the_key_to_administer_a_router_is_drawn_anew_at_each_start_and_shown_to_nobody(folder: Path) -> None:
    drawn = set()
    for _ in range(2):
        ran = run("pd-router", "--module", "a_router", "--", "--port", "1", PYTHONPATH=str(folder))
        _, _, of_clients, administering, _, command_line = json.loads(ran.stdout)
        ((_, _, key, role),) = administering
        assert of_clients is None and role == "admin" and len(key) == 64 and key not in command_line + ran.stderr
        drawn.add(key)
    assert len(drawn) == 2


def test_the_key_before_stays_good_beside_the_key(folder: Path) -> None:
    (folder / "key").write_bytes(written("k" * 16, "b" * 16))
    ran = run("pd-router", "--key", folder / "key", "--module", "a_router", "--", "--port", "1", PYTHONPATH=str(folder))
    _, _, key, _, earlier, command_line = json.loads(ran.stdout)
    assert (key, earlier) == ("k" * 16, [["before-0", "b" * 16]])
    assert "b" * 16 not in command_line
    assert shared.read_key(folder / "key") == "k" * 16, "what asks as a client sends the new one"


@pytest.mark.parametrize(
    ("module", "content", "words", "code", "line"),
    [
        ("a_router", b"", [], 2, "holds no key: one line of printable ASCII"),
        ("a_router", b"three\nlines\nare too many\n", [], 2, "holds no key"),
        ("a_router", b"two\n\n", [], 2, "holds no key"),
        ("single", b"good\nearlier\n", [], 1, "single takes one key, "),
        ("a_router", b" blank before\n", [], 2, "holds no key"),
        ("a_router", b"PD_API_KEY=\xff\n", [], 2, "holds no key"),
        ("a_router", b"good\n", ["--api-key", "another"], 1, "or has been given one as an argument"),
        ("keyless", b"good\n", [], 1, "keyless takes no key"),
        ("a_router", b"good\n", ["--control-plane-api-keys", "x:x:admin:x"], 1, "has been given one as an argument"),
        ("other", b"good\n", [], 1, "other cannot be started with a key: module 'other' has no attribute"),
        ("nowhere", b"good\n", [], 1, "nowhere cannot be started with a key: No module named 'nowhere'"),
    ],
)
def test_what_cannot_be_started_says_why(
    folder: Path, module: str, content: bytes, words: list[str], code: int, line: str
) -> None:
    (folder / "key").write_bytes(content)
    ran = run("pd-router", "--key", folder / "key", "--module", module, "--", *words, PYTHONPATH=str(folder))
    assert (ran.returncode, ran.stdout) == (code, "")
    assert line in ran.stderr and "good" not in ran.stderr
