"""What a provisioned node does, read by means that are not the playbook's own: systemctl, HTTP, files."""

from __future__ import annotations

import json

from tests.node.node import Node

UNITS = [f"sglang-pd-{name}.service" for name in ("prefill", "decode", "router")]
CONFIG = "/etc/sglang-pd"


def out(node: Node, command: str) -> str:
    ran = node.run(command)
    assert ran.returncode == 0, f"{command}: {ran.stderr}"
    return ran.stdout.strip()


def states(node: Node) -> list[str]:
    return out(node, f"systemctl show -p ActiveState --value {' '.join(UNITS)}").split()


def pids(node: Node) -> dict[str, int]:
    return {unit: int(out(node, f"systemctl show -p MainPID --value {unit}")) for unit in UNITS}


def logged(node: Node, unit: str) -> list[str]:
    """What a unit has logged since it was last started."""
    start = f"$(systemctl show -p InvocationID --value {unit})"
    return out(node, f"journalctl -o cat _SYSTEMD_INVOCATION_ID={start}").splitlines()


def answer(
    node: Node, prompt: str, port: int = 8000, tokens: int = 24, stream: bool = False, model: str = "rehearsal"
) -> str:
    """Asked on the node, with Debian's own Python and nothing of ours."""
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
         "temperature": 0, "stream": stream}
    )  # fmt: skip
    script = f"""
import json, sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:{port}/v1/chat/completions", sys.stdin.buffer.read(),
                                 {{"Content-Type": "application/json"}})
answer = urllib.request.urlopen(request, timeout=60)
if {stream}:
    events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    print("".join(choice["delta"].get("content") or "" for choice in choices), end="")
else:
    print(json.load(answer)["choices"][0]["message"]["content"], end="")
"""
    ran = node.run(f"python3 -c '{script.replace(chr(39), chr(34))}'", text=body)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def answers(node: Node) -> bool:
    ran = node.run(f"/opt/sglang-pd/bin/pd-verify --config {CONFIG}/verify.json --json")
    return ran.returncode == 0
