"""Every template, rendered for every kind of host: what bash, the shell checker and systemd make of it."""

import configparser
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.files import WantedFile
from tasks.plan.phases import monitoring
from tasks.plan.phases.system import kernel_settings
from tasks.plan.phases.verify import verify_config
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Instance
from tasks.plan.service.restarts import seen
from tasks.plan.service.watching import Watched, Watching
from tasks.support import render
from tests.node.settings import REHEARSAL
from tests.plan.builders import (
    API_KEY,
    REPOSITORY,
    TWO_SOCKETS,
    catalogue_plan,
    hardware,
    manifest,
    plan,
    recorded,
    release,
    settings,
)

AWKWARD = {
    "SPACES": "one  two ",
    "QUOTES": 'it\'s "quoted"',
    "DOLLARS": "$HOME ${PATH} $(id) `id`",
    "HASHES": "# no comment # here",
    "BACKSLASHES": r"a\b\\c\n",
    "EMPTY": "",
    "GLOBS": "* ? [a] ~ {a,b} !x",
    "SIGNS": "a=b;c&d|e<f>g(h)%i",
    "BRACES": "{{ not.a.template }} {% if %}",
    "LETTERS": "äöü 漢字",
}
TWO_EACH = {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2}


# ---- the hosts


def node_plan(folder: Path) -> Plan:
    """The host of tests/node/inventory.py: its settings, and the hardware that the node replays."""
    return catalogue_plan(REHEARSAL, recorded("rtx-pro-6000-x8", folder))


HOSTS: dict[str, Callable[[Path], Plan]] = {
    "defaults": lambda folder: catalogue_plan({}, recorded("rtx-pro-6000-x8", folder)),
    "first deployment": lambda _: catalogue_plan({"release": "sglang-0.5.13.post1-cu130"}, hardware(TWO_SOCKETS)),
    "other model": lambda _: catalogue_plan({"model": "deepseek-v4-flash-mxfp4"}, hardware(TWO_SOCKETS)),
    "node": node_plan,
    "several servers": lambda _: plan(settings(prefill_instances=3, **TWO_EACH), hardware([0] * 6 + [1] * 2)),
    "one whole server": lambda _: plan(settings(layout="single"), hardware(TWO_SOCKETS)),
    "data-parallel": lambda _: plan(settings(layout="data_parallel"), hardware(TWO_SOCKETS)),
    "interleaved nodes": lambda _: plan(settings(), hardware([0, 1] * 4)),
    "unknown nodes": lambda _: plan(settings(), hardware([-1] * 8)),
    "open to others": lambda _: plan(
        settings(router_host="0.0.0.0", router_api_key_env="PD_KEY"), hardware(TWO_SOCKETS), api_key=API_KEY
    ),
    "awkward environment": lambda _: plan(
        settings(
            prefill_environment=AWKWARD,
            decode_environment=AWKWARD,
            router_environment=AWKWARD,
            prefill_arguments=["--log-level", 'it\'s $HOME # and "more"', "--flag"],
            worker_environment={"A": {"value": "1", "reason": "it's $HOME", "source": '"#"'}},
        ),
        hardware(TWO_SOCKETS),
    ),
    "nothing reserved": lambda _: plan(
        settings(reserve_ports=False, disable_numa_balancing=False, worker_environment={}), hardware(TWO_SOCKETS)
    ),
}


