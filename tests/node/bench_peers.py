"""python -m tests.node.bench_peers ANSIBLE_PLAYBOOK: a run with nothing to change, ours beside an Ansible playbook.

Both describe the same state of the same simulated host: packages, service user, folders, files, units, the servers'
health, one answer through the router. The Ansible playbook is written here from what our run left there, so its first
run must find nothing to change. It does not compare the files of the release with their record, as ours does.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tasks.plan.phases.system import debian_packages
from tasks.support import catalogue
from tests.node import wheels
from tests.node.bench import ROUNDS
from tests.node.deploying import deploy, provisioned
from tests.node.node import Node
from tests.node.settings import RELEASE

# Folders and files of ours on a host; a release, which Ansible would leave to pip or uv, is no part of it.
FOLDERS = "/etc/sglang-pd /opt/sglang-pd /opt/sglang-pd/bin /opt/sglang-pd/locks /var/lib/sglang-pd"
FILES = (
    "/etc/sglang-pd/* /opt/sglang-pd/bin/* /opt/sglang-pd/locks/* /etc/systemd/system/sglang-pd* "
    "/etc/sysctl.d/*sglang-pd* /etc/needrestart/conf.d/sglang-pd*"
)
OUR_OWN = "/etc/sglang-pd/passed.json"  # what a run of ours notes for the next one
SERVERS = ("prefill", "decode", "router", "watchdog")
RECAP = re.compile(r"ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)")


def listed(node: Node, test: str, paths: str) -> list[dict[str, str]]:
    """Path, owner, group and mode of each, as the modules file and copy want them."""
    found = node.run(f"find {paths} -maxdepth 0 -type {test} -printf '%p %u %g 0%m\\n'").stdout.splitlines()
    return [dict(zip(("path", "owner", "group", "mode"), line.split(), strict=True)) for line in found]


def copied(node: Node, files: list[dict[str, str]], to: Path) -> None:
    paths = " ".join(one["path"] for one in files)
    with subprocess.Popen(
        [*node.ssh_command(), f"tar -chf - {paths}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as sent:
        assert sent.stdout is not None
        with tarfile.open(fileobj=sent.stdout, mode="r|") as archive:
            archive.extractall(to, filter="data")


def playbook(node: Node, place: Path) -> list[dict[str, Any]]:
    """The state of the node as tasks; what files hold lies below `place`."""
    files = [one for one in listed(node, "f", FILES) if one["path"] != OUR_OWN]
    copied(node, files, place)
    asked = json.loads(node.run("cat /etc/sglang-pd/verify.json").stdout)
    question = next(golden for golden in asked["golden"] if golden["match"] in {"contains", "equals"})
    body = {
        "model": asked["model"],
        "messages": [{"role": "user", "content": question["prompt"]}],
        "max_tokens": question.get("max_tokens", 64),
        "temperature": 0,
    }
    home = node.run("getent passwd sglang").stdout.strip().split(":")
    tasks: list[dict[str, Any]] = [
        {"apt": {"name": debian_packages(catalogue.offered(RELEASE)[0], [wheels.python(node)]), "state": "present"}},
        {"user": {"name": "sglang", "system": True, "home": home[5], "shell": home[6], "create_home": False}},
        *({"file": {**one, "state": "directory"}} for one in listed(node, "d", FOLDERS)),
        *(
            {"copy": {"src": str(place / one["path"].lstrip("/")), "dest": one["path"], **{k: v for k, v in one.items() if k != "path"}}}
            for one in files
        ),
        {"systemd_service": {"name": "sglang-pd.target", "enabled": True}},
        *({"systemd_service": {"name": f"sglang-pd-{name}.service", "state": "started"}} for name in SERVERS),
        *({"uri": {"url": f"http://127.0.0.1:{port}/health"}} for port in (30000, 30001, 8000)),
        {
            "uri": {"url": f"{asked['url']}/v1/chat/completions", "method": "POST", "body_format": "json", "body": body, "return_content": True},
            "register": "answer",
        },
        {"assert": {"that": [f"{question['expect'].lower()!r} in answer.content.lower()"]}},
    ]  # fmt: skip
    named = [
        {"name": f"{module} {of.get('path') or of.get('dest') or of.get('name') or ''}", module: of, **more}
        for task in tasks
        for module, of in [next(iter(task.items()))]
        for more in [{k: v for k, v in task.items() if k != module}]
    ]
    return [{"hosts": "all", "tasks": named}]


def inventory(node: Node) -> dict[str, Any]:
    reached = {
        "ansible_host": node.address,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(node.ssh_key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={node.known_hosts}",
    }
    return {"all": {"hosts": {"node": reached}}}


def seconds_of_theirs(line: list[str], place: Path) -> tuple[float, int]:
    """Seconds and tasks of a run of Ansible. Ends this program where a task failed or changed something."""
    settings = {"ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0"}
    started = time.monotonic()
    ran = subprocess.run(
        line, cwd=place, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    seconds = time.monotonic() - started
    recap = RECAP.search(ran.stdout)
    told = [task for task in ran.stdout.split("TASK ") if not re.search(r"\nok: \[node\]", task)]
    if ran.returncode or not recap or recap.groups()[1:] != ("0", "0", "0"):
        sys.exit(f"the Ansible playbook describes another state:\n{''.join(told)[-3000:]}{ran.stderr[-1000:]}")
    return seconds, int(recap[1])


def seconds_of_ours(node: Node) -> tuple[float, int]:
    """Seconds and operations of a run of ours."""
    started = time.monotonic()
    ran = deploy(node, "-y")
    seconds = time.monotonic() - started
    if ran.status or ran.changed:
        sys.exit(f"the run had something to change: {ran.changed}\n{ran.output[-2000:]}")
    return seconds, int(ran.report["results"]["totals"]["hosts"])


def main(ansible_playbook: str) -> int:
    node = Node("bench-peers")
    node.down()
    try:
        node.up()
        provisioned(node)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "playbook.yml").write_text(yaml.safe_dump(playbook(node, place / "files"), sort_keys=False))
            (place / "inventory.yml").write_text(yaml.safe_dump(inventory(node)))
            line = [ansible_playbook, "-i", "inventory.yml", "playbook.yml"]
            seconds_of_theirs(line, place), seconds_of_ours(node)  # neither is the first to read its files
            rounds = [(seconds_of_ours(node), seconds_of_theirs(line, place)) for _ in range(ROUNDS)]
    finally:
        node.down()
    ours, theirs = ([pair[which][0] for pair in rounds] for which in (0, 1))
    (_, operations), (_, tasks) = rounds[-1]
    print(json.dumps({"ours_s": ours, "ansible_s": theirs, "operations": operations, "tasks": tasks}, indent=2))
    print(
        f"nothing to change: ours {statistics.median(ours):.1f} s with {operations} operations, "
        f"Ansible {statistics.median(theirs):.1f} s with {tasks} tasks; "
        f"ratio {statistics.median(t / o for o, t in zip(ours, theirs, strict=True)):.1f} (median of {ROUNDS})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).resolve())))
