"""Parts on their own: what `make stop`, `start`, `reboot`, `verify`, `logs`, `bundle` and `remove` do to a host, and leave alone."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.plan.service.paths import BOOT_ID
from tasks.plan.service.units import mark
from tests.node.asking import UNITS, answers, out, pids, states
from tests.node.deploying import Result, deploy, plain_user, without_plain_user
from tests.node.node import REPOSITORY, Node

long = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make test-faults")
SAID = """\
HF_TOKEN=planted-token
Authorization: Bearer planted-bearer
key planted-key-of-clients refused
body: {"messages": [{"role": "user", "content": "planted-prompt"}]}
torch.OutOfMemoryError: CUDA out of memory.
"""
STOPPED = "/var/lib/sglang-pd-playbook/stopped.json"


def part(node: Node, name: str, **data: object) -> Result:
    """As make calls it."""
    return deploy(node, "-y", operations=f"tasks.{name}", **data)


def refused(node: Node, name: str, **data: object) -> str:
    """The one line of a part that cannot be done."""
    ran = part(node, name, **data)
    [line] = [line for line in ran.output.splitlines() if "refused:" in line]
    assert ran.status == 1 and "Traceback" not in ran.output, ran.output
    return line.partition("refused:")[2].strip()


# ---- a host that serves


def test_verify_asks_every_question_and_changes_nothing(served: Node) -> None:
    before = pids(served)
    ran = part(served, "upkeep.verify")
    assert ran.status == 0, ran.output
    assert "the service answers every question right" in ran.output and "'391'" in ran.output
    assert pids(served) == before


def test_logs_of_a_host_that_serves(served: Node) -> None:
    ran = part(served, "upkeep.logs")
    assert ran.status == 0, ran.output
    assert all(f"{unit}: active (running)" in ran.output for unit in UNITS), ran.output


@long
def test_stopped_is_stopped_until_somebody_starts_it(served: Node) -> None:
    assert part(served, "upkeep.stop").status == 0
    assert states(served) == ["inactive"] * 3
    assert "stopped it at" in part(served, "upkeep.stop").output, "a second time it says who did"
    served.reboot()
    assert states(served) == ["inactive"] * 3, "also over a reboot"
    assert "stopped it at" in refused(served, "upkeep.verify")
    assert "starts, it is inactive: " in (dry := deploy(served, "--dry")).output and "stopped it at" in dry.output
    started = part(served, "upkeep.start")
    assert started.status == 0, started.output
    assert answers(served) and out(served, f"ls {STOPPED} 2>/dev/null; true") == ""
    assert out(served, "systemctl is-enabled sglang-pd.target") == "enabled"
    before = pids(served)
    assert part(served, "upkeep.start").status == 0
    assert pids(served) == before, "what runs is only asked"
    assert part(served, "upkeep.restart").status == 0
    assert not set(pids(served).values()) & set(before.values())
    assert deploy(served, "-y", reprove=True).status == 0, "the links were measured before the reboot"
    assert deploy(served, "-y").changed == []


@long
def test_a_reboot_on_purpose_brings_back_what_ran(served: Node) -> None:
    boot, before = out(served, f"cat {BOOT_ID}"), pids(served)
    rebooted = part(served, "upkeep.reboot", start_on_boot=False)
    assert rebooted.status == 0, rebooted.output
    assert out(served, f"cat {BOOT_ID}") != boot
    assert "no other host has a router: no request is answered until it is back" in rebooted.output
    assert "no request was answered for" in rebooted.output and "answers every question right" in rebooted.output
    assert states(served) == ["active"] * 3 and not set(pids(served).values()) & set(before.values())
    assert part(served, "upkeep.stop").status == 0
    again = part(served, "upkeep.reboot")
    assert again.status == 0 and "rebooted; nothing runs, as before: " in again.output, again.output
    assert states(served) == ["inactive"] * 3
    assert part(served, "upkeep.start").status == 0
    assert deploy(served, "-y", reprove=True).status == 0, "the links were measured before the reboot"
    assert deploy(served, "-y").changed == []


# ---- a host on which nothing serves


@pytest.fixture(scope="module")
def planted(bare_node: Callable[..., Node]) -> Iterator[Node]:
    """A unit of ours with its files, among files of somebody else's; secrets and prompts wherever they could be."""
    node = bare_node()
    unit = UNITS[0]
    assert node.run("cat >/root/said", text=SAID).returncode == 0
    text = f"{mark(unit)}\n[Service]\nType=oneshot\nExecStart=/bin/cat /root/said\n"
    made = node.run(
        "set -e; useradd --system sglang; mkdir -p /etc/sglang-pd /opt/sglang-pd/bin /opt/sglang-pd/releases/one "
        "/var/lib/sglang-pd/models/m /var/lib/sglang-pd/cache; chown -R sglang /var/lib/sglang-pd; "
        "touch /opt/sglang-pd/bin/pd-launch; "
        f"cat >/etc/systemd/system/{unit}; systemctl daemon-reload; systemctl start {unit}; "
        "echo 'HF_TOKEN=planted-environment' >/etc/sglang-pd/prefill.env; echo true >/etc/sglang-pd/prefill.sh; "
        "echo planted-key-of-clients >/etc/sglang-pd/api-key; echo theirs >/etc/sglang-pd/notes; "
        "echo theirs >/opt/sglang-pd/notes; echo weights >/var/lib/sglang-pd/models/m/model.safetensors; "
        "ln -s /opt/sglang-pd/releases/one /opt/sglang-pd/current; "
        "printf '[Service]\\nExecStart=/bin/true\\n' >/etc/systemd/system/sglang-pd-mine.service",
        text=text,
    )
    assert made.returncode == 0, made.stderr
    yield node


