"""pd_shared: what the installed tools share, and where they find it."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.support import catalogue
from tests import certificates
from tests.bin.tools import BIN, answer, load, serving

load("pd-verify")  # its folder is where the module is found from now on
import pd_shared as shared  # noqa: E402

SHARING = [tool.name for tool in sorted(BIN.glob("pd-*")) if "from pd_shared import" in tool.read_text()]


# ---- where it is found


def test_tools_that_travel_as_text_stand_alone() -> None:
    assert {"pd-env", "pd-model", "pd-patch"}.isdisjoint(SHARING)
    assert len(SHARING) == len(list(BIN.glob("pd-*"))) - 3


def test_it_is_installed_beside_the_tools_and_readable_by_the_service_user() -> None:
    placed = {file.path: file for file in catalogue.placed_tools("/opt/somewhere")}
    assert {Path(path).name for path in placed} == {path.name for path in BIN.iterdir() if path.is_file()}
    shared_by_all = {path for path in placed if Path(path).suffix}
    assert {file.mode for path, file in placed.items() if path in shared_by_all} == {"644"}
    assert {file.mode for path, file in placed.items() if path not in shared_by_all} == {"755"}
    assert next(iter(placed)) == "/opt/somewhere/pd_shared.py", "a tool never runs before what it needs is there"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Tools in a folder `bin`; beside it a link to them, and a folder whose module must never be imported."""
    shutil.copytree(BIN, tmp_path / "bin", ignore=shutil.ignore_patterns("__pycache__"))
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "pd_shared.py").write_text("raise SystemExit('imported from a folder that others write to')\n")
    for tool in SHARING:
        (hostile / tool).symlink_to(tmp_path / "bin" / tool)
    return tmp_path


WAYS: dict[str, Callable[[Path, str], list[str]]] = {
    "by path": lambda host, tool: [sys.executable, str(host / "bin" / tool)],
    "isolated": lambda host, tool: [sys.executable, "-I", "-S", str(host / "bin" / tool)],
    "through a link": lambda host, tool: [sys.executable, str(host / "hostile" / tool)],
    "from its folder": lambda host, tool: [sys.executable, os.path.relpath(host / "bin" / tool, host / "hostile")],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tool", SHARING)
def test_a_tool_finds_it_in_its_own_real_folder(host: Path, tool: str, way: str) -> None:
    done = subprocess.run(
        [*WAYS[way](host, tool), "--help"], cwd=host / "hostile", env={"PYTHONPATH": str(host / "hostile")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {tool} ") and "exit codes" in done.stdout


# ---- faults


def test_what_goes_wrong_is_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def raising(problem: Exception) -> Callable[[], int]:
        def main() -> int:
            raise problem

        return main

    assert shared.exit_code(lambda: 7) == 7
    assert shared.exit_code(raising(shared.Fault("a server said \x1b[2J\n\x9bthis"))) == 1
    assert capsys.readouterr().err.endswith(": a server said  [2J this\n")
    assert shared.exit_code(raising(shared.Fault("no such thing"))) == 1
    assert shared.exit_code(raising(shared.Fault("no such setting", 2))) == 2
    assert shared.exit_code(raising(OSError(28, "No space left on device", "/x/y"))) == 1
    assert shared.exit_code(raising(PermissionError(13, "Permission denied"))) == 1
    tool = Path(sys.argv[0]).name
    assert capsys.readouterr().err.splitlines() == [
        f"{tool}: no such thing", f"{tool}: no such setting",
        f"{tool}: /x/y: no space left on the file system", f"{tool}: output: Permission denied",
    ]  # fmt: skip


def test_a_signal_is_a_fault_once_it_is_asked_for() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        shared.stop_with_a_fault(signal.SIGHUP)
        with pytest.raises(shared.Fault, match="stopped by SIGHUP"):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


# ---- configuration


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "is not JSON"),
        ("\xff", "is not JSON"),
        ("[]", "holds no JSON object"),
        ('{"url": "x", "limit_s": 1, "colour": 1}', ": unknown colour"),
        ('{"limit_s": 1}', ": url is missing or of the wrong type"),
        ('{"url": "x", "limit_s": "1"}', ": limit_s is missing or of the wrong type"),
        ('{"url": "x", "limit_s": 1, "key": 1}', ": key is missing or of the wrong type"),
        ('{"url": "x", "limit_s": 1, "words": "many"}', ": words is missing or of the wrong type"),
        ('{"url": "x", "limit_s": 1, "words": ["many", 1]}', ": words is missing or of the wrong type"),
    ],
)
def test_a_configuration_that_cannot_be_used(tmp_path: Path, content: str, line: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(shared.Fault) as fault:
        shared.read_config(path, {"url": str, "limit_s": int | float, "key": str | None, "words": list[str]})
    assert str(fault.value).startswith(str(path)) and line in str(fault.value)
    assert fault.value.code == 2


def test_what_may_be_null_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"url": "x"}')
    found = shared.read_config(tmp_path / "config.json", {"url": str, "key": str | None})
    assert found == {"url": "x", "key": None}


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(shared.Fault, match=f"cannot read {tmp_path}/none: No such file or directory"):
        shared.read_config(tmp_path / "none", {})


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("0123456789abcdef\n", "0123456789abcdef"),
        ("it's \"mine\" # 'really'\n", "it's \"mine\" # 'really'"),
        ("PD_API_KEY='abc'\n", "PD_API_KEY='abc'"),
        ("no line break", "no line break"),
        ("the key to send\nthe one before\n", "the key to send"),
        ("three\nlines\nare too many\n", None),
        ("blank after \n", None),
        ("\n", None),
        ("", None),
        ("schl\u00fcssel\n", None),
    ],
)
def test_files_with_a_key_and_without(tmp_path: Path, content: str, key: str | None) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    if key:
        assert shared.read_key(str(path)) == key
        return
    with pytest.raises(shared.Fault, match="holds no key: one line of printable ASCII") as fault:
        shared.read_key(str(path))
    assert fault.value.code == 2


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/metrics", "http://[::1]:8000/metrics"),
        ("http://127.0.0.1", None),
        ("http://127.0.0.1:many", None),
        ("https://127.0.0.1:8000", "https://127.0.0.1:8000"),
        ("ftp://127.0.0.1:8000", None),
        ("127.0.0.1:8000", None),
        ("http://127.0.0.1:8000/?a=b", None),
    ],
)
def test_addresses(url: str, address: str | None) -> None:
    if address:
        assert shared.address(url) == address
        return
    with pytest.raises(shared.Fault, match="not http://HOST:PORT or https://HOST:PORT: "):
        shared.address(url)


