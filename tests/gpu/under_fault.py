"""What users see when something breaks under load: python3 under_fault.py URL MODEL COMMAND..., as root on the host.

Some answers stream; once each has begun, the command breaks something. Prints JSON:
  answered    how many of them were whole nevertheless
  ended_s     seconds from the fault until the last of them ended, whole or with an error
  errors      what the others got: {text: how many}
  again       what was said to new requests until one was answered: {text: how many}
  again_s     seconds from the fault until a new request was answered
Standard library only, and it travels as text. In the environment: PD_API_KEY, sent as the key; CLIENTS (8),
TOKENS of each answer (1500), WORDS of each prompt (400).

exit codes: 0 answered again; 1 not within the limit; 2 wrong usage; 3 no answer before the fault; 4 the command
failed, or an answer ended before it
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

CLIENTS = int(os.environ.get("CLIENTS", "8"))
TOKENS = int(os.environ.get("TOKENS", "1500"))
WORDS = int(os.environ.get("WORDS", "400"))
LIMIT_S = 600.0
POLL_S = 0.25
ANSWER_S = 10.0  # limit of one of the new requests


def asked(url: str, model: str, prompt: str, tokens: int, stream: bool, limit: float) -> urllib.request.addinfourl:
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("PD_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps({**body, "stream": stream}).encode(), headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found: urllib.request.addinfourl = direct.open(request, timeout=limit)
    return found


class Client(threading.Thread):
    """One streamed answer."""

    def __init__(self, url: str, model: str, number: int) -> None:
        super().__init__(daemon=True)
        self.asking = (url, model, f"word {number} " * (WORDS // 2))
        self.begun = threading.Event()  # the first token is there, or there will be none
        self.error = ""
        self.whole = False
        self.ended = 0.0

    def run(self) -> None:
        try:
            with asked(*self.asking, TOKENS, stream=True, limit=LIMIT_S) as answer:
                for line in answer:
                    if line.startswith(b"data: [DONE]"):
                        self.whole = True
                    elif line.startswith(b"data:"):
                        self.begun.set()
            if not self.whole:
                self.error = "the stream ended early"
        except (OSError, http.client.HTTPException) as error:
            self.error = told(error)
        finally:
            self.ended = time.monotonic()
            self.begun.set()


def told(error: Exception) -> str:
    """What a client calls it."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
        return "no answer"
    return type(getattr(error, "reason", error)).__name__


def refusal(url: str, model: str, limit: float) -> str:
    """What a new request gets instead of an answer; "" for an answer."""
    try:
        with asked(url, model, "Hello", 2, stream=False, limit=limit) as answer:
            return "" if answer.status == 200 else f"HTTP {answer.status}"
    except (OSError, http.client.HTTPException) as error:
        return told(error)


def main(words: list[str]) -> int:
    if len(words) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    url, model, *command = words
    if said := refusal(url, model, 30):
        print(f"{url} does not answer before anything is broken: {said}", file=sys.stderr)
        return 3
    clients = [Client(url, model, number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.begun.wait()
    if ended := [client.error or "whole" for client in clients if client.ended]:
        print(f"ended before anything is broken: {', '.join(ended)}", file=sys.stderr)
        return 4
    broken = time.monotonic()
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode:
        return 4
    again, said_to_new = None, Counter[str]()
    while again is None and time.monotonic() < broken + LIMIT_S:
        if said := refusal(url, model, ANSWER_S):
            said_to_new[said] += 1
            time.sleep(POLL_S)
        else:
            again = round(time.monotonic() - broken, 1)
    for client in clients:
        client.join(max(0.0, broken + LIMIT_S - time.monotonic()))
    found = {
        "answered": sum(client.whole for client in clients),
        "ended_s": round(max(client.ended for client in clients) - broken, 1),
        "errors": Counter(client.error for client in clients if client.error),
        "again": said_to_new,
        "again_s": again,
    }
    print(json.dumps(found))
    return 0 if again is not None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