def test_a_bundle_holds_what_helps_and_no_secret(planted: Node, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "rehearsal.json").write_text('{"line": "key planted-key-of-clients, api_key=planted-report"}')
    before = set((REPOSITORY / "bundles").glob("*")) if (REPOSITORY / "bundles").is_dir() else set()
    ran = part(
        planted, "bundle.write", report_dir=reports, _sudo_password="planted-password",
        worker_environment=json.dumps({"MY_TOKEN": {"value": "planted-setting", "reason": "r", "source": "s"}}),
    )  # fmt: skip
    assert ran.status == 0, ran.output
    [archive] = set((REPOSITORY / "bundles").glob("*")) - before
    try:
        assert archive.name in ran.output and archive.stat().st_mode & 0o777 == 0o600
        with tarfile.open(archive) as tar:
            found = {entry.name.partition("/")[2]: tar.extractfile(entry).read().decode() for entry in tar}  # type: ignore[union-attr]
    finally:
        archive.unlink()
    assert not [name for name, text in found.items() if "planted" in text]
    assert "out of memory" in found[f"host/journal/{UNITS[0]}.txt"]
    assert found["host/config/prefill.env"].startswith("HF_TOKEN=")
    assert "Debian" in found["host/versions.txt"] and "RTX PRO 6000" in found["host/cards.txt"]
    assert {"settings.json", "reports/rehearsal.json", f"host/units/{UNITS[0]}"} < found.keys()
    assert "host/config/api-key" not in found


def test_a_run_that_asks_at_its_end_what_serves_leaves_nothing_behind(planted: Node) -> None:
    as_plain = plain_user(planted, password="not so secret")
    try:
        assert "serves    nothing" in (ran := deploy(planted, "--dry", *as_plain)).output, ran.output
        assert out(planted, "find /tmp /var/tmp /home/plain -name '*pyinfra*'") == "", "what hands sudo the password"
    finally:
        without_plain_user(planted)


def test_half_installed_is_one_line(planted: Node) -> None:
    assert "installed here in part, and never answered: run deploy.py" in refused(planted, "upkeep.start")
    assert "are older than `make logs`" in refused(planted, "upkeep.logs")


def test_remove_takes_what_is_ours_and_leaves_models_and_the_rest(planted: Node) -> None:
    assert "NAME=rehearsal" in refused(planted, "remove.everything")
    assert "NAME=rehearsal" in refused(planted, "remove.everything", remove="gpu-2")
    ran = part(planted, "remove.everything", remove="rehearsal")
    assert ran.status == 0, ran.output
    left = "find /etc/sglang-pd /opt/sglang-pd /var/lib/sglang-pd* /etc/systemd/system/sglang-pd* -type f | sort"
    assert out(planted, f"{left}; true").split() == [
        "/etc/sglang-pd/notes",
        "/etc/systemd/system/sglang-pd-mine.service",
        "/opt/sglang-pd/notes",
        "/var/lib/sglang-pd/models/m/model.safetensors",
    ]
    assert "stays: /opt/sglang-pd, /etc/sglang-pd, /var/lib/sglang-pd/models, /var/lib/sglang-pd" in ran.output
    out(planted, "rm /etc/sglang-pd/notes /opt/sglang-pd/notes; rmdir /etc/sglang-pd /opt/sglang-pd")
    again = part(planted, "remove.everything", remove="rehearsal")
    assert again.status == 0 and "there is nothing of ours on this host" in again.output
    assert again.changed == [] and out(planted, "ls /var/lib/sglang-pd-playbook 2>/dev/null; true") == ""
    assert refused(planted, "upkeep.stop") == "nothing is installed on this host: run deploy.py first"
