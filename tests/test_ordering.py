"""Who starts when, on hosts that pyinfra's @fake connector plays: its answers are scripted, nothing else is."""

import base64
import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterable, Mapping

import pytest

from tasks.plan.driver.steps import PLACED
from tasks.plan.host.answers import Answer
from tasks.plan.phases.runtime import (
    build_spec,
    description,
    lock_files,
    patch_list_file,
    uv_lock,
    uv_metadata,
)
from tasks.plan.phases.system import directories, needrestart
from tasks.plan.phases.verify import verify_config
from tasks.plan.plan import Plan
from tasks.plan.service.paths import BOOT_ID, JOURNALD, STOPPED, SYSCTL, WATCHDOG
from tasks.plan.service.repository import KEYRINGS
from tasks.support import catalogue, render
from tests.conftest import Checkout
from tests.plan.builders import (
    BOOT,
    TWO_SOCKETS,
    catalogue_plan,
    hardware,
    measured,
)
from tests.plan.judging import healthy_answers, places

SETTINGS: dict[str, object] = {
    "release": "sglang-0.5.20-cpu",
    "torch_wheel": "ordinary",
    "model": "rehearsal-qwen2",
    "context_length": 1024,
    "prefill_tensor_parallel": 1,
    "decode_tensor_parallel": 1,
}
PLAN = catalogue_plan(SETTINGS, hardware(TWO_SOCKETS))
WORKERS = [PREFILL, DECODE] = [worker.unit for worker in PLAN.workers]
ROUTER = PLAN.router.unit

JUDGED = healthy_answers(TWO_SOCKETS)  # of a bare host: nothing built, numactl not there yet
JUDGED |= {"variables": Answer(3, ""), "patches": Answer(3, "")}
JUDGED |= {name: Answer(127, "") for name in JUDGED if name.startswith("binding")}

CHANGING = ("install", "mkdir", "rm", "mv", "cp", "chown", "chmod", "ln", "touch", "tee", "cat")
# What the fact or the command says that an answer belongs to, a part of its text.
SYSTEM, HARDWARE, LISTENERS = "section uid id -u", "section driver driver", "section listeners"
RUNS, KEPT, SECRET = "section lock holder", "section current", "section secret secret"
MODEL = "section folder there"
PLANNED, PATHS, UNITS, BINDINGS, ANSWERS = (
    "section variables",
    "sha256sum <",
    "section files files",
    "numa_maps",
    "pd-verify --config",
)
GATES, GATE_OF_THE_ROUTER = f"section '{PREFILL} gate'", f"section '{ROUTER} gate'"


def printed(sections: Mapping[str, Answer]) -> str:
    """Sections as a host prints them."""
    encoded = {name: base64.b64encode(answer.text.encode()).decode() for name, answer in sections.items()}
    return "\n".join(f"@@section {name} {encoded[name]} {answer.status}" for name, answer in sections.items())


def every_path(plan: Plan) -> Iterable[str]:
    """Every path that the deploy looks at."""
    yield from (
        SYSCTL,
        JOURNALD,
        uv_metadata(plan),
        plan.paths.current,
        plan.paths.previous,
        plan.paths.pin,
        plan.paths.compiled(plan.release.id),
        description(plan).path,
        plan.paths.secret,
        uv_lock(plan).path,
        build_spec(plan).path,
    )
    yield from (verify_config(plan).path, plan.paths.passed, plan.paths.probe, plan.paths.told, plan.paths.measured)
    yield from (directory.path for directory in directories(plan))
    yield from (file.path for file in lock_files(plan))
    yield from (f"{plan.paths.bin}/{name}" for name in catalogue.tools())
    assert patch_list_file(plan) is not None
    of_needrestart, no_restarts = needrestart()
    yield from (no_restarts.path, *(folder.path for folder in of_needrestart))
    yield from (patch_list_file(plan).path, f"{plan.paths.current}/release.json")
    yield from (f"{plan.paths.model}/{name}" for name in catalogue.bundled_model("rehearsal-qwen2"))
    yield from (render.target(plan).path, STOPPED)
    yield from (file.path for file in render.watchdog(plan))
    for instance in plan.instances:
        yield from (file.path for file in render.instance_files(plan, instance).all)


