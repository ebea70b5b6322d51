"""The whole job on a simulated host: python -m tests.node.rehearse, or make rehearse.

A bare node is deployed, deployed again (which must change nothing) and asked through its router. With --hosts, several
nodes share the roles of one service: then its answers are compared with those of a single server too, and every worker
must have counted its share of them. In the environment: MONITORING=1 installs Prometheus too and asks what it sees;
KEEP=1 leaves the nodes up and says how to reach them; REBUILD=1 then replaces the last one by an empty one of the same
name, as after a dead disk, and brings it back by the two documented commands.

--hardware plays a recorded host, --settings a user's own settings: first a dry run shows the plan for that host, then
as much of it as a CPU can is deployed.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.node import asking, hardware, settings, single, together, watching
from tests.node.node import DEFAULT_HARDWARE, REPOSITORY, Node
from tests.node.process import NodeError, command
from tests.node.together import Service

NAME = "rehearsal"
COMPARED = 20  # prompts that a service of several hosts and a single server are both asked
VERIFY = "/opt/sglang-pd/bin/pd-verify"
VERIFY_CONFIG = "/etc/sglang-pd/verify.json"
NOT_CHECKED = """\
A rehearsal runs SGLang on the CPU, beside recorded hardware. It cannot check
  - the GPU kernels, their patches and anything else that runs on a GPU
  - what P2P and the KV path between two GPUs carry
  - that NUMA binding takes effect: numactl runs its command unbound
  - the NVIDIA driver: its answers are recorded"""

# asks the router one question without our own tool: the address and the question on stdin, the answer on stdout
ASK = """
import json, sys, urllib.request
config, question = json.loads({given!r})
body = {{"model": config["model"], "messages": [{{"role": "user", "content": question["prompt"]}}],
        "max_tokens": question.get("max_tokens", 64), "temperature": 0}}
request = urllib.request.Request(config["url"] + "/v1/chat/completions", json.dumps(body).encode(),
                                 {{"Content-Type": "application/json"}})
