"""What users see when a server is killed under load: python3 under_kill.py URL MODEL UNIT, as root on the host.

Eight answers stream; once each has begun, the unit's processes get SIGKILL. Prints JSON:
  answered    how many of the eight were whole nevertheless
  ended_s     seconds from the kill until the last of the eight ended, whole or with an error
  errors      what the others got, each text once
  again_s     seconds from the kill until a new request was answered
Standard library only, and it travels as text. PD_API_KEY in the environment is sent as the key.

exit codes: 0 answered again; 1 not within the limit; 2 wrong usage; 3 no answer before the kill
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

CLIENTS = 8
TOKENS = 1500
LIMIT_S = 600.0
POLL_S = 0.25


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
        self.asking = (url, model, f"word {number} " * 200)
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
        except urllib.error.HTTPError as error:
            self.error = f"HTTP {error.code}"
        except OSError as error:
            self.error = f"{type(error).__name__}: {error}"[:120]
        finally:
            self.ended = time.monotonic()
            self.begun.set()


def answers(url: str, model: str) -> bool:
    try:
        with asked(url, model, "Hello", 1, stream=False, limit=30) as answer:
            return answer.status == 200
    except OSError:
        return False


def main(words: list[str]) -> int:
    if len(words) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    url, model, unit = words
    if not answers(url, model):
        print(f"{url} does not answer before anything is killed", file=sys.stderr)
        return 3
    clients = [Client(url, model, number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.begun.wait()
    killed = time.monotonic()
    subprocess.run(["systemctl", "kill", "--signal", "KILL", unit], check=True)
    again = None
    while again is None and time.monotonic() < killed + LIMIT_S:
        if answers(url, model):
            again = round(time.monotonic() - killed, 1)
        else:
            time.sleep(POLL_S)
    for client in clients:
        client.join(max(0.0, killed + LIMIT_S - time.monotonic()))
    found = {
        "answered": sum(client.whole for client in clients),
        "ended_s": round(max(client.ended for client in clients) - killed, 1),
        "errors": sorted({client.error for client in clients if client.error}),
        "again_s": again,
    }
    print(json.dumps(found))
    return 0 if again is not None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