NOT_THERE = Answer(0, "LoadState=not-found\nActiveState=inactive\nSubState=dead\nMainPID=0\nNeedDaemonReload=no")


def gates(state: str, *units: str) -> str:
    """What the fact Gates is told."""
    shown = {unit: Answer(0, f"ActiveState={state}\nSubState={state}") for unit in units}
    return printed(shown | {f"{unit} gate": Answer(0, "") for unit in units})


def listening(plan: Plan) -> dict[str, Answer]:
    """What the fact Listeners is told: others as on any host, and each of our units on its own port."""
    told = {name: [JUDGED[name].text] for name in ("listeners", "sockets", "owners", "enforced")}
    for number, instance in enumerate(plan.instances, 101):
        told["listeners"].append(f"tcp 0100007F:{instance.port:04X} {number}")
        told["sockets"].append(f"{number} {number}")
        told["owners"].append(f"{number}\t{instance.unit}\tpython3")
    return {name: Answer(0, "\n".join(lines)) for name, lines in told.items()}


def bare_host(changes: Mapping[str, object] | None = None) -> dict[str, object]:
    """Answers of a host on which nothing of ours is, and on which everything works, with changes."""
    units = {"files": Answer(0, ""), "drop-ins": Answer(0, ""), PLAN.target: NOT_THERE, WATCHDOG: NOT_THERE}
    for instance in PLAN.instances:
        units[instance.unit] = NOT_THERE
        units[f"{instance.unit} fingerprint"] = Answer(0, "")
    bound = {"gpus": Answer(0, "")}
    for worker in PLAN.workers:
        assert worker.placement is not None
        bound[worker.unit] = Answer(0, f"100 {worker.placement.cpus} bind:{worker.placement.nodes}")
    there = [
        *(f"{path}\tabsent\t\t\t\t" for path in every_path(PLAN)),
        f"{BOOT_ID}\tfile\t444\troot\troot\t{base64.b64encode(BOOT.encode()).decode()}",
    ]
    proof = base64.b64encode(json.dumps(measured(PLAN)).encode()).decode()
    answers: dict[str, object] = {
        RUNS: printed(dict.fromkeys(("lock", "run", "stamp", "resuming"), Answer(0, ""))),
        f"cat {BOOT_ID}": BOOT,
        BOOT_ID: there,  # before anything is measured
        f"sh {PLAN.paths.measuring}": f"{PLAN.paths.measuring}\tfile\t644\tsglang\tsglang\t{proof}",
        KEPT: printed(dict.fromkeys(("current", "previous", "built", "served", "hidden", "pin"), Answer(0, ""))),
        SYSTEM: printed(JUDGED),
        HARDWARE: printed(JUDGED),
        LISTENERS: printed(listening(PLAN)),
        PLANNED: printed(
            {n: a for n, a in JUDGED.items() if n in ("files", "variables", "patches") or n.startswith("binding")}
            | places(PLAN)
        ),
        PATHS: there,
        MODEL: printed({"folder": Answer(0, ""), "content": Answer(0, "")}),
        SECRET: printed({"secret": Answer(0, ""), "left": Answer(0, "")}),
        UNITS: printed(units),
        BINDINGS: printed(bound),
        ANSWERS: '{"ok": true, "answers": []}',
        GATE_OF_THE_ROUTER: gates("active", ROUTER),
        GATES: gates("active", PREFILL, DECODE),
    }
    return {**answers, **(changes or {})}


def host(name: str, answers: Mapping[str, object], **data: object) -> tuple[str, dict[str, object]]:
    return (f"@fake/{name}", {**SETTINGS, **data, "fake_responses": dict(answers)})


