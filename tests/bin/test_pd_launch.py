"""pd-launch: what it hashes is what runs."""

from __future__ import annotations

import grp
import hashlib
import json
import os
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.plan.service.api_key import is_of
from tasks.plan.service.restarts import SYSTEMDS_OWN, seen
from tests.bin.tools import BIN, eventually, finish, run, start

SCRIPT = """#!/bin/bash
set -euo pipefail
source "${PD_ENVIRONMENT}"
if [[ -f $PD_SECRET ]]; then source "$PD_SECRET"; fi
printf '%s\\n' "$$" "$PD_RELEASE" "$COLOUR" "${KEY:-none}" "$PD_SECRET" "$0"
"""


@dataclass
class Instance:
    """The files of one instance, laid out as on a host."""

    root: Path

    def __post_init__(self) -> None:
        self.etc, self.folder = self.root / "etc", self.root / "run/prefill"
        self.release = self.root / "releases/abc-123"
        for folder in (self.etc, self.release):
            folder.mkdir(parents=True)
        self.current = self.root / "current"
        self.current.symlink_to("releases/abc-123")
        self.script = self.etc / "prefill.sh"
        self.environment = self.etc / "prefill.env"
        self.unit = self.etc / "prefill.service"
        self.secret = self.etc / "secret.env"
        self.fingerprint = self.folder / "fingerprint.json"
        self.executed = self.folder / "executed"
        self.group = grp.getgrgid(os.getgid()).gr_name
        self.script.write_text(SCRIPT)
        self.environment.write_text("COLOUR=green\n")
        self.unit.write_text("[Service]\n")

    @property
    def preparing(self) -> list[object]:
        return [
            "prepare", "--instance", "prefill", "--folder", self.folder, "--group", self.group, "--script", self.script,
            "--environment", self.environment, "--unit", self.unit, "--secret", self.secret, "--current", self.current,
            "--part", "env",
        ]  # fmt: skip

    @property
    def running(self) -> list[object]:
        return ["run", "--instance", "prefill", "--folder", self.folder]

    def prepare(self) -> None:
        done = run("pd-launch", *self.preparing)
        assert done.returncode == 0, done.stderr

    def left_behind(self) -> dict[str, object]:
        content: dict[str, object] = json.loads(self.fingerprint.read_text())
        return content


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def sha256(path: Path) -> str:
    """Of what the server sees of a file, as the plan has it."""
    return hashlib.sha256(seen(path.read_bytes())).hexdigest()


def test_runs_the_script_with_its_release_environment_and_secret(instance: Instance) -> None:
    instance.secret.write_text("KEY=hidden\n")
    instance.prepare()
    child = start("pd-launch", *instance.running)
    done = finish(child)
    assert done.returncode == 0, done.stderr
    pid, release, colour, key, _, name = done.stdout.splitlines()
    assert (int(pid), release, colour, key) == (child.pid, str(instance.release), "green", "hidden")
    assert Path(name).name == "prefill.sh"


def test_leaves_a_fingerprint(instance: Instance) -> None:
    instance.secret.write_text("KEY=hidden\n")
    assert run("pd-launch", *instance.preparing, INVOCATION_ID="0123abcd").returncode == 0
    left = instance.left_behind()
    started = left.pop("started")
    assert isinstance(started, int)
    assert started > 1_700_000_000
    assert left == {
        "instance": "prefill",
        "script": sha256(instance.script),
        "environment": sha256(instance.environment),
        "unit": sha256(instance.unit),
        "secret": left["secret"],
        "release": "abc-123",
        "packages": None,
        "directory": str(instance.release),
        "invocation": "0123abcd",
    }
    assert is_of(str(left["secret"]), instance.secret.read_bytes()) and sha256(instance.secret) not in str(left)
    assert sorted(path.name for path in instance.folder.iterdir()) == ["executed", "fingerprint.json"]
    assert list(instance.folder.parent.iterdir()) == [instance.folder]


