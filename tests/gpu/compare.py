"""Do two services give the same greedy tokens? python -m tests.gpu.compare URL URL, routers or servers alike.

Where both cannot run at once: `compare URL --keep FILE` keeps what one answers, `compare URL FILE` compares later.

Prompts are random tokens of 5 to 4,000, the same for the same seed, asked one after the other: batches of another
shape round otherwise. Where answers differ, both are asked once more: a service that differs from itself explains it.
Standard library only, so that it runs where the services do.

exit codes: 0 all equal; 1 some differ; 2 wrong usage; 3 a service did not answer
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

EQUAL, DIFFERENT, USAGE, NO_ANSWER = range(4)
AROUND = 3  # tokens quoted on each side of the first difference


class NoAnswer(Exception):
    """One line: what a service said instead."""


@dataclass(frozen=True)
class Difference:
    prompt: int  # number of the prompt
    length: int  # tokens of the prompt
    at: int  # position of the first token that differs
    first: list[int]  # tokens of the answers around it
    second: list[int]
    again: str  # what the second time showed


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("services", nargs="+", metavar="URL", help="http://HOST:PORT, or a file that --keep wrote")
    parser.add_argument("--keep", metavar="FILE", help="with one URL: keep its answers instead")
    parser.add_argument("--prompts", type=int, default=50, metavar="N")
    parser.add_argument("--shortest", type=int, default=5, metavar="TOKENS")
    parser.add_argument("--longest", type=int, default=4000, metavar="TOKENS")
    parser.add_argument("--answer", type=int, default=32, metavar="TOKENS", help="tokens of each answer (32)")
    parser.add_argument("--ids", default="3:259", metavar="LOW:END", help="token ids of prompts (3:259, the bytes)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="of one request")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    given = parser.parse_intermixed_args(words)  # a file may come after options
    low, _, end = given.ids.partition(":")
    if not (low.isdigit() and end.isdigit() and int(low) < int(end)):
        parser.error(f"--ids {given.ids}: LOW:END, the first id and the one after the last")
    if not 1 <= given.shortest <= given.longest or given.prompts < 1 or given.answer < 1:
        parser.error("--prompts and --answer must be 1 or more, --shortest no more than --longest")
    if len(given.services) != (1 if given.keep else 2):
        parser.error("name two services, or one with --keep FILE")
    asked = prompts(given.prompts, given.shortest, given.longest, range(int(low), int(end)), given.seed)
    answers: list[list[int]] = []
    differences = []
    try:
        services = [Service(where, asked, given.answer, given.limit) for where in given.services]
        if given.keep:
            kept = [{"prompt": prompt, "answer": services[0].ask(number)} for number, prompt in enumerate(asked)]
            Path(given.keep).write_text(json.dumps(kept))
            return EQUAL
        for number in range(len(asked)):
            first, second = (service.ask(number) for service in services)
            answers.append(first)
            if first != second:
                differences.append(difference(number, len(asked[number]), first, second, services))
                if not given.json:
                    print(in_words(differences[-1]), flush=True)
    except NoAnswer as problem:
        print(f"compare: {problem}", file=sys.stderr)
        return NO_ANSWER
    distinct = len(set(map(tuple, answers)))
    if given.json:
        found = {"prompts": len(asked), "distinct_answers": distinct, "differences": list(map(asdict, differences))}
        print(json.dumps(found, indent=1))
    else:
        equal = len(asked) - len(differences)
        print(f"{equal} of {len(asked)} answers equal, {distinct} distinct ones among them")
    return DIFFERENT if differences else EQUAL


def prompts(count: int, shortest: int, longest: int, ids: range, seed: int) -> list[list[int]]:
    """Random tokens; lengths from the shortest to the longest, evenly on a logarithmic scale."""
    choose = random.Random(seed)
    ratio = longest / shortest
    lengths = [round(shortest * ratio ** (number / max(1, count - 1))) for number in range(count)]
    return [[choose.choice(ids) for _ in range(length)] for length in lengths]


class Service:
    """Answers to the same prompts, of a service that runs or as they were kept. Raises NoAnswer."""

    def __init__(self, where: str, asked: list[list[int]], tokens: int, limit: float) -> None:
        self.where, self.asked, self.tokens, self.limit = where, asked, tokens, limit
        self.kept: list[list[int]] | None = None
        if not where.startswith(("http://", "https://")):
            try:
                found = json.loads(Path(where).read_text())
                self.kept = [one["answer"] for one in found]
                same = [one["prompt"] for one in found] == asked
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise NoAnswer(f"{where} holds no kept answers: {error}") from None
            if not same or any(len(one) != tokens for one in self.kept):
                raise NoAnswer(f"{where} holds answers to other prompts, or of another length: give the same options")

    def ask(self, number: int) -> list[int]:
        return self.kept[number] if self.kept else ask(self.where, self.asked[number], self.tokens, self.limit)


def ask(url: str, prompt: list[int], tokens: int, limit: float) -> list[int]:
    """The greedy tokens of a service. Raises NoAnswer."""
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("PD_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url.rstrip('/')}/generate", json.dumps(body).encode(), headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=limit) as answer:
            content = json.load(answer)
    except urllib.error.HTTPError as error:
        said = " ".join(error.read().decode(errors="replace").split())[:200]
        raise NoAnswer(f"{url} answers HTTP {error.code} to {len(prompt)} tokens: {said!r}") from None
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{url} gave no answer to {len(prompt)} tokens: {error}") from None
    content = content[0] if isinstance(content, list) and content else content
    found = content.get("output_ids") if isinstance(content, dict) else None
    if not isinstance(found, list) or len(found) != tokens:
        raise NoAnswer(f"{url} answered without {tokens} output_ids: {json.dumps(content)[:200]}")
    return found


def difference(number: int, length: int, first: list[int], second: list[int], services: list[Service]) -> Difference:
    at = next(place for place, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    again = [service.ask(number) for service in services]
    changed = [one.where for one, before, now in zip(services, (first, second), again, strict=True) if before != now]
    if again[0] == again[1]:
        told = "equal the second time"
    elif changed:
        told = f"not what was answered first by {' and '.join(changed)}"
    else:
        told = "the same difference the second time"
    around = slice(max(0, at - AROUND), at + AROUND + 1)
    return Difference(number, length, at, first[around], second[around], told)


def in_words(one: Difference) -> str:
    return (
        f"prompt {one.prompt} ({one.length} tokens) differs from token {one.at} on: "
        f"{one.first} and {one.second}; {one.again}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