GOOD = bare_host()
DECODE_DIES = bare_host({f"is-active -q {DECODE}": {"success": False, "stderr": "inactive"}})  # after its gate passed
DECODE_FAILS = {**DECODE_DIES, GATES: gates("active", PREFILL) + "\n" + gates("failed", DECODE)}
NO_ROOT = bare_host({SYSTEM: printed({**JUDGED, "uid": Answer(0, "1000")})})
NO_DRIVER = bare_host({HARDWARE: printed({**JUDGED, "gpus": Answer(127, "")})})


def executed(output: str) -> list[tuple[str, str]]:
    """(host, first line of a command) in order, of a run with -vv."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output)
    return re.findall(r"\[@fake/([\w-]+)\] +>>> (.*)", plain)


def starts(line: str, dead: Iterable[str] = ()) -> list[str]:
    """The units that a command starts when a shell runs it beside a systemctl that finds `dead` units inactive."""
    systemctl = """
        systemctl() {
            case $1 in
            is-active) case " $DEAD " in *" $3 "*) return 3 ;; esac ;;
            restart) shift 2 && echo "$@" ;;
            esac
        }
    """
    ran = subprocess.run(
        ["bash", "-c", systemctl + line], env={**os.environ, "DEAD": " ".join(dead)}, capture_output=True, text=True
    )
    return ran.stdout.split()


def started(output: str) -> list[tuple[str, list[str]]]:
    """(host, units) of each start, in order. On the host called bad, decode is dead."""
    every = [
        (name, starts(line, [DECODE] if name == "bad" else []))
        for name, line in executed(output)
        if "systemctl restart" in line
    ]
    return [(name, units) for name, units in every if units]


# ---- the order


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run says on two hosts that work, one of which has fewer operations before its services."""
    checkout = Checkout(tmp_path_factory.mktemp("fleet"))
    short = {"reserve_ports": False, "disable_numa_balancing": False, "gpu_persistence": False}
    checkout.hosts(host("long", GOOD), host("short", GOOD, **short))
    status, output = checkout.pyinfra("-y", "-vv")
    assert status == 0, output
    return output


def test_every_worker_of_every_host_starts_before_any_router(fleet: str) -> None:
    starts = started(fleet)
    assert sorted(starts[:2]) == [("long", WORKERS), ("short", WORKERS)]
    assert sorted(starts[2:]) == [("long", [ROUTER]), ("short", [ROUTER])]


@pytest.mark.parametrize("name", ["long", "short"])
def test_the_router_asks_for_every_worker_before_it_starts(fleet: str, name: str) -> None:
    line = next(line for owner, line in executed(fleet) if owner == name and f"restart --no-block {ROUTER}" in line)
    assert starts(line) == [ROUTER]
    assert [starts(line, [worker]) for worker in WORKERS] == [[], []]


def test_nothing_of_the_service_starts_before_it_is_whole_on_every_host(fleet: str) -> None:
    commands = executed(fleet)
    first_start = next(i for i, (_, line) in enumerate(commands) if "systemctl restart" in line)
    moved = [i for i, (_, line) in enumerate(commands) if line.startswith("ln -sfnT") and PLAN.paths.current in line]
    assert len(moved) == 2
    assert max(moved) < first_start


def test_the_questions_come_after_the_router(fleet: str) -> None:
    assert fleet.index("Verify | Golden questions") > fleet.rindex(f"restart --no-block {ROUTER}")


# ---- whose folders are whose


def test_root_changes_nothing_below_the_service_users_folder(fleet: str) -> None:
    """What it does there, it does as that user: each of its own commands would follow a link."""
    state = f"{PLAN.paths.state}/"
    commands = [line for _, line in executed(fleet) if state in line and line.split()[0] in CHANGING]
    assert commands == []
    made = [line for _, line in executed(fleet) if "mkdir -m 750" in line and state in line]
    assert len(made) == 6 and all(line.startswith("timeout -k 5 300 runuser -u sglang -- ") for line in made), made


