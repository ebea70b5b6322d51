"""Asks at a fixed rate and never asks again: what a user without retries sees while something happens to the service.

python3 -I steady_client.py URL MODEL RATE TOKENS, until its standard input ends; then what is in flight is waited for.
A question is sent when its time has come, however many are open: a service that hangs does not slow the client down.
Every second answer is streamed. Prints a line of JSON for each question as it ends:
  sent, ended  seconds since 1970
  fault        null: the answer came whole; else "HTTP 503", "the stream ended early", ...
  prompt       which of the questions
  answer       what came
  tokens       of the prompt and of the answer, as the service counted them for this question
PD_API_KEY in the environment is sent as the key. Standard library alone, and it travels as text.
"""

import contextlib
import http.client
import json
import os
import sys
import threading
import time
from urllib.parse import urlsplit

LIMIT_S = 120.0  # of one read: a client that waits without end learns nothing
PROMPTS = [
    "What is 17*23? Answer with the number only.",
    "Repeat: a quick brown fox jumps over the lazy dog",
    "Count from one to ten.",
    *(f"Repeat: {number} " + "abc def " * 12 * number for number in range(1, 6)),
]
SAYS = threading.Lock()


def ask(url: str, model: str, tokens: int, number: int) -> None:
    prompt, stream = number % len(PROMPTS), number % 2 == 1
    said: dict[str, object] = {"prompt": prompt, "sent": time.time(), "fault": None}
    try:
        said["answer"], said["tokens"] = answer(url, {
            "model": model, "messages": [{"role": "user", "content": PROMPTS[prompt]}], "max_tokens": tokens,
            "temperature": 0, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {}),
        })  # fmt: skip
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as fault:
        said["fault"] = str(fault) if isinstance(fault, Refused) else f"{type(fault).__name__}: {fault}"[:200]
    said["ended"] = time.time()
    with SAYS:
        print(json.dumps(said), flush=True)


class Refused(ValueError):
    """An answer that is none; the message says what came."""


def answer(url: str, body: dict[str, object]) -> tuple[str, list[int]]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=LIMIT_S)
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("PD_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
    if response.status != 200:
        raise Refused(f"HTTP {response.status}: {' '.join(text.split())[:120]}")
    if not body["stream"]:
        whole = json.loads(text)
        return str(whole["choices"][0]["message"]["content"]), counted(whole)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        raise Refused("the stream ended early")
    parts = [json.loads(event) for event in events[:-1]]
    if wrong := [part for part in parts if "choices" not in part]:
        raise Refused(f"in the stream: {json.dumps(wrong[0])[:120]}")
    said = "".join(choice["delta"].get("content") or "" for part in parts for choice in part["choices"])
    return said, counted(parts[-1])


def counted(told: dict[str, dict[str, int]]) -> list[int]:
    return [told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]]


def main(words: list[str]) -> None:
    url, model, rate, tokens = words[0], words[1], float(words[2]), int(words[3])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    began, number, asking = time.monotonic(), 0, []
    while not ended.wait(max(0.0, began + number / rate - time.monotonic())):
        asking.append(threading.Thread(target=ask, args=(url, model, tokens, number)))
        asking[-1].start()
        number += 1
    for one in asking:
        one.join()


if __name__ == "__main__":
    main(sys.argv[1:])