def test_units_of_before_start_again_until_theirs_are_written(instance: Instance, cards: Cards) -> None:
    """A host that reboots, or whose server crashes, while a run builds: its tools are new, its units are not."""
    cards.said.write_text("4, 0\n")
    gpus = ["--gpus", "4", "--gpu-idle", "1024", "--gpu-limit", "1"]
    part = instance.preparing.index("--part")
    assert run("pd-launch", *instance.preparing[:part]).returncode == 0
    early = run("pd-launch", *instance.running, *gpus, PATH=cards.path)
    assert early.returncode == 0 and "green" in early.stdout and cards.asked.exists(), early.stderr
    instance.secret.write_text("KEY=hidden\n")
    november = run(
        "pd-launch", "--instance", "prefill", "--script", instance.script, "--environment", instance.environment,
        "--unit", instance.unit, "--secret", instance.secret, "--current", instance.current,
        "--fingerprint", instance.fingerprint, *gpus, PATH=cards.path,
    )  # fmt: skip
    assert november.returncode == 0, november.stderr
    assert november.stdout.splitlines()[1:4] == [str(instance.release), "green", "hidden"]


def test_the_record_of_the_packages_is_in_the_fingerprint(instance: Instance) -> None:
    """A repair makes another record, so what was started before it is told from what was started after."""
    record = instance.release / "env/.pd-env.json"
    record.parent.mkdir()
    record.write_text("{}")
    instance.prepare()
    assert instance.left_behind()["packages"] == sha256(record)


def test_drop_ins_of_the_unit_count_as_the_unit(instance: Instance) -> None:
    instance.prepare()
    alone = instance.left_behind()["unit"]
    folder = instance.etc / "prefill.service.d"
    folder.mkdir()
    (folder / "override.conf").write_text("[Service]\nNice=5\n")
    (instance.etc / "service.d").mkdir()
    (instance.etc / "service.d/every.conf").write_text("[Service]\nNice=6\n")
    instance.prepare()
    both = instance.unit.read_bytes() + (folder / "override.conf").read_bytes()
    assert alone == sha256(instance.unit)
    assert instance.left_behind()["unit"] == hashlib.sha256(both).hexdigest()


def test_comments_and_what_systemd_alone_reads_are_in_no_fingerprint(instance: Instance) -> None:
    instance.unit.write_text(f"[Service]\nUser=a\n{SYSTEMDS_OWN}\n[Service]\nTimeoutStopSec=90\n")
    instance.prepare()
    before = instance.left_behind()
    instance.unit.write_text(f"# by hand\n[Service]\nUser=a\n{SYSTEMDS_OWN}\n[Service]\nTimeoutStopSec=100\n")
    instance.environment.write_text("# a reason\nCOLOUR=green\n")
    instance.prepare()
    after = instance.left_behind()
    assert {**after, "started": 0} == {**before, "started": 0}
    assert after["unit"] == hashlib.sha256(b"[Service]\nUser=a\n").hexdigest()
    instance.unit.write_text(f"[Service]\nUser=b\n{SYSTEMDS_OWN}\n")
    instance.environment.write_text("COLOUR='# red'\n")
    instance.prepare()
    assert instance.left_behind()["unit"] == sha256(instance.unit) != after["unit"]
    assert instance.left_behind()["environment"] == sha256(instance.environment) != after["environment"]


def test_the_folder_above_is_open_to_the_servers_whatever_the_units_umask(instance: Instance) -> None:
    words = shlex.join(map(str, [BIN / "pd-launch", *instance.preparing]))
    subprocess.run(["sh", "-c", f"umask 077; exec {words}"], check=True)
    assert stat.S_IMODE(instance.folder.parent.stat().st_mode) == 0o755


def test_certificate_and_key_are_copied_and_hashed_with_the_secret(instance: Instance) -> None:
    instance.secret.write_text("KEY=hidden\n")
    pem = instance.etc / "tls.pem"
    pem.write_text("certificate and key\n")
    assert run("pd-launch", *instance.preparing, "--tls", pem).returncode == 0
    copy = instance.executed / "tls.pem"
    assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (pem.read_bytes(), 0o440)
    assert is_of(instance.left_behind()["secret"], b"KEY=hidden\ncertificate and key\n")