def test_the_cache_of_a_retired_release_goes_as_the_service_user(checkout: Checkout) -> None:
    built = Answer(0, f"{PLAN.release.id}\nold-1\nolder-2\n..\n-rf\nx;id\n../../etc")
    kept = {"current": Answer(0, PLAN.release.id), "previous": Answer(0, "old-1"), "built": built}
    rest = dict.fromkeys(("served", "hidden", "pin"), Answer(0, ""))
    checkout.hosts(host("good", {**GOOD, KEPT: printed({**kept, **rest})}))
    _, output = checkout.pyinfra("-y", "-vv")
    removing = [line for _, line in executed(output) if "rm -rf" in line and "older-2" in line]
    assert len(removing) == 2, removing
    assert removing[0].startswith("mv -T ") and PLAN.paths.state not in removing[0]
    assert removing[1] == f"timeout -k 5 300 runuser -u sglang -- rm -rf {PLAN.paths.cache}/older-2"
    assert not [line for _, line in executed(output) if "x;id" in line or "-rf -rf" in line or "../../etc" in line]


# ---- a worker that fails


def test_one_failed_worker_ends_the_run_before_any_router(checkout: Checkout) -> None:
    checkout.hosts(host("good", GOOD), host("bad", DECODE_FAILS))
    status, output = checkout.pyinfra("-y", "-vv")
    assert status != 0
    assert {name for name, units in started(output) if units == WORKERS} == {"good", "bad"}
    assert [units for _, units in started(output) if units == [ROUTER]] == []


@pytest.mark.parametrize("percent", ["99", "100"])
def test_a_higher_limit_of_failed_hosts_starts_the_routers_of_the_others_only(checkout: Checkout, percent: str) -> None:
    checkout.hosts(host("good", GOOD), host("bad", DECODE_FAILS))
    _, output = checkout.pyinfra("-y", "-vv", "--fail-percent", percent)
    assert [name for name, units in started(output) if units == [ROUTER]] == ["good"]


@pytest.mark.parametrize("answers", [DECODE_FAILS, DECODE_DIES], ids=["gate fails", "dies after its gate"])
@pytest.mark.parametrize("told", [{}, {"_ignore_errors": True}], ids=["", "errors ignored"])
def test_a_router_fails_by_itself_without_its_workers(
    checkout: Checkout, answers: dict[str, object], told: dict[str, object]
) -> None:
    checkout.hosts(host("bad", answers, **told))
    _, output = checkout.pyinfra("-y", "-vv", "--fail-percent", "100")
    assert [units for _, units in started(output)] == [WORKERS]


def test_hosts_that_do_not_wait_for_each_other_start_no_router_over_a_failed_worker(checkout: Checkout) -> None:
    checkout.hosts(host("good", GOOD), host("bad", DECODE_FAILS))
    _, output = checkout.pyinfra("-y", "-vv", "--no-wait", "--fail-percent", "100")
    assert ("bad", [ROUTER]) not in started(output)