answer = json.load(urllib.request.urlopen(request, timeout=config.get("warm_up_limit_s", 60)))
print(answer["choices"][0]["message"]["content"])
"""


@dataclass(frozen=True)
class Run:
    """What one run of pyinfra did."""

    operations: int  # of all hosts together
    changed: list[str]  # HOST: OPERATION


@dataclass(frozen=True)
class Answers:
    right: int
    asked: int


def pyinfra_line(played: Service, deploy: str) -> list[str]:
    return [str(Path(sys.executable).with_name("pyinfra")), "-y", played.inventory, deploy]


def run_deploy(played: Service, deploy: str) -> Run:
    """Run pyinfra, its progress shown as it goes. Raises NodeError when an operation fails."""
    say(f"$ {shlex.join(['pyinfra', '-y', played.inventory, deploy])}")
    line = [*pyinfra_line(played, deploy), "--json"]
    environment = {**os.environ, **played.variables}
    process = subprocess.Popen(line, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        report, _ = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return read_report(report, process.returncode)


def read_report(report: str, exit_status: int) -> Run:
    """Read what `pyinfra -y --json` printed: one line of JSON, after whatever the deploy itself printed."""
    lines = report.strip().splitlines()
    if exit_status != 0 and not (lines and lines[-1].startswith("{")):
        raise NodeError(f"the deploy failed: pyinfra ended with {exit_status}")
    results: dict[str, Any] = json.loads(lines[-1])["results"]
    if failed := [name(operation) for operation in results["operations"] if operation["error"]]:
        raise NodeError(f"the deploy failed in: {'; '.join(failed)}")
    if exit_status != 0 or results["failed_hosts"]:
        raise NodeError(f"the deploy failed: pyinfra ended with {exit_status}")
    return Run(
        operations=results["totals"]["hosts"],
        changed=[f"{host}: {name(one)}" for one in results["operations"] for host in one["success"]],
    )


def name(operation: dict[str, Any]) -> str:
    return ", ".join(operation["names"]) or str(operation["name"])


def ask(node: Node) -> Answers:
    """Ask through the router: all golden questions by the tool on the node, and the first one without it."""
    line = f"{VERIFY} --config {VERIFY_CONFIG} --json"
    say(f"$ ssh {node.name} {line}")
    ran = node.run(line)
    try:
        verdict = json.loads(ran.stdout)
        answers = verdict["answers"]
    except (ValueError, KeyError, TypeError):
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()[-1]
        raise NodeError(f"{line} ended with {ran.returncode} and said: {said}") from None
    right = sum(1 for answer in answers if answer["ok"])
    for answer in answers:
        say(f"    {answer['name']}: {'right' if answer['ok'] else json.dumps(answer)}")
    if ran.returncode != 0 or not verdict["ok"] or right != len(answers) or not answers:
        raise NodeError(f"{right} of {len(answers)} answers right, {line} ended with {ran.returncode}")
    ask_independently(node)
    return Answers(right, len(answers))


def ask_independently(node: Node) -> None:
    config = json.loads(node.run(f"cat {VERIFY_CONFIG}").stdout)
    question = next(golden for golden in config["golden"] if golden["match"] in {"contains", "equals"})
    given = json.dumps([{key: config[key] for key in ("url", "model")}, question])
    ran = node.run("python3 -", text=ASK.format(given=given))
    if ran.returncode != 0 or question["expect"].lower() not in ran.stdout.lower():
        said = (ran.stdout.strip() or ran.stderr.strip() or "nothing").splitlines()[-1]
        raise NodeError(f"asked without our tool {question['prompt']!r}: {said!r}, not {question['expect']!r}")
    say(f"    {question['name']}, asked without our tool: right")


def compare(played: Service) -> str:
    """The service's answers with those of a single server on the first host, and what each worker counted meanwhile.

    Returns what was found, for the summary. Raises NodeError where they differ, or where a worker took no part.
    """
    node = played.router
    asked = single.prompts()[:COMPARED]
    with single.unwatched(*played.nodes):
        before = single.counters(node)
        apart = [asking.answer(node, prompt) for prompt in asked]
        counted = single.grown(before, single.counters(node))
    for role, workers in counted.items():
        say(f"    {role} answered {', '.join(f'{count} at {url}' for url, count in workers.items())}")
        if sum(workers.values()) != len(asked) or not all(workers.values()):
            raise NodeError(f"{len(asked)} answers, of which the {role} servers counted {list(workers.values())}")
    with single.single_server(played.of("prefill")[0]) as port:
        together = [asking.answer(node, prompt, port=port) for prompt in asked]
    if wrong := sum(one != other for one, other in zip(apart, together, strict=True)):
        raise NodeError(f"{wrong} of {len(asked)} answers differ from those of a single server")
    say(f"    {len(asked)} of {len(asked)} answers are those of a single server")
    return f"{len(asked)}/{len(asked)} as a single server's"


def require_unchanged(run: Run) -> None:
    if run.changed:
        raise NodeError(f"the second run changed {len(run.changed)} of {run.operations}: {'; '.join(run.changed)}")


def require_recorded(played: Service) -> None:
    if asked := sorted({question for node in played.nodes for question in node.unrecorded()}):
        raise NodeError(f"hardware was asked what was not recorded: {'; '.join(asked)}")


def bring_back(played: Service, deploy: str) -> Answers:
    """The last node's disk died: the two commands that the documentation gives, then the questions again."""
    node = played.nodes[-1]
    say(f"\n== {node.name} is rebuilt: same name, new host key, empty disk")
    node.rebuild()
    forget = ["ssh-keygen", "-R", node.address, "-f", str(node.known_hosts)]
    say(f"$ {shlex.join(forget)}")
    command(*forget)
    run_deploy(played, deploy)
    return ask(played.router)


def show_plan(played: Service, deploy: str) -> None:
    """What a first run would do on the recorded host with the user's settings. Raises NodeError where it is refused."""
    words = ["--dry", "--diff", played.inventory, deploy]
    say(f"$ {shlex.join(['pyinfra', *words])}")
    line = [str(Path(sys.executable).with_name("pyinfra")), *words]
    environment = {**os.environ, **played.variables, "PLAN_ONLY": "1"}
    planned = subprocess.run(line, cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL)
    if planned.returncode != 0:
        raise NodeError("the host is refused with these settings, for the reasons above")


def what_was_not_played(name: str) -> str:
    """For the end of a rehearsal of a user's own settings."""
    planned, ignored = settings.left_out(settings.own(name))
    lines = [
        f"Of the settings of {name}, these were planned with for the recorded host, not served with: {', '.join(planned)}"
        if planned
        else f"Of the settings of {name}, all that were planned with were served with too",
        *(
            [f"These were not looked at, they concern what only the real host has: {', '.join(ignored)}"]
            if ignored
            else []
        ),
    ]
    return "\n".join(lines)