def test_the_hosts_own_certificate_is_copied_as_one_file_and_not_hashed(instance: Instance) -> None:
    """Whoever renews it starts the router again: the playbook must not, for a file that it cannot compare."""
    chain, key = instance.etc / "chain.pem", instance.etc / "key.pem"
    chain.write_text("certificate")
    key.write_text("key")
    assert run("pd-launch", *instance.preparing, "--host-tls", chain, key).returncode == 0
    assert (instance.executed / "tls.pem").read_text() == "certificate\nkey"
    assert instance.left_behind()["secret"] is None
    key.unlink()
    ran = run("pd-launch", *instance.preparing, "--host-tls", chain, key)
    assert ran.returncode != 0 and f"cannot read certificate or key {key}: No such file" in ran.stderr


def test_a_missing_secret_is_none_and_cannot_slip_in_later(instance: Instance) -> None:
    instance.prepare()
    instance.secret.write_text("KEY=late\n")
    done = run("pd-launch", *instance.running)
    assert done.stdout.splitlines()[3:5] == ["none", "/dev/null"]
    assert instance.left_behind()["secret"] is None


def test_an_edit_between_reading_and_running_is_neither_hashed_nor_run(instance: Instance) -> None:
    hashes = {"script": sha256(instance.script), "environment": sha256(instance.environment)}
    instance.unit.unlink()
    os.mkfifo(instance.unit)  # the launcher stops here, after the script and the environment file
    child = start("pd-launch", *instance.preparing)
    with instance.unit.open("w") as unit:  # opens only once the launcher reads
        instance.script.write_text("#!/bin/bash\necho edited\n")
        instance.environment.write_text("COLOUR=red\n")
        unit.write("[Service]\n")
    assert finish(child).returncode == 0
    done = run("pd-launch", *instance.running)
    assert "edited" not in done.stdout
    assert done.stdout.splitlines()[2] == "green"
    left = instance.left_behind()
    assert {name: left[name] for name in hashes} == hashes


def test_the_executed_copies_are_read_by_the_group_written_by_nobody_and_of_this_start(instance: Instance) -> None:
    instance.executed.mkdir(parents=True)
    (instance.executed / "old.sh").write_text("")
    (instance.folder / "gate.json").write_text("{}")
    instance.secret.write_text("KEY=hidden\n")
    instance.prepare()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in instance.executed.iterdir()}
    assert modes == {"prefill.sh": 0o440, "prefill.env": 0o440, "secret": 0o440}
    assert stat.S_IMODE(instance.fingerprint.stat().st_mode) == 0o440
    assert [stat.S_IMODE(path.stat().st_mode) for path in (instance.folder, instance.executed)] == [0o750, 0o750]
    assert not (instance.folder / "gate.json").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_a_folder_that_the_service_user_owned_and_filled_with_links_is_replaced(instance: Instance) -> None:
    """As RuntimeDirectory= of an earlier version made it."""
    (outside := instance.root / "outside").mkdir()
    (outside / "kept").write_text("")
    instance.folder.mkdir(parents=True)
    (instance.folder / "executed").symlink_to(outside)
    (instance.folder / "fingerprint.json").symlink_to(outside / "kept")
    os.chown(instance.folder, 12345, 12345)
    instance.prepare()
    assert {instance.folder.stat().st_uid, instance.executed.stat().st_uid, instance.fingerprint.stat().st_uid} == {0}
    assert not instance.executed.is_symlink()
    assert (outside / "kept").read_text() == "" and [path.name for path in outside.iterdir()] == ["kept"]


def test_a_link_in_the_place_of_the_folder_is_replaced(instance: Instance) -> None:
    (outside := instance.root / "outside").mkdir()
    instance.folder.parent.mkdir()
    instance.folder.symlink_to(outside)
    instance.prepare()
    assert not instance.folder.is_symlink()
    assert list(outside.iterdir()) == []


def test_no_descriptor_leaks_into_the_server(instance: Instance) -> None:
    instance.script.write_text("#!/bin/bash\nexec ls /proc/self/fd\n")
    instance.prepare()
    done = run("pd-launch", *instance.running)
    assert done.stdout.split() == ["0", "1", "2", "3"]  # 3 is the folder that ls reads


def test_what_was_not_prepared_does_not_run(instance: Instance) -> None:
    done = run("pd-launch", *instance.running)
    assert done.returncode == 1
    why = f"cannot read what was prepared, {instance.fingerprint}: No such file or directory"
    assert done.stderr == f"pd-launch: cannot start prefill: {why}\n"