def at_a_terminal(checkout: Checkout, *arguments: str) -> str:
    """What a run says to somebody who presses Enter at every question."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        checkout.command(*arguments),
        cwd=checkout.folder,
        env=checkout.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    output, answered = "", 0
    try:
        while said := read(ours, process):
            output += said
            os.write(ours, b"\n" * (output.count("Press enter") - answered))
            answered = output.count("Press enter")
    finally:
        process.kill()  # it has left its terminal, or the test is broken off
        process.wait()
        os.close(ours)
    return output


def read(terminal: int, process: subprocess.Popen[bytes]) -> str:
    """What a terminal says next, "" once the process has left it: it was seen to stay open behind it."""
    while True:
        ended = process.poll() is not None
        if select.select([terminal], [], [], 0 if ended else 1)[0]:
            try:
                return os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                return ""
        if ended:
            return ""


def test_whoever_presses_enter_at_every_question_gets_no_router_over_a_failed_worker(checkout: Checkout) -> None:
    checkout.hosts(host("good", GOOD), host("bad", DECODE_FAILS))
    output = at_a_terminal(checkout, "-vv")
    assert output.count("Press enter") >= 2, output  # to begin, and to go on without the failed host
    assert [name for name, units in started(output) if units == [ROUTER]] == ["good"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_a_signal_ends_tells_its_last_lines(checkout: Checkout, number: signal.Signals) -> None:
    checkout.hosts(host("good", GOOD))
    run = subprocess.Popen(
        checkout.command("-y"), cwd=checkout.folder, env=checkout.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stderr
    said = []
    for line in run.stderr:
        said.append(line)
        if "Starting operation" in line and "Starting operation" not in "".join(said[:-1]):
            run.send_signal(number)
    assert run.wait() == 128 + number, "".join(said)
    output = "".join(said)
    assert f"{number.name}: the run ends here" in output and "Traceback" not in output
    assert "To go on" in said[-2] and "pyinfra -y inventory.py deploy.py" in said[-1]


# ---- a host that is refused


@pytest.mark.parametrize(
    ("answers", "line"), [(NO_ROOT, "needs root"), (NO_DRIVER, "no nvidia-smi")], ids=["no root", "no driver"]
)
@pytest.mark.parametrize("how", ["-y", "--dry"])
def test_a_refused_host_is_one_line_and_nothing_changes(
    checkout: Checkout, answers: dict[str, object], line: str, how: str
) -> None:
    checkout.hosts(host("bad", answers))
    status, output = checkout.pyinfra(how)
    assert status != 0
    assert len([said for said in output.splitlines() if "refused:" in said and line in said]) == 1
    assert "Traceback" not in output
    assert "Starting operation" not in output


def test_a_refused_host_ends_the_run_for_all(checkout: Checkout) -> None:
    checkout.hosts(host("good", GOOD), host("bad", NO_ROOT))
    status, output = checkout.pyinfra("-y")
    assert status != 0
    assert "Starting operation" not in output


def test_a_dry_run_of_a_bare_host_changes_nothing_and_succeeds(checkout: Checkout) -> None:
    checkout.hosts(host("good", GOOD))
    last_run = checkout.folder / "reports/_fake_good.json"
    last_run.parent.mkdir()
    last_run.write_text("what the last run said")
    status, output = checkout.pyinfra("--dry", "--diff")
    assert status == 0, output
    assert "Starting operation" not in output
    assert "Will create /etc/sglang-pd/decode.sh" in output
    assert "--disaggregation-mode decode" in output
    assert re.search(r"Will create in /opt/sglang-pd/bin: \d+ files, runs on the host, ", output), "tools are one line"
    assert len(output.splitlines()) < 420, "what a reader goes through"
    whole = checkout.pyinfra("--dry", "--diff", "--data", "full_diff=True")[1]
    assert '+ """Wait until a service is ready' in whole
    assert last_run.read_text() == "what the last run said"
    assert json.loads(last_run.with_name("_fake_good.dry.json").read_text())


# ---- a host whose driver awaits its reboot

MANAGED = {"manage_driver": True, "driver_version": "580.95.05"}
DRIVER = "section drivers drivers"
OF_DRIVER = {
    "drivers": Answer(0, "hi \tnvidia-kernel-open-dkms\t580.95.05-1\nhi \tnvidia-open\t580.95.05-1"),
    "installed": Answer(0, "1764000000"),
    "booted": Answer(0, "1763000000"),
    "kernels": Answer(0, "6.8.0 headers"),
    **{name: Answer(0, "") for name in ("runfile", "secureboot", "enrolled", "serving")},
}


def managed(changes: Mapping[str, object] | None = None) -> dict[str, object]:
    """A host with the wanted driver, loaded; its pin and its list for unattended-upgrades are not there."""
    paths = [f"{path}\tabsent\t\t\t\t" for path in (KEYRINGS, *PLACED)]
    answers = bare_host({DRIVER: printed(OF_DRIVER)})
    return {**answers, PATHS: [*answers[PATHS], *paths], **(changes or {})}  # type: ignore[misc]


NOT_LOADED = managed(
    {
        HARDWARE: printed({**JUDGED, "gpus": Answer(127, ""), "driver": Answer(0, "")}),
        "then run again": {"success": False, "stderr": "reboot"},
    }
)