def rehearse(played: Service, deploy: str, rebuild: bool, own_settings: str = "") -> str:
    """Play the whole job and return the summary line. Raises NodeError at the first thing that is wrong.

    own_settings: a host of the user's, whose settings are planned with before anything is deployed.
    """
    started = time.monotonic()
    model = played.nodes[0].wanted_hardware
    say(f"== a bare node, {model}" if not played.roles else f"== bare nodes, {model}: {played}")
    for node in played.nodes:
        node.up()
    if own_settings:
        say(f"\n== the plan for {model} with the settings of {own_settings}")
        show_plan(played, deploy)
    say(f"\n== deploy, {time.monotonic() - started:.0f} s after the start")
    first = run_deploy(played, deploy)
    say(f"\n== deploy again, {time.monotonic() - started:.0f} s after the start: nothing may change")
    second = run_deploy(played, deploy)
    require_unchanged(second)
    say(f"\n== questions through the router, {time.monotonic() - started:.0f} s after the start")
    answers = ask(played.router)
    found = [f"{answers.right}/{answers.asked} answers"]
    if played.roles:
        say(f"\n== the same questions to a single server, {time.monotonic() - started:.0f} s after the start")
        try:
            found.append(compare(played))
        except AssertionError as fault:  # of what tests share with this
            raise NodeError(" ".join(str(fault).split())) from None
    if settings.watched():
        say(f"\n== what Prometheus sees, {time.monotonic() - started:.0f} s after the start")
        found.append(watching.require_watched(played.nodes))
    require_recorded(played)
    if rebuild:
        again = bring_back(played, deploy)
        require_recorded(played)
        found.append(f"rebuilt, {again.right}/{again.asked} answers")
    who = f"{played}: " if played.roles else ""
    counts = f"{first.operations} operations, {len(first.changed)} changed, then {len(second.changed)}"
    return f"rehearsal ok: {who}{counts}; {'; '.join(found)}; {time.monotonic() - started:.0f} s"


def how_to_reach(played: Service, deploy: str) -> str:
    variables = shlex.join(f"{name}={value}" for name, value in played.variables.items())
    return "\n".join(
        (
            *(
                f"{node.name} stays up; python -m tests.node down --name {node.name} takes it away\n"
                f"  {shlex.join(node.ssh_command(node.known_hosts))}"
                for node in played.nodes
            ),
            f"  {variables} {shlex.join(pyinfra_line(played, deploy))}",
        )
    )


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.node.rehearse", description=__doc__)
    parser.add_argument("--deploy", default="deploy.py", help="what pyinfra runs (default: %(default)s)")
    parser.add_argument("--hardware", default=DEFAULT_HARDWARE, metavar="NAME", help="recorded host (%(default)s)")
    parser.add_argument("--settings", default="", metavar="NAME", help="a host of group_data, or a file like it")
    parser.add_argument("--hosts", type=int, default=1, metavar="N", help="that serve together (%(default)s)")
    given = parser.parse_args(arguments)
    deploy = given.deploy
    if given.hardware != DEFAULT_HARDWARE:
        os.environ["HARDWARE"] = given.hardware
    if given.settings:
        settings.own(given.settings)
        os.environ["SETTINGS"] = given.settings
    keep, rebuild = (os.environ.get(switch, "0") not in {"", "0"} for switch in ("KEEP", "REBUILD"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)

    played = together.service(NAME, given.hosts, given.hardware)
    hardware.chain(given.hardware)
    for node in played.nodes:
        if node.folder.exists():
            say(f"{node.name} is still there from an earlier rehearsal: it is taken away")
            node.down()
    try:
        summary = rehearse(played, deploy, rebuild, given.settings)
    except NodeError as error:
        if keep and all(node.is_up for node in played.nodes):
            say(how_to_reach(played, deploy))
        else:
            take_away(played)
        say(f"rehearsal failed: {error}")
        return 1
    except BaseException:
        take_away(played)
        raise
    if keep:
        say(how_to_reach(played, deploy))
    else:
        take_away(played)
    say(NOT_CHECKED)
    if given.settings:
        say(what_was_not_played(given.settings))
    say(summary)
    return 0


def take_away(played: Service) -> None:
    for node in played.nodes:
        node.down()


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except NodeError as error:
        sys.exit(f"rehearsal failed: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
