"""A client without retries, at a fixed rate, throughout what a test does to a service."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.node.node import Node
from tests.node.waiting import until

SCRIPT = Path(__file__).with_name("steady_client.py")


@dataclass(frozen=True)
class Asked:
    """One question: when it was sent and when it ended (seconds since 1970, this machine's clock), and what came."""

    sent: float
    ended: float
    prompt: int
    fault: str | None
    answer: str | None = None
    tokens: tuple[int, int] = (0, 0)  # of the prompt, of the answer

    def in_flight(self, since: float, until: float) -> bool:
        """Whether it was open at any moment between the two."""
        return self.sent <= until and self.ended >= since


class Steady:
    """What the client has told so far. Complete once the block of steady() has ended."""

    def __init__(self) -> None:
        self._told: list[Asked] = []

    def tell(self, line: str) -> None:
        self._told.append(Asked(**json.loads(line)))

    @property
    def asked(self) -> list[Asked]:
        return sorted(self._told, key=lambda one: one.sent)

    @property
    def failed(self) -> list[Asked]:
        return [one for one in self.asked if one.fault]

    def answers_more(self, count: int = 4, limit: float = 120) -> None:
        """Returns once so many more questions have been answered."""
        before = len(self._told) - len(self.failed)
        until(lambda: len(self._told) - len(self.failed) >= before + count, f"{count} more answers", limit)

    def answers_of(self, prompt: int) -> set[str | None]:
        """The different answers that one question got: more than one is a wrong one."""
        return {one.answer for one in self._told if one.prompt == prompt and not one.fault}

    def __str__(self) -> str:
        faults = [f"{one.fault} (open for {one.ended - one.sent:.1f} s)" for one in self.failed]
        slowest = max((one.ended - one.sent for one in self.asked if not one.fault), default=0.0)
        return f"{len(self._told)} asked, {len(faults)} failed, the slowest answer took {slowest:.1f} s; {faults[:5]}"


@contextmanager
def steady(
    node: Node, rate: float = 2.0, tokens: int = 16, url: str = "http://127.0.0.1:8000", model: str = "rehearsal"
) -> Iterator[Steady]:
    """Ask from a node, by default its own router, `rate` times a second; each answer of at most `tokens` tokens."""
    words = shlex.join(["python3", "-I", "-c", SCRIPT.read_text(), url, model, str(rate), str(tokens)])
    process = subprocess.Popen(
        [*node.ssh_command(), words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    client = Steady()
    assert process.stdin and process.stdout and process.stderr
    reading = threading.Thread(target=lambda out: [client.tell(line) for line in out], args=(process.stdout,))
    reading.start()
    try:
        yield client
    finally:
        process.stdin.close()
        reading.join()
        said = process.stderr.read()
        assert process.wait() == 0, said