def test_an_https_server_has_to_show_one_certificate_whatever_its_name(tmp_path: Path) -> None:
    """The router's is made for the clients' address, and our tools ask at another."""
    own, other = (certificates.made(tmp_path, name) for name in ("own", "other"))
    with serving() as site:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*own)
        site.server.socket = context.wrap_socket(site.server.socket, server_side=True)
        site.answers["/health"] = answer(200, "{}")
        url = f"https://127.0.0.1:{site.port}"
        opened = shared.connection(url, 10, own[0])
        opened.request("GET", "/health")
        assert opened.getresponse().status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            shared.connection(url, 10, other[0]).connect()
    with pytest.raises(shared.Fault, match="cannot read certificate"):
        shared.connection(url, 10, tmp_path / "missing.pem")


# ---- files


def test_a_file_is_replaced_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    before = os.umask(0o077)
    try:
        shared.write_atomically(path, "text\n")
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("text\n", 0o644)
        shared.write_atomically(path, b"\xff", 0o600)
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"\xff", 0o600)
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root\n")
    (tmp_path / "result.json").symlink_to("passwd")
    shared.write_atomically(tmp_path / "result.json", "text\n")
    assert (tmp_path / "passwd").read_text() == "root\n"
    assert not (tmp_path / "result.json").is_symlink()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        shared.write_atomically(tmp_path / "result.json", "text\n")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_whatever_is_there_is_removed_and_a_link_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("folder", "file", "link", "dangling", "absent"):
        shared.remove(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_samples_are_read_as_prometheus_writes_them() -> None:
    text = '# HELP a b\na{x="}",y="2"} 1e3\na 2 1700000000\nab 7\nb{} 0.5\n'
    assert shared.samples(text, ["a", "b"]) == [("a", 1000.0), ("a", 2.0), ("b", 0.5)]
    assert shared.samples(text, ["c"]) == []


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1.2.3", "."])
def test_a_sample_that_is_no_finite_number(value: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        shared.samples(f"a {value}\n", ["a"])


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A systemctl that does as this line of a shell says."""

    def made(line: str) -> None:
        (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "systemctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return made


def test_units_as_systemd_shows_them(systemctl: Callable[[str], None]) -> None:
    systemctl("printf 'Id=b.service\\nJob=1=2\\n\\nId=a.service\\nJob=\\n'")
    assert shared.unit_states(["a.service", "b.service", "c.service"], "Job") == {
        "a.service": {"Id": "a.service", "Job": ""},
        "b.service": {"Id": "b.service", "Job": "1=2"},
        "c.service": {},
    }


def test_a_systemd_that_does_not_answer(systemctl: Callable[[str], None]) -> None:
    systemctl("echo 'no bus' >&2; exit 1")
    with pytest.raises(shared.Fault, match="systemctl: no bus"):
        shared.unit_states(["a.service"], "Job")
