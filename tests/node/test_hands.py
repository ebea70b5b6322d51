"""Hands on a served host: each change is named by a dry run, put right by a run, and then nothing is left to change."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.plan.service.paths import DEVICES
from tasks.plan.service.units import mark
from tests.bin.wheels import wheel
from tests.node.asking import CONFIG, UNITS, answers, out, pids, states
from tests.node.deploying import INVENTORY, Result, broken_off, deploy, environment
from tests.node.node import REPOSITORY, Node
from tests.node.waiting import until

ROOT, STATE, SYSTEMD = "/opt/sglang-pd", "/var/lib/sglang-pd", "/etc/systemd/system"
ENV = f"{ROOT}/current/env"
SITE = f"{ROOT}/current/env/lib/python3.11/site-packages"
START_LIMIT = 300.0  # seconds
GONE = "sglang-0.4.0-cpu-py3.11-0123456789"
UNIT_DROP_IN = f"{SYSTEMD}/{UNITS[0]}.d/override.conf"

# What no server has to restart for: a command, and the operations that name it and put it right.
QUIET = {
    "launch script": (f"echo '# by hand' >>{CONFIG}/decode.sh", {f"Launch | File {CONFIG}/decode.sh"}),
    "environment file gone": (f"rm {CONFIG}/router.env", {f"Launch | File {CONFIG}/router.env"}),
    "unit": (f"echo '# by hand' >>{SYSTEMD}/{UNITS[0]}", {f"Launch | File {SYSTEMD}/{UNITS[0]}"}),
    "drop-in": (f"mkdir -p {SYSTEMD}/{UNITS[0]}.d && printf '[Service]\\nNice=5\\n' >{UNIT_DROP_IN}", {
        "Services | No drop-ins over single units"}),
    "masked": (f"ln -sf /dev/null {SYSTEMD}/{UNITS[1]}; systemctl daemon-reload", {
        f"Launch | File {SYSTEMD}/{UNITS[1]}", f"Services | Enabled {UNITS[1]}"}),
    "unit that only servers on GPUs need": (
        f"printf '%s\\n' {shlex.quote(mark(DEVICES))} '[Service]' ExecStart=/bin/true >{SYSTEMD}/{DEVICES}", {
        "Services | Units that no instance needs"}),
    "disabled": (f"systemctl disable -q {UNITS[2]}", {f"Services | Enabled {UNITS[2]}"}),
    "watchdog stopped": ("systemctl stop sglang-pd-watchdog", {"Services | Running: watchdog"}),
    "watchdog disabled": ("systemctl disable -q sglang-pd-watchdog", {"Services | Enabled sglang-pd-watchdog.service"}),
    "target disabled": ("systemctl disable -q sglang-pd.target", {"Services | Enabled sglang-pd.target"}),
    "mode": (f"chmod 777 {CONFIG}/router.sh", {f"Launch | File {CONFIG}/router.sh"}),
    "owner": (f"chown sglang {CONFIG}/prefill.env", {f"Launch | File {CONFIG}/prefill.env"}),
    "questions": (f"echo >>{CONFIG}/verify.json", {f"Launch | File {CONFIG}/verify.json"}),
    "tool": (f"echo '# by hand' >>{ROOT}/bin/pd-gate", {f"Runtime | Tools in {ROOT}/bin"}),
    "tool that others may write": (f"chmod 777 {ROOT}/bin/pd-launch", {f"Runtime | Tools in {ROOT}/bin"}),
    "mode of a folder": (f"chmod 777 {STATE}/models", {f"System | Folder {STATE}/models"}),
    "folder gone": (f"rm -r {STATE}/cache/sglang-*", {f"System | Folder {STATE}/cache/RELEASE"}),
    "kernel settings": ("rm /etc/sysctl.d/60-sglang-pd.conf", {
        "System | Kernel settings /etc/sysctl.d/60-sglang-pd.conf"}),
    "current moved": (f"ln -sfn {ROOT}/releases/none {ROOT}/current", {"Activate | Current release is RELEASE"}),
    "leftovers": (f"cd {CONFIG}; touch decode.sh.new prefill-7.env {SYSTEMD}/sglang-pd-decode.service.new "
        f"{ROOT}/locks/{GONE}-router.txt; ln -s none {ROOT}/current.new; runuser -u sglang mkdir {STATE}/cache/{GONE}", {
        "Retire | No leftovers of earlier runs"}),
}  # fmt: skip
OLDER = "/tmp/mdurl-0.0.9-py3-none-any.whl"
# What changes the bytes that servers load: they restart on the right ones.
PACKAGES = {
    "file of a package gone": f"rm {SITE}/markdown_it/main.py",
    "another version": f"{ROOT}/tools/uv/bin/uv pip install -q --no-deps --no-index --python {ENV}/bin/python {OLDER}",
    "package gone": f"rm -r {SITE}/shellingham {SITE}/shellingham-*",
    "file of a package": f"echo '# by hand' >>{SITE}/wcwidth/__init__.py",
    "file of a patch": f"echo '# by hand' >>{SITE}/pd_overlay_cpu_engine/__init__.py",
    "file that nobody placed": f"echo 'import sys' >{SITE}/by_hand.pth",
}


def drift(node: Node, *more: str) -> tuple[int, list[dict[str, str]]]:
    """Exit status and rows of the command behind `make drift`."""
    command = [sys.executable, "-m", "tasks.support.drift", "rehearsal", "--inventory", INVENTORY, "--json", *more]
    ran = subprocess.run(
        command, cwd=REPOSITORY, env=environment(node), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert ran.returncode != 1, ran.stderr
    return ran.returncode, json.loads(ran.stdout)["rehearsal"]


def changed(run: Result) -> list[str]:
    """Operations that a run changed something with; what passed is kept in the end, where it is another than before."""
    return [name for name in run.changed if name != "Verify | Kept as what passed last"]


@pytest.fixture(autouse=True)
def mended(served: Node) -> Iterator[None]:
    """Whatever a test broke and its runs did not mend is mended for the next."""
    yield
    if not answers(served):
        deploy(served, "-y")


def test_what_concerns_no_running_server_is_named_and_put_right_without_a_restart(served: Node) -> None:
    release = out(served, f"basename $(readlink {ROOT}/current)")
    wanted = {name.replace("RELEASE", release) for _, names in QUIET.values() for name in names}
    before = pids(served)
    for command, _ in QUIET.values():
        out(served, command)

    status, rows = drift(served)
    assert status == 2 and {name for row in rows for name in row["operation"].split("; ")} == wanted, rows
    assert ("decode: launch script", "as wanted") in {(row["what"], row["running"]) for row in rows}
    assert any(UNIT_DROP_IN in row["on_disk"] for row in rows)
    mended = deploy(served, "-y")
    assert set(changed(mended)) == wanted, mended.output
    assert pids(served) == before and states(served) == ["active"] * 3
    assert (
        served.run(f"test -e {UNIT_DROP_IN} || ls {SYSTEMD}/{DEVICES} {STATE}/cache/{GONE} {ROOT}/*/{GONE}*").returncode
        != 0
    )
    assert drift(served) == (0, [])


def test_changed_packages_are_named_and_servers_restart_on_the_right_ones(served: Node, tmp_path: Path) -> None:
    """Whether the change was there before their start or came after it: what they have loaded since, nobody knows."""
    older = wheel(tmp_path, "mdurl", "0.0.9", {"mdurl/__init__.py": ""})
    served.run(f"base64 -d >{OLDER}", text=base64.b64encode(older.read_bytes()).decode())
    version = f"{ENV}/bin/python -c 'import importlib.metadata as m; print(m.version(\"mdurl\"))'"
    locked = out(served, version)
    # a repair by hand, or a run that broke off behind it: the record is another than the one that they began with
    spec = out(served, f"ls {ROOT}/locks/$(basename $(readlink {ROOT}/current)).json")
    out(served, f"echo '# by hand' >>{SITE}/mdurl/_parse.py && {ROOT}/bin/pd-build repair --spec {spec}")
    dry = deploy(served, "--dry")
    assert dry.planned == ["Services | Running: prefill, decode"], dry.output
    assert "decode: restarts, it was started with another state of its packages" in dry.output

    for command in PACKAGES.values():
        out(served, command)
    out(served, f"systemctl stop {UNITS[2]}")
    before = pids(served)

    dry = deploy(served, "--dry")
    named = (
        f"env: package mdurl is 0.0.9, the lock says {locked}", "env: package shellingham is missing",
        "markdown_it/main.py is missing", "wcwidth/__init__.py is changed", "by_hand.pth is extra",
    )  # fmt: skip
    assert all(name in dry.output for name in named), dry.output
    assert "decode: restarts, this run repairs its packages" in dry.output
    assert "router: starts, it is inactive" in dry.output

    with slow_network(served):  # until the run says that it waits for it
        assert broken_off(served, "prefill: queued by systemd behind another unit", lambda _: out(served, GO)) == 0
    after = pids(served)
    assert not set(before.values()) & set(after.values()) and answers(served)
    assert out(served, version) == locked
    assert served.run(f"{ENV}/bin/python -c 'import markdown_it.main, shellingham'").returncode == 0
    recorded = json.loads(out(served, "cat /run/sglang-pd/decode/fingerprint.json"))["packages"]
    assert out(served, f"sha256sum <{ROOT}/current/env/.pd-env.json").split()[0] == recorded
    assert deploy(served, "-y").changed == []


GO = "touch /run/go"


@contextmanager
def slow_network(node: Node) -> Iterator[None]:
    """From now on the network is online once GO has been run."""
    unit, wants = f"{SYSTEMD}/slow.service", f"{SYSTEMD}/network-online.target.wants"
    waits = "ExecStart=sh -c 'until [ -e /run/go ]; do sleep 0.2; done'"
    node.run(f"cat >{unit}", text=f"[Unit]\nBefore=network-online.target\n[Service]\nType=oneshot\n{waits}\n")
    out(node, f"mkdir -p {wants} && ln -s ../slow.service {wants}/ && systemctl daemon-reload && "
        "systemctl stop network-online.target")  # fmt: skip
    try:
        yield
    finally:
        out(node, f"{GO}; rm {wants}/slow.service {unit}; systemctl daemon-reload")
        until(lambda: states(node)[0] in ("active", "failed"), "prefill has started", START_LIMIT)
        out(node, "rm /run/go")


def test_what_the_service_user_cannot_read_is_refused_before_anything_stops(served: Node) -> None:
    """Root reads it, so nothing else would tell before the new servers fail."""
    before = pids(served)
    out(served, f"cp -r {ROOT}/models/rehearsal-qwen2 /srv/model && chmod 600 /srv/model/tokenizer.json")
    try:
        run = deploy(served, "-y", model_dir="/srv/model")
    finally:
        out(served, "rm -r /srv/model")
    assert run.status != 0 and "Traceback" not in run.output
    said = "host/user/reads: servers run as sglang: it may not read /srv/model/tokenizer.json (600 root:root)"
    assert said in run.output, run.output
    assert pids(served) == before


def test_a_router_started_by_hand_is_named_and_ended_only_where_the_setting_says_so(served: Node) -> None:
    out(served, f"systemctl stop {UNITS[2]}")
    out(
        served,
        "setsid -f bash -c 'exec -a sglang::router python3 -m http.server 8000 --bind 127.0.0.1' >/dev/null 2>&1",
    )
    until(lambda: ":8000" in out(served, "ss -Hltn"), "it listens", 20)
    pid = out(served, "pgrep -f '^sglang::router -m http.server'")

    refused = deploy(served, "-y")
    assert refused.status != 0
    assert f"port 8000 of router (router_port) is taken by pid {pid} (sglang::router" in refused.output
    assert "end it or, since it is a server of SGLang's outside every unit, set end_strays = True" in refused.output, (
        refused.output
    )
    assert out(served, "pgrep -f '^sglang::router -m http.server'") == pid

    mended = deploy(served, "-y", end_strays=True)
    assert changed(mended) == ["Topology | No stray servers", "Services | Running: router"], mended.output
    assert served.run(f"kill -0 {pid}").returncode != 0 and answers(served)