@pytest.mark.parametrize("tool", sorted(path.name for path in BIN.glob("pd-*")))
def test_a_tool_that_root_runs_loads_nothing_from_its_users_home_or_folder(tool: str, tmp_path: Path) -> None:
    """Root runs pd-launch and pd-gate with the service user's HOME and folder."""
    site = tmp_path / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    taken = f"open({str(tmp_path / 'taken')!r}, 'w')\n"
    for place in (site / "usercustomize.py", tmp_path / "signal.py", tmp_path / "json.py"):
        place.write_text(taken)
    done = subprocess.run(
        [BIN / tool, "--help"], cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "taken").exists()


def break_current(instance: Instance) -> str:
    instance.current.unlink()
    return f"no release: {instance.current} does not exist"


def dangle_current(instance: Instance) -> str:
    instance.release.rmdir()
    return f"no release: {instance.current} -> releases/abc-123 does not exist"


def file_as_current(instance: Instance) -> str:
    instance.release.rmdir()
    instance.release.write_text("")
    return f"no release: {instance.current} -> {instance.release} is not a directory"


def loop_as_current(instance: Instance) -> str:
    instance.current.unlink()
    instance.current.symlink_to(instance.current)
    return f"no release: {instance.current} -> {instance.current} does not exist"


def no_script(instance: Instance) -> str:
    instance.script.unlink()
    return f"cannot read launch script {instance.script}: No such file or directory"


def unreadable_environment(instance: Instance) -> str:
    instance.environment.unlink()
    instance.environment.mkdir()
    return f"cannot read environment file {instance.environment}: Is a directory"


def no_unit(instance: Instance) -> str:
    instance.unit.unlink()
    return f"cannot read unit file {instance.unit}: No such file or directory"


def unreadable_secret(instance: Instance) -> str:
    instance.secret.mkdir()
    return f"cannot read secret file {instance.secret}: Is a directory"


def no_place_for_the_folder(instance: Instance) -> str:
    instance.folder.parent.write_text("")
    return f"cannot write {instance.folder.parent}: File exists"


def no_group(instance: Instance) -> str:
    instance.group = "no-such-group"
    return "no group no-such-group"


@pytest.mark.parametrize(
    "damage",
    [
        break_current, dangle_current, file_as_current, loop_as_current, no_script, unreadable_environment, no_unit,
        unreadable_secret, no_place_for_the_folder, no_group,
    ],
)  # fmt: skip
def test_what_cannot_start_says_why_in_one_line(instance: Instance, damage: object) -> None:
    assert callable(damage)
    why = damage(instance)
    done = run("pd-launch", *instance.preparing)
    assert done.returncode == 1
    assert done.stderr == f"pd-launch: cannot start prefill: {why}\n"
    assert not instance.fingerprint.exists()


def test_wrong_usage() -> None:
    assert run("pd-launch", "prepare", "--instance", "prefill").returncode == 2


@pytest.mark.parametrize("tool", ["pd-launch", "pd-gate", "pd-verify", "pd-env", "pd-logs"])
def test_tools_are_executable_and_explain_themselves(tool: str) -> None:
    path = BIN / tool
    assert path.read_text().startswith("#!/usr/bin/python3 -I\n")
    assert os.access(path, os.X_OK), "whatever the umask of who cloned it"
    done = run(tool, "--help")
    assert done.returncode == 0
    assert "exit codes" in done.stdout