def test_a_host_that_awaits_its_reboot_ends_the_run_before_any_host_gets_more_than_its_driver(
    checkout: Checkout,
) -> None:
    checkout.hosts(host("good", managed(), **MANAGED), host("bad", NOT_LOADED, **MANAGED))
    status, output = checkout.pyinfra("-y", "-vv")
    assert status != 0
    ended = [(name, line) for name, line in executed(output) if "then run again" in line]
    assert ended == [("bad", "echo 'reboot @fake/bad, then run again: no driver is loaded, 580.95.05 is wanted' >&2; exit 1")]  # fmt: skip
    operations = re.findall(r"Starting operation: (\w+) \|", output)
    assert set(operations) == {"Driver"}
    assert "Traceback" not in output


def test_a_host_that_awaits_its_reboot_gets_nothing_more_where_others_go_on(checkout: Checkout) -> None:
    checkout.hosts(host("good", managed(), **MANAGED), host("bad", NOT_LOADED, **MANAGED))
    _, output = checkout.pyinfra("-y", "-vv", "--fail-percent", "100")
    assert [name for name, units in started(output) if units == [ROUTER]] == ["good"]
    *_, last, tells = [line for name, line in executed(output) if name == "bad"]
    assert "then run again" in last
    assert "timeout 20 python3 -I -c" in tells, "what a run's end tells of a host is only read"


def test_a_reboot_that_does_not_come_about_leaves_no_server_stopped(checkout: Checkout) -> None:
    serving = managed(
        {
            HARDWARE: printed({**JUDGED, "gpus": Answer(127, ""), "driver": Answer(0, "")}),
            DRIVER: printed({**OF_DRIVER, "serving": Answer(0, f"{DECODE}\n{PREFILL}\n{ROUTER}")}),
            f"systemctl stop {DECODE}": {"success": False, "stderr": "timed out"},
            f"systemctl start --no-block {ROUTER} {DECODE} {PREFILL}": "asked to start",
        }
    )
    checkout.hosts(host("bad", serving, **MANAGED, allow_reboot=True))
    status, output = checkout.pyinfra("-y", "-vv")
    assert status != 0 and f"not rebooted: {DECODE}, {PREFILL} could not be stopped" in output, output
    assert output.index("could not be stopped") < output.index("the servers start again as they were")
    assert "asked to start" in output


# ---- release = "auto"

AUTO = {
    "release": "auto",
    "model": "deepseek-v4-flash-nvfp4",
    "prefill_tensor_parallel": 4,
    "decode_tensor_parallel": 4,
}
OLD_DRIVER = bare_host(
    {
        HARDWARE: printed(
            {name: Answer(a.status, a.text.replace("580.95.05", "570.172.08")) for name, a in JUDGED.items()}
        )
    }
)


def test_a_dry_run_says_which_release_auto_is_and_why(checkout: Checkout) -> None:
    checkout.hosts(host("good", GOOD, **AUTO))
    _, output = checkout.pyinfra("--dry")
    said = [line for line in output.splitlines() if 'release "auto" is ' in line]
    assert len(said) == 1, output
    assert "sglang-0.5.23-cu130: driver 580.95.05 (CUDA 13.0), compute capability 12.0, Python 3.11" in said[0]
    assert "Traceback" not in output


def test_auto_on_a_host_that_no_release_fits(checkout: Checkout) -> None:
    checkout.hosts(host("old", OLD_DRIVER, **AUTO))
    status, output = checkout.pyinfra("--dry")
    assert status != 0
    (said,) = [line for line in output.splitlines() if "refused:" in line]
    assert 'release/auto/fits: release = "auto": no release fits this host; nearest is sglang-0.5.23-cu130' in said
    assert "driver 570.172.08 serves CUDA 12.8, it needs 13.0, so a driver >= 580" in said
    assert "Traceback" not in output


def test_auto_checks_settings_against_the_release_that_it_chose(checkout: Checkout) -> None:
    checkout.hosts(host("good", GOOD, **AUTO, decode_arguments=["--cuda-graph-bs", "8"]))
    status, output = checkout.pyinfra("--dry")
    assert status != 0
    (said,) = [line for line in output.splitlines() if "refused:" in line]
    assert "use --cuda-graph-bs-decode" in said