@pytest.fixture(params=sorted(HOSTS))
def planned(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    return HOSTS[request.param](tmp_path)


WATCHES = Watching((Watched("gpu-1", settings()), Watched("gpu-2", settings(), "10.1.0.2")))
WATCHED = Watching(address="10.1.0.1", asked_from="10.1.0.2")


def rendered(made: Plan) -> dict[str, list[WantedFile]]:
    """Every file of a host, by the template that it comes from."""
    files = [(instance, render.instance_files(made, instance)) for instance in made.instances]
    watching = render.monitoring(replace(made, watching=WATCHES))
    watched = render.monitoring(replace(made, watching=WATCHED))
    return {
        "launch.sh.j2": [file.script for _, file in files],
        "instance.env.j2": [file.environment for _, file in files],
        "worker.service.j2": [file.unit for instance, file in files if instance.role != "router"],
        "router.service.j2": [file.unit for instance, file in files if instance.role == "router"],
        "devices.service.j2": render.devices(made),
        "watchdog.service.j2": render.watchdog(made)[:1],
        "target.j2": [render.target(made)],
        "sysctl.conf.j2": [render.sysctl(made)],
        "prometheus.yml.j2": [file for file in watching if file.path == monitoring.CONFIG],
        "hosts.conf.j2": [file for file in watching if file.path == monitoring.filter_of(monitoring.PROMETHEUS)],
        "figures.service.j2": [file for file in watched if file.path.endswith(monitoring.FORWARDER)],
        "monitoring.conf.j2": [file for file in watching if file.path.endswith(".d/sglang-pd.conf")],
        "metrics.service.j2": [file for file in watching if file.path.endswith(monitoring.COLLECTOR)],
        "metrics.timer.j2": [file for file in watching if file.path.endswith(monitoring.TIMER)],
    }


def files_of(made: Plan, name: str) -> tuple[Instance, render.InstanceFiles]:
    instance = next(instance for instance in made.instances if instance.name == name)
    return instance, render.instance_files(made, instance)


# ---- all templates


def test_every_template_is_rendered(planned: Plan) -> None:
    files = rendered(planned)
    pages = {
        f"{name}.html.j2" for name in ("page", "pieces", "report", "service", "serving", "status")
    }  # for people, see test_report.py
    assert set(files) | pages == {path.name for path in (REPOSITORY / "templates").iterdir()}
    for name, made in files.items():
        for file in made:
            text = file.content.decode()
            assert text.endswith("\n"), name
            assert "Undefined" not in text, name
            assert "None" not in text.split(), name


def test_no_file_is_written_twice(planned: Plan) -> None:
    paths = [file.path for files in rendered(planned).values() for file in files]
    assert len(set(paths)) == len(paths)


def test_a_plan_renders_to_the_same_bytes_again(planned: Plan) -> None:
    assert rendered(planned) == rendered(planned)


def test_who_may_read_what(planned: Plan) -> None:
    files = rendered(planned)
    modes = {name: {(file.mode, file.owner, file.group) for file in made} for name, made in files.items()}
    assert modes["launch.sh.j2"] == {("755", "root", "sglang")}
    assert modes["instance.env.j2"] == {("640", "root", "sglang")}
    for name in (
        "worker.service.j2",
        "router.service.j2",
        "devices.service.j2",
        "watchdog.service.j2",
        "target.j2",
        "sysctl.conf.j2",
    ):
        assert modes[name] <= {("644", "root", "root")}


# ---- launch scripts


def test_bash_can_read_every_launch_script(planned: Plan) -> None:
    for file in rendered(planned)["launch.sh.j2"]:
        ran = subprocess.run(["bash", "-n"], input=file.content, capture_output=True)
        assert (ran.returncode, ran.stderr) == (0, b""), file.path


def test_the_shell_checker_finds_nothing(planned: Plan) -> None:
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed; bash -n reads the scripts in its own test")
    for file in rendered(planned)["launch.sh.j2"]:
        # SC2016: a value that holds $ is meant to hold it
        ran = subprocess.run([checker, "--exclude=SC2016", "-"], input=file.content, capture_output=True)
        assert ran.returncode == 0, ran.stdout.decode()


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A folder that stands for the host: `python` of a release and `numactl` print what they are called with."""
    for folder in ("release/env/bin", "release/router/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    tool = '#!/bin/bash\nprintf "%s\\n" "${0##*/}" "$@"\n[ "${0##*/}" = python ] && { echo ENVIRONMENT; env -0; }\n'
    numactl = '#!/bin/bash\nprintf "%s\\n" "${0##*/}" "$1" "$2"\nshift 2\nexec "$@"\n'
    for path, text in (("release/env/bin/python", tool), ("release/router/bin/python", tool), ("bin/numactl", numactl)):
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    return tmp_path


def launched(stage: Path, made: Plan, name: str) -> tuple[list[str], dict[str, str]]:
    """Words and environment of the process that a launch script becomes."""
    _, files = files_of(made, name)
    environment, secret = stage / "own.env", stage / "secret"
    environment.write_bytes(files.environment.content)
    if key := render.api_key(made):
        secret.write_bytes(key.content)
    ran = subprocess.run(
        ["bash"],
        input=files.script.content,
        capture_output=True,
        check=True,
        env={
            "PATH": f"{stage}/bin:/usr/bin:/bin",
            "PD_RELEASE": f"{stage}/release",
            "PD_ENVIRONMENT": str(environment),
            "PD_SECRET": str(secret),
        },
    )
    words, _, variables = ran.stdout.decode().partition("ENVIRONMENT\n")
    return words.splitlines(), dict(item.split("=", 1) for item in variables.rstrip("\0").split("\0"))


def test_a_launch_script_becomes_the_planned_process(planned: Plan, stage: Path) -> None:
    for instance in planned.instances:
        words, environment = launched(stage, planned, instance.name)
        started = ["-m", instance.module]
        if instance.role == "router":
            key = ["--key", f"{stage}/secret"] if planned.api_key else []
            started = [f"{planned.paths.bin}/pd-router", *key, "--module", instance.module, "--"]
        assert words == [*instance.binding, "python", *started, *instance.words]
        assert environment.items() >= {(v.name, v.value) for v in instance.environment}
        assert environment["PATH"].startswith(f"{stage}/release/{instance.interpreter.rpartition('/')[0]}:")


def test_the_api_key_is_read_by_the_router_only_and_shown_by_nobody(stage: Path) -> None:
    made = HOSTS["open to others"](stage)
    for instance in made.instances:
        words, environment = launched(stage, made, instance.name)
        assert (f"{stage}/secret" in words) == (instance.role == "router")
        assert "--api-key" not in words
        assert not any(API_KEY in value for value in (*words, *environment.values()))


def test_the_api_key_stands_in_its_own_file_alone(tmp_path: Path) -> None:
    made = HOSTS["open to others"](tmp_path)
    key = render.api_key(made)
    assert key is not None
    assert key.mode == "640" and len(key.salt) == 32
    assert render.api_key(made) != key, "each run draws its own salt"
    for files in rendered(made).values():
        assert not any(
            API_KEY.encode() in file.content or shlex.quote(API_KEY).encode() in file.content for file in files
        )
    assert API_KEY.encode() not in verify_config(made).content


def test_without_a_key_there_is_no_secret(tmp_path: Path) -> None:
    made = HOSTS["defaults"](tmp_path)
    assert render.api_key(made) is None
    _, files = files_of(made, "router")
    assert b"PD_SECRET" not in files.script.content
    assert b"--secret" not in files.unit.content


def test_tls_its_renewal_and_a_second_key_restart_the_router_alone(tmp_path: Path) -> None:
    files = {"router_tls_certificate": "/etc/x/chain.pem", "router_tls_key": "/etc/x/key.pem"}
    plain = HOSTS["defaults"](tmp_path)
    made = catalogue_plan(files, hardware(TWO_SOCKETS))
    first, renewed = (replace(made, tls=content) for content in (b"one", b"two"))
    keyed = catalogue_plan({"router": "smg", "router_api_key_env": "PD_KEY"}, hardware(TWO_SOCKETS), API_KEY)
    both = replace(keyed, api_key_before="b" * 16)
    of_host = catalogue_plan({**files, "router_tls_on_host": True}, hardware(TWO_SOCKETS))
    for before, after in ((plain, first), (first, renewed), (first, of_host), (keyed, both)):
        for name in ("prefill", "decode", "router"):
            one, other = (files_of(plan, name)[1].fingerprint for plan in (before, after))
            assert (one == other) is (name != "router")
    assert first.router.url == "https://127.0.0.1:8000"
    _, unit = files_of(of_host, "router")
    assert b" --host-tls /etc/x/chain.pem /etc/x/key.pem " in unit.unit.content
    assert b" --tls /etc/sglang-pd/tls.pem " in files_of(first, "router")[1].unit.content


def test_one_argument_stands_on_a_line(planned: Plan) -> None:
    for instance in planned.instances:
        _, files = files_of(planned, instance.name)
        text = files.script.content.decode()
        lines = [line.strip().removesuffix(" \\") for line in text[text.index("\nexec ") :].splitlines()]
        for argument in instance.arguments:
            assert shlex.join(argument) in lines


# ---- environment files


def sourced(content: bytes, names: list[str]) -> dict[str, str]:
    """What bash makes of an environment file that it sources."""
    show = "".join(f'printf "%s\\0" "${{{name}-UNSET}}";' for name in names)
    ran = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; set -a; source /dev/stdin; {show}"],
        input=content,
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert ran.stderr == b""
    return dict(zip(names, ran.stdout.decode().split("\0"), strict=False))


def test_a_sourced_environment_file_gives_exactly_the_values(planned: Plan) -> None:
    for instance in planned.instances:
        _, files = files_of(planned, instance.name)
        values = {variable.name: variable.value for variable in instance.environment}
        assert sourced(files.environment.content, list(values)) == values


VALUES = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=40)


@given(st.lists(st.tuples(VALUES, VALUES.filter(bool)), min_size=1, max_size=5))
def test_any_value_and_reason_survive(pairs: list[tuple[str, str]]) -> None:
    given_here = {f"V{i}": {"value": value, "reason": reason, "source": "s"} for i, (value, reason) in enumerate(pairs)}
    made = plan(settings(worker_environment=given_here, transfer_backend="mooncake"), hardware(TWO_SOCKETS))
    _, files = files_of(made, "prefill")
    assert list(sourced(files.environment.content, list(given_here)).values()) == [value for value, _ in pairs]


# ---- units


class Unit:
    """A unit file, read by rules of its own: sections, keys with all their values in order."""

    def __init__(self, content: bytes) -> None:
        self.sections: dict[str, dict[str, list[str]]] = {}
        for line in content.decode().splitlines():
            if line.startswith("["):
                section = self.sections.setdefault(line.strip("[]"), {})
            elif line and not line.startswith("#"):
                key, _, value = line.partition("=")
                section.setdefault(key, []).append(value)

    def one(self, section: str, key: str) -> str:
        (value,) = self.sections[section][key]
        return value

    def all(self, section: str, key: str) -> list[str]:
        return self.sections[section].get(key, [])

    def words(self, section: str, key: str) -> list[str]:
        return [word for value in self.all(section, key) for word in value.split()]


def units(made: Plan) -> dict[str, Unit]:
    return {instance.name: Unit(files_of(made, instance.name)[1].unit.content) for instance in made.instances}


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_a_worker_is_active_only_when_its_gate_has_passed(planned: Plan) -> None:
    for worker in planned.workers:
        unit = units(planned)[worker.name]
        assert unit.one("Service", "Type") == "exec"
        gate = unit.words("Service", "ExecStartPost")
        assert gate[:2] == [f"+{planned.paths.bin}/pd-gate", "worker"]
        assert option(gate, "--role") == worker.role
        assert option(gate, "--url") == worker.url
        assert option(gate, "--unit") == worker.unit
        assert option(gate, "--pid") == "$MAINPID"
        assert ("--bootstrap" in gate) is (worker.role == "prefill")


def test_the_gate_of_prefill_asks_its_own_bootstrap_port(planned: Plan) -> None:
    for worker in planned.workers:
        if worker.role == "prefill":
            gate = units(planned)[worker.name].words("Service", "ExecStartPost")
            assert option(gate, "--bootstrap") == f"http://127.0.0.1:{worker.bootstrap_port}"


def test_the_router_waits_for_every_worker(planned: Plan) -> None:
    unit = units(planned)["router"]
    prepare, before = map(shlex.split, unit.all("Service", "ExecStartPre"))
    assert prepare[:2] == [f"+{planned.paths.bin}/pd-launch", "prepare"]
    assert before[:2] == [f"+{planned.paths.bin}/pd-gate", "await"]
    asked = [word for flag, word in pairwise(before) if flag == "--worker"]
    assert asked == [f"{worker.name}={worker.url}" for worker in planned.workers]
    names = [worker.unit for worker in planned.workers]
    assert unit.words("Unit", "Wants") == names
    assert set(names) <= set(unit.words("Unit", "After"))
    assert unit.words("Service", "ExecStartPost")[:2] == [f"+{planned.paths.bin}/pd-gate", "router"]


def test_workers_wait_for_no_other_server(planned: Plan) -> None:
    for worker in planned.workers:
        unit = units(planned)[worker.name]
        others = {instance.unit for instance in planned.instances} - {worker.unit}
        asked = {word for key in ("After", "Requires", "Wants", "BindsTo") for word in unit.words("Unit", key)}
        assert asked & others == set()


def test_prefill_ends_and_comes_back_with_the_one_decode_server() -> None:
    one, several = (
        plan(
            settings(prefill_tensor_parallel=2, decode_tensor_parallel=2, decode_instances=count), hardware(TWO_SOCKETS)
        )
        for count in (1, 2)
    )
    decode = "sglang-pd-decode.service"
    assert {n: decode in unit.words("Unit", "PartOf") for n, unit in units(one).items()} == {
        "prefill": True, "decode": False, "router": False,
    }  # fmt: skip
    assert decode in units(one)["prefill"].one("Service", "ExecStop"), "drained only while decode can answer"
    for unit in units(several).values():
        assert unit.words("Unit", "PartOf") == [several.target]
        assert not unit.words("Service", "ExecStop")


def awaits_cards(unit: Unit) -> list[str]:
    """The words of the command that waits for free cards, run after what is prepared; [] where there is none."""
    _, *after = (shlex.split(line) for line in unit.all("Service", "ExecStartPre"))
    return next((words for words in after if words[0].endswith("/pd-launch") and words[1] == "await"), [])


def test_a_server_starts_once_the_memory_of_its_gpus_is_free() -> None:
    on_cpu = plan(settings(), hardware(TWO_SOCKETS), release(manifest(device="cpu")))
    assert not any(awaits_cards(unit) for unit in units(on_cpu).values())
    on_gpus = plan(settings(), hardware(TWO_SOCKETS), release(manifest(device="cuda")))
    words = {name: awaits_cards(unit) for name, unit in units(on_gpus).items()}
    for worker in on_gpus.workers:
        assert worker.placement
        assert option(words[worker.name], "--gpus") == ",".join(map(str, worker.placement.gpus))
        assert option(words[worker.name], "--gpu-idle") == str(on_gpus.settings.gpu_idle_memory_mib)
        assert option(words[worker.name], "--gpu-limit") == str(on_gpus.settings.stop_limit + 30), (
            "prefill is gone by then"
        )
    assert not words["router"]


def test_of_several_decode_servers_none_waits_for_what_prefill_holds() -> None:
    asked = settings(prefill_tensor_parallel=2, decode_tensor_parallel=2, decode_instances=2)
    several = plan(asked, hardware(TWO_SOCKETS), release(manifest(device="cuda")))
    waits = {name: bool(awaits_cards(unit)) for name, unit in units(several).items()}
    assert waits == {"prefill": True, "decode-0": False, "decode-1": False, "router": False}


def test_where_systemd_can_it_keeps_the_batches_of_health_checks_out_of_the_journal() -> None:
    made = plan(settings(), hardware(TWO_SOCKETS))
    newer = replace(made, system=replace(made.system, systemd_version=253))
    before, after = units(made), units(newer)
    assert not any(unit.all("Service", "LogFilterPatterns") for unit in before.values())
    for worker in made.workers:
        (pattern,) = after[worker.name].all("Service", "LogFilterPatterns")
        assert pattern.startswith("~")
        idle = "[2026-12-01 01:00:00] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00,"
        assert re.search(pattern[1:], idle)
        assert not re.search(pattern[1:], idle.replace("new-token: 1,", "new-token: 17,"))
        assert not re.search(pattern[1:], idle.replace("cached-token: 0,", "cached-token: 64,"))
    assert after["router"].all("Service", "LogFilterPatterns") == ["~sglang-pd-watchdog"]
    files = [[files_of(one, name)[1].fingerprint for name in before] for one in (made, newer)]
    assert files[0] == files[1], "a system upgrade restarts no server"


def test_systemd_waits_longer_than_the_gates(planned: Plan) -> None:
    for instance in planned.instances:
        unit = units(planned)[instance.name]
        commands = [shlex.split(line) for key in ("ExecStartPre", "ExecStartPost") for line in unit.all("Service", key)]
        limits = sum(int(option(words, "--limit")) for words in commands if words[0].endswith("/pd-gate"))
        assert int(unit.one("Service", "TimeoutStartSec")) > limits


def test_a_server_is_started_through_the_launcher_with_its_own_files(planned: Plan) -> None:
    for instance in planned.instances:
        _, files = files_of(planned, instance.name)
        unit = units(planned)[instance.name]
        words, started = shlex.split(unit.all("Service", "ExecStartPre")[0]), unit.words("Service", "ExecStart")
        assert words[:2] == [f"+{planned.paths.bin}/pd-launch", "prepare"], "as root"
        assert started[:2] == [f"{planned.paths.bin}/pd-launch", "run"], "as the service user"
        assert option(words, "--instance") == option(started, "--instance") == instance.name
        assert option(words, "--folder") == option(started, "--folder") == planned.paths.run(instance.name)
        assert option(words, "--group") == planned.group
        assert option(words, "--script") == files.script.path
        assert option(words, "--environment") == files.environment.path
        assert option(words, "--unit") == files.unit.path
        assert option(words, "--current") == planned.paths.current
        gate = unit.words("Service", "ExecStartPost")
        assert gate[0] == f"+{planned.paths.bin}/pd-gate", "as root, which writes where the server cannot"
        assert option(gate, "--status") == f"{planned.paths.run(instance.name)}/gate.json"
        assert not unit.words("Service", "RuntimeDirectory"), "a folder below /run of the server's own"
        assert not unit.words("Service", "SupplementaryGroups"), "the journal is root's to read"


def test_every_server_runs_as_the_service_user_and_starts_at_boot(planned: Plan) -> None:
    for unit in units(planned).values():
        assert unit.one("Service", "User") == planned.settings.service_user
        assert unit.one("Install", "WantedBy") == planned.target
        assert planned.target in unit.words("Unit", "PartOf")
    assert Unit(render.target(planned).content).one("Install", "WantedBy") == "multi-user.target"


def test_a_server_on_gpus_waits_for_their_devices(planned: Plan) -> None:
    """systemd reads which classes of devices there are when it starts the server: an ExecStartPre comes too late."""
    for worker in planned.workers:
        unit = units(planned)[worker.name]
        for key in ("Wants", "After"):
            assert ("sglang-pd-devices.service" in unit.words("Unit", key)) is planned.on_gpu
    assert len(render.devices(planned)) == planned.on_gpu
    for file in render.devices(planned):
        assert Unit(file.content).one("Service", "Type") == "oneshot"
        assert not Unit(file.content).all("Service", "RemainAfterExit"), "it would look once a boot"


def test_every_server_comes_back_with_a_limit(planned: Plan) -> None:
    for unit in units(planned).values():
        assert unit.one("Service", "Restart") == "on-failure"
        assert int(unit.one("Unit", "StartLimitBurst")) > 0
        assert int(unit.one("Unit", "StartLimitIntervalSec")) > 0


def test_a_stop_drains_and_then_ends_the_whole_cgroup(planned: Plan) -> None:
    for unit in units(planned).values():
        assert unit.one("Service", "KillMode") == "mixed"
        assert unit.one("Service", "TimeoutStopSec") == str(planned.settings.stop_limit)


def test_workers_may_pin_memory(planned: Plan) -> None:
    for worker in planned.workers:
        unit = units(planned)[worker.name]
        assert unit.one("Service", "LimitMEMLOCK") == planned.settings.limit_memlock
        assert unit.one("Service", "LimitNOFILE") == str(planned.settings.limit_nofile)


def test_ini_rules_hold_too(planned: Plan) -> None:
    """A second reader: no line outside a section. A key may stand twice: ExecStartPre does."""
    for instance in planned.instances:
        parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(files_of(planned, instance.name)[1].unit.content.decode())
        assert set(parser.sections()) == {"Unit", "Service", "Install"}


def test_systemd_accepts_the_units(planned: Plan, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed; the tests above read the units by their own rules")
    tree = tmp_path / "tree"
    made = rendered(planned)
    files = [file for name in made if name.endswith((".service.j2", "target.j2")) for file in made[name]]
    for file in files:
        path = tree / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        # systemd looks for the commands on this machine: the tools of this checkout stand for those of a host
        path.write_bytes(file.content.replace(f"{planned.paths.bin}/".encode(), f"{REPOSITORY}/files/bin/".encode()))
    ran = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", *(tree / file.path.lstrip("/") for file in files)],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


CEILINGS = {"worker": 25, "router": 20}  # of systemd-analyze's hundred; while nothing was set, both had 92


def test_systemd_calls_the_units_confined(planned: Plan, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed; tests on hosts try what the units may do")
    for instance in planned.instances:
        file = tmp_path / instance.unit
        file.write_bytes(files_of(planned, instance.name)[1].unit.content)
        ceiling = CEILINGS["worker" if instance.is_worker else "router"]
        asked = [analyze, "security", "--offline=true", f"--threshold={ceiling}", "--no-pager", str(file)]
        ran = subprocess.run(asked, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


# ---- kernel settings


def test_kernel_settings_are_key_and_value_with_a_reason(planned: Plan) -> None:
    lines = render.sysctl(planned).content.decode().splitlines()
    values = [line for line in lines if line and not line.startswith("#")]
    assert values == [f"{setting.key} = {setting.wanted}" for setting in kernel_settings(planned)]
    assert len([line for line in lines if line.startswith("# ")]) == 1 + len(kernel_settings(planned))


# ---- fingerprints


def test_a_fingerprint_is_of_what_the_server_sees_of_the_bytes_that_are_written(planned: Plan) -> None:
    for instance in planned.instances:
        _, files = files_of(planned, instance.name)
        left = files.fingerprint
        hashes = [hashlib.sha256(seen(file.content)).hexdigest() for file in files.all]
        assert [left.script, left.environment, left.unit] == hashes
        assert b"ExecStart=" in seen(files.unit.content) and b"ExecStartPost=" not in seen(files.unit.content)
        assert left.release == planned.release.id


def test_another_memory_fraction_is_one_line_of_one_script() -> None:
    before, after = (plan(settings(decode_mem_fraction=value), hardware(TWO_SOCKETS)) for value in (0.60, 0.62))
    differ = []
    for instance in before.instances:
        old, new = files_of(before, instance.name)[1], files_of(after, instance.name)[1]
        for one, other in zip(old.all, new.all, strict=True):
            lines = set(one.content.splitlines()) ^ set(other.content.splitlines())
            differ += [(one.path, line.strip(b" \\")) for line in lines]
    assert sorted(differ) == [
        ("/etc/sglang-pd/decode.sh", b"--mem-fraction-static 0.60"),
        ("/etc/sglang-pd/decode.sh", b"--mem-fraction-static 0.62"),
    ]