@pytest.mark.parametrize("tool", ["pd-launch", "pd-gate", "pd-verify", "pd-env"])
def test_tools_need_the_standard_library_only(tool: str) -> None:
    done = subprocess.run(
        ["/usr/bin/env", "-i", "python3", "-I", "-S", BIN / tool, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- GPU memory

AWAITING = ("await", "--instance", "prefill")


@dataclass
class Cards:
    """A stand-in for nvidia-smi: what it says lies in a file."""

    folder: Path

    def __post_init__(self) -> None:
        self.said, self.asked = self.folder / "said", self.folder / "asked"
        program = self.folder / "nvidia-smi"
        program.write_text(f'#!/bin/sh\necho "$*" >>{self.asked}\ncat {self.said}\n')
        program.chmod(0o755)

    @property
    def path(self) -> str:
        return f"{self.folder}:{os.environ['PATH']}"


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    folder = tmp_path / "cards"
    folder.mkdir()
    return Cards(folder)


def test_a_server_starts_once_its_gpus_are_free(cards: Cards) -> None:
    cards.said.write_text("4, 12\n5, 55296\n")
    child = start("pd-launch", *AWAITING, "--gpus", "4,5", PATH=cards.path)
    eventually(lambda: cards.asked.exists() and len(cards.asked.read_text().splitlines()) > 1, "asked again")
    assert child.poll() is None
    cards.said.write_text("4, 12\n5, 0\n")
    done = finish(child)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "pd-launch: prefill: waits, GPU 5 still holds 55,296 MiB",
        "pd-launch: prefill: the cards are free",
    ]
    assert set(cards.asked.read_text().splitlines()) == {
        f"-i 4,5 --query-gpu=index,{column} --format=csv,noheader,nounits" for column in ("memory.used", "fabric.state")
    }


def test_a_server_starts_once_its_gpus_are_registered_with_their_nvswitches(cards: Cards) -> None:
    """The fabric manager took 47 s to come up at boot in one report: five failed starts would end the unit before."""
    by_column = f'case "$*" in *fabric*) cat {cards.said} ;; *) echo "WARNING: infoROM is corrupted"; echo 5, 0; exit 14 ;; esac'
    (cards.folder / "nvidia-smi").write_text(f'#!/bin/sh\necho "$*" >>{cards.asked}\n{by_column}\n')
    cards.said.write_text("5, In Progress\n")
    child = start("pd-launch", *AWAITING, "--gpus", "5", PATH=cards.path)
    eventually(lambda: cards.asked.exists() and cards.asked.read_text().count("fabric") > 1, "asked again")
    assert child.poll() is None
    cards.said.write_text("5, Completed\n")
    done = finish(child)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "pd-launch: prefill: waits, GPU 5 is not registered with its NVSwitches",
        "pd-launch: prefill: the cards are free",
    ]


def test_a_proxy_of_the_whole_system_reaches_no_server(instance: Instance) -> None:
    """Programs read it in any spelling; what the server's own environment file says stays."""
    instance.script.write_text(f"{instance.script.read_text()}env | grep -i _proxy= | sort >&2\n")
    instance.environment.write_text("COLOUR=green\nexport all_proxy=http://ours\n")
    names = ("HTTP_PROXY", "https_proxy", "Http_Proxy", "NO_PROXY", "all_proxy")
    instance.prepare()
    done = run("pd-launch", *instance.running, **dict.fromkeys(names, "http://theirs"))
    assert done.stderr.splitlines() == ["all_proxy=http://ours"]


def test_a_driver_that_stops_answering_meanwhile_has_not_freed_the_cards(cards: Cards) -> None:
    cards.said.write_text("5, 55296\n")
    child = start("pd-launch", *AWAITING, "--gpus", "5", PATH=cards.path)
    eventually(lambda: cards.asked.exists() and len(cards.asked.read_text().splitlines()) > 1, "asked again")
    cards.said.write_text("Unable to determine the device handle for GPU\n")
    done = finish(child)
    assert done.returncode == 0
    waits, gives_up = done.stderr.splitlines()
    assert waits == "pd-launch: prefill: waits, GPU 5 still holds 55,296 MiB"
    assert gives_up.startswith("pd-launch: the cards are not waited for: ")


def test_after_the_limit_it_starts_with_a_warning(cards: Cards) -> None:
    cards.said.write_text("5, 55296\n")
    done = run("pd-launch", *AWAITING, "--gpus", "5", "--gpu-limit", "0", PATH=cards.path)
    assert done.returncode == 0
    assert done.stderr == (
        "pd-launch: prefill: starts although GPU 5 still holds 55,296 MiB: its KV cache will be smaller; nvidia-smi shows "
        "who holds the card, then restart prefill\n"
    )


@pytest.mark.parametrize("said", ["No devices were found\n", "5, [N/A]\n", ""])
def test_cards_that_do_not_tell_are_not_waited_for(cards: Cards, said: str) -> None:
    cards.said.write_text(said)
    done = run("pd-launch", *AWAITING, "--gpus", "5", PATH=cards.path)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == bool(said)


def test_without_nvidia_smi_nothing_is_waited_for(tmp_path: Path) -> None:
    done = run("pd-launch", *AWAITING, "--gpus", "5", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("pd-launch: the cards are not waited for: ")
