"""A host's hardware as files that a simulated host replays, and nothing in them that names the host or its owner."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer

SEAL = "recording.json"  # written last; names every other file with its hash
NOT_FOUND = 127  # a shell's status for a tool that is not there
# Files that a host may name: where they land on this machine is no host's to say.
FILE = re.compile(r"/(proc|sys)(/(?!\.{1,2}(/|$))[\w.:+-]+)+")
# A deploy installs these: that a bare host lacked them is an answer too.
INSTALLED_LATER = ("lspci", "numactl")
UUID = re.compile(r"\b(GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
MAC = re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", re.IGNORECASE)
IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_HEX = "[0-9a-f]{1,4}"
IPV6 = re.compile(rf"(?<![\w:])(?:(?:{_HEX}:){{1,7}}(?::{_HEX}){{1,6}}|(?:{_HEX}:){{7}}{_HEX})(?![\w:])", re.IGNORECASE)
ACCOUNT = re.compile(r"\([^()\s@]+@[^()\s]+\)")
PROCESS = re.compile(r"\bname=[^,\n]*")
# Words of the kernel's command line that say something of GPUs, PCIe, memory and CPUs; others may hold anything.
KERNEL_WORDS = re.compile(
    r"(?:(?:amd_|intel_)?iommu|pci|pcie_\w+|numa\w*|isolcpus|nohz\w*|hugepages\w*|default_hugepagesz|"
    r"transparent_hugepage|mitigations|cgroup\w*|systemd\.unified_cgroup_hierarchy|nvidia[\w.-]*|nouveau[\w.-]*|"
    r"modprobe\.blacklist|processor\.\w+|intel_idle\.\w+|idle)=[\w.,:=-]*|ro|quiet"
)
GPU_FIELDS = (
    "Model", "IRQ", "GPU UUID", "Video BIOS", "Bus Type", "DMA Size", "DMA Mask", "Bus Location", "Device Minor",
    "GPU Firmware", "GPU Excluded",
)  # fmt: skip


def read(answers: Mapping[str, Answer], asked: Iterable[str], own_names: Iterable[str]) -> dict[str, bytes]:
    """Path in the recording -> content, the seal last. From the sections of the fact Recording.

    asked: the sections that there must be; others are left out, but for files of /proc and /sys. own_names: what the
    inventory calls the host. Raises PlanError for an answer that is cut short.
    """
    asked = tuple(asked)
    for name in (*asked, "names", "fabricmanager", "end"):
        if name not in answers:
            raise PlanError(f"the host's answer is cut short, it holds no {name!r}: nothing is recorded, run again")
    questions = frozenset(asked)
    unnamed = _Unnamed({*own_names, *answers["names"].text.split()})
    files: dict[str, str] = {}
    tools: dict[str, int] = {}
    for section, answer in answers.items():
        kind, _, rest = section.partition(" ")
        if kind == "file" and FILE.fullmatch(rest):
            files[f"files{rest}"] = _file(rest, unnamed.text(_ended(answer.text)))
        elif section in questions:
            tool, *words = json.loads(rest)
            if answer.status == NOT_FOUND:
                if tool in INSTALLED_LATER:
                    files |= _answer(f"commands/{tool}/absent", ["*"], "", NOT_FOUND)
                continue
            number = tools[tool] = tools.get(tool, 0) + 1
            files |= _answer(f"commands/{tool}/{number}", words, unnamed.text(_ended(answer.text)), answer.status)
    state = dict(line.split("=", 1) for line in answers["fabricmanager"].text.splitlines() if "=" in line)
    if state.get("LoadState") == "loaded":
        files["units"] = f"nvidia-fabricmanager.service {state.get('ActiveState', '')}\n"
    whole = {path: text.encode() for path, text in files.items()}
    seal = {path: hashlib.sha256(content).hexdigest() for path, content in whole.items()}
    return {**whole, SEAL: (json.dumps(seal, indent=1) + "\n").encode()}


def fault(seal: str | None, found: Mapping[str, bytes]) -> str:
    """What is wrong with a recording, "" where nothing is. seal: its text, None where it has none. found: its files."""
    if seal is None:
        return f"it has no {SEAL}, which is written last"
    try:
        wanted = json.loads(seal)
        missing = [path for path in wanted if path not in found]
        other = [path for path in found if wanted.get(path) != hashlib.sha256(found[path]).hexdigest()]
    except (ValueError, TypeError, AttributeError):
        return f"its {SEAL} cannot be read"
    if missing:
        return f"{missing[0]} is missing"
    return f"{other[0]} is not as it was recorded" if other else ""


def _ended(text: str) -> str:
    return f"{text}\n" if text else ""


def _answer(folder: str, words: list[str], text: str, status: int) -> dict[str, str]:
    files = {f"{folder}/args": "".join(f"{word}\n" for word in words), f"{folder}/stdout": text}
    return {**files, f"{folder}/rc": f"{status}\n"} if status else files


def _file(path: str, text: str) -> str:
    if path == "/proc/cmdline":
        return " ".join(word for word in text.split() if KERNEL_WORDS.fullmatch(word)) + "\n"
    if path.endswith("/information"):
        return "".join(f"{line}\n" for line in text.splitlines() if line.partition(":")[0].strip() in GPU_FIELDS)
    return text


class _Unnamed:
    """Replaces what names a host, the same thing by the same stand-in wherever it stands."""

    def __init__(self, names: Iterable[str]) -> None:
        words = sorted((re.escape(name) for name in names if len(name) > 2), key=len, reverse=True)
        self._names = re.compile(rf"(?<![\w.-])(?:{'|'.join(words)})(?![\w-])", re.IGNORECASE) if words else None
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        text = ACCOUNT.sub("(builder@recorded)", text)
        text = PROCESS.sub("name=recorded", text)
        text = UUID.sub(self._stands(lambda n, m: f"{m[1] or ''}{n:08x}-0000-4000-8000-000000000000"), text)
        text = MAC.sub(self._stands(lambda n, _: f"02:00:00:00:00:{n % 256:02x}"), text)
        text = IPV4.sub(self._stands(lambda n, _: f"192.0.2.{n % 256}"), text)
        text = IPV6.sub(self._stands(lambda n, _: f"2001:db8::{n:x}"), text)
        return self._names.sub("recorded-host", text) if self._names else text

    def _stands(self, made: Callable[[int, re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        def stand_in(match: re.Match[str]) -> str:
            key = match[0].lower()
            if key not in self._known:
                self._known[key] = made(len(self._known) + 1, match)
            return self._known[key]

        return stand_in
