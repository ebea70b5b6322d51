"""Clients that leave before their answer: python3 gives_up.py, as root on a host that serves on loopback.

Some leave while their request stands in a queue, some while decode answers, some while prefill or decode does nothing
(its scheduler is held): then the request waits for its KV cache to move. Prints what each server counted meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from functools import partial
from pathlib import Path

SERVERS = {"prefill": 30000, "decode": 30001}
COUNTED = re.compile(r"^sglang:(num_(?:transfer_failed|bootstrap_failed|aborted)\w*_total)\{.*\} (\S+)$", re.MULTILINE)
HELD_S, SETTLES_S = 8.0, 8.0  # a server hears within 2 to 4 s that a client has left


def send(stream: bool, tokens: int, words: int) -> socket.socket:
    """A request that nobody waits for yet."""
    prompt = f"{time.time_ns()} " + "x " * words
    body = {"model": "rehearsal", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    text = json.dumps(body).encode()
    line = socket.create_connection(("127.0.0.1", 8000))
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    line.sendall((head % len(text)).encode() + text)
    return line


def answered(stream: bool) -> None:
    """Leaves while decode answers: after the first token, or after a second."""
    with send(stream, 700, 50) as line:
        if stream:
            line.recv(1)
        else:
            time.sleep(1)


def many(stream: bool) -> None:
    """Five times more than the servers take at once, who all leave together."""
    lines = [send(stream, 400, 150) for _ in range(40)]
    time.sleep(1.5)
    for line in lines:
        line.close()


def held(server: str, stream: bool) -> None:
    """Leaves while a scheduler does nothing."""
    pid = scheduler(server)
    os.kill(pid, signal.SIGSTOP)
    try:
        with send(stream, 50, 50):
            time.sleep(2)
        time.sleep(HELD_S - 2)
    finally:
        os.kill(pid, signal.SIGCONT)


def scheduler(server: str) -> int:
    show = ["systemctl", "show", "-p", "ControlGroup", "--value", f"sglang-pd-{server}.service"]
    group = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    (found,) = [
        int(pid)
        for pid in Path(f"/sys/fs/cgroup{group}/cgroup.procs").read_text().split()
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sglang::scheduler")
    ]
    return found


def counted() -> dict[str, float]:
    found = {}
    for server, port in SERVERS.items():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            for name, value in COUNTED.findall(answer.read().decode()):
                found[f"{server} {name}"] = float(value)
    return found


def main() -> None:
    for stream in (True, False):
        for name, act in (
            ("while decode answers", partial(answered, stream)),
            ("40 at once", partial(many, stream)),
            ("while prefill does nothing", partial(held, "prefill", stream)),
            ("while decode does nothing", partial(held, "decode", stream)),
        ):
            before = counted()
            act()
            time.sleep(SETTLES_S)
            grown = {key: value - before.get(key, 0) for key, value in counted().items()}
            told = ", ".join(f"{key} {count:.0f}" for key, count in grown.items() if count) or "nothing"
            print(f"{name}, {'streamed' if stream else 'not streamed'}: {told}", flush=True)


if __name__ == "__main__":
    main()
