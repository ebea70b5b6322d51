"""The cards themselves: number, kind, health, and who else uses them."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, error, healthy, warning
from tasks.plan.host.answers import HEALTH_COLUMNS, Gpu
from tasks.plan.host.matrices import spell_number_list
from tasks.plan.service.strays import Stray, is_stray
from tasks.plan.service.units import is_ours
from tasks.plan.settings.roles import ROLES

LOST = "Unable to determine the device handle"  # nvidia-smi of a card that fell off the bus
NOT_SAID = ("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "")


@dataclass(frozen=True)
class Health:
    """One line of the query HEALTH_COLUMNS: counters and modes as they were said, by column."""

    gpu: Gpu
    line: str
    cells: dict[str, str]

    def number(self, column: str) -> int:
        """Raises Unreadable where the driver gives no number."""
        cell = self.cells[column]
        if not cell.isdecimal():
            raise Unreadable(f"GPU {self.gpu.index} gives {cell!r} for {column}", self.line)
        return int(cell)

    def silent(self, column: str) -> bool:
        """Whether the card does not have such a thing."""
        return self.cells[column] in NOT_SAID


def health(found: Found) -> list[Health]:
    """A line for every GPU of the list. Raises Unreadable where one is missing or cut."""
    columns = HEALTH_COLUMNS.split(",")
    by_index = {}
    for line in found.rows("health"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(columns) or not cells[0].isdecimal():
            raise Unreadable("a line that is cut short or of another shape", line.strip())
        by_index[int(cells[0])] = Health(
            _gpu(found, int(cells[0]), line), line.strip(), dict(zip(columns, cells, strict=True))
        )
    for gpu in found.gpus:
        if gpu.index not in by_index:
            raise Unreadable(f"no line for GPU {gpu.index}")
    return [by_index[gpu.index] for gpu in found.gpus]


def _gpu(found: Found, index: int, line: str) -> Gpu:
    for gpu in found.gpus:
        if gpu.index == index:
            return gpu
    raise Unreadable("a line for a GPU that the list does not hold", line.strip())


def by_use(found: Found, faulty: list[int], line: str, advice: str, evidence: list[str]) -> Verdict:
    """An error where a server would get one of these GPUs, else a warning."""
    if found.wanted & set(faulty):
        return error(line, advice, *evidence)
    return warning(f"{line} (no server gets it)", advice, *evidence)


def warned(found: Found, about: str) -> list[str]:
    """What nvidia-smi said of single cards beside its answers, of the lines that hold `about`."""
    return [line.strip() for line in found.text_or_empty("warned").splitlines() if about in line]


def indices(gpus: list[int]) -> str:
    return f"GPU {spell_number_list(frozenset(gpus))}"


@check(
    "gpu/count/visible",
    "hardware",
    judges="the driver serves every NVIDIA card that sits on the PCI bus; one that it does not is a warning",
    source="a card off the bus (Xid 79) or one that failed to start shifts the indices of the others",
    ask="lspci -d 10de: ; nvidia-smi -L",
    required=False,
    of_gpu=True,
)
def visible(found: Found) -> Verdict:
    rows = [line.split() for line in found.rows("controllers")]
    on_bus = {words[0] for words in rows if len(words) == 2 and words[1].startswith("0x03")}  # not its sound device
    for gpu in found.gpus:
        if gpu.bus_id not in on_bus:
            raise Unreadable(f"GPU {gpu.index} ({gpu.bus_id}) is not on it", found.rows("controllers")[0])
    hidden = sorted(on_bus - {gpu.bus_id for gpu in found.gpus})
    if hidden:
        kernel = [
            line for line in found.answers["kernel"].text.splitlines() if any(bus[5:10] in line for bus in hidden)
        ]
        return warning(
            f"the driver serves {len(found.gpus)} of {len(on_bus)} cards on the PCI bus, not {', '.join(hidden)}",
            "look for it in `dmesg`; a card that fell off the bus comes back with a power cycle",
            *hidden,
            *warned(found, LOST)[:2],
            *kernel[:3],
        )
    return healthy(f"{len(found.gpus)} GPUs, all that sit on the PCI bus", *sorted(on_bus))


@check(
    "gpu/placement/possible",
    "plan",
    judges="the plan's GPUs are there, and no other server's share leaves a server GPUs that nothing joins",
    source="tasks/plan/service/placement.py",
    settings=tuple(f"{role}_{name}" for role in ROLES for name in ("gpus", "tensor_parallel")),
    ask="nvidia-smi topo -m",
    never_silenced=True,
)
def placed(found: Found) -> Verdict:
    workers = found.plan.workers
    placements = [(worker.name, worker.placement) for worker in workers if worker.placement]
    said = [f"{name}: {p.where}: {p.rule}" for name, p in placements]
    return healthy(f"{len(found.wanted)} of {len(found.gpus)} GPUs for {len(workers)} servers", *said)


@check(
    "gpu/kind/uniform",
    "plan",
    judges="the servers' GPUs are of one kind and size; a mixture is a warning",
    source="the ranks of a group wait for the slowest card, and the smallest decides what fits",
    ask="nvidia-smi -L",
    required=False,
    of_gpu=True,
)
def uniform(found: Found) -> Verdict:
    used = [gpu for gpu in found.gpus if gpu.index in found.wanted]
    kinds = sorted({f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in used})
    if len(kinds) > 1:
        return warning(
            f"servers get GPUs of {len(kinds)} kinds",
            f"name GPUs of one kind in {' and '.join(f'{role}_gpus' for role in found.settings.roles)}",
            *(f"GPU {gpu.index}: {gpu.name}, {gpu.memory_mib} MiB" for gpu in used),
        )
    return healthy(f"{len(used)} x {kinds[0]}")


@check(
    "gpu/capability/release",
    "hardware",
    judges="the release carries kernels for the cards' compute capability",
    source="the release's manifest, compute_capabilities",
    ask="nvidia-smi --query-gpu=index,name,compute_cap --format=csv",
    of_gpu=True,
)
def capability(found: Found) -> Verdict:
    served = found.manifest.compute_capabilities
    for gpu in found.gpus:
        if served and gpu.compute_capability not in served:
            return error(
                f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.compute_capability}, release "
                f"{found.manifest.name} carries kernels for {', '.join(served)}",
                "choose a release that carries kernels for it",
                f"GPU {gpu.index}: compute_cap {gpu.compute_capability}",
            )
    kinds = ", ".join(sorted({gpu.compute_capability for gpu in found.gpus}))
    return healthy(f"compute capability {kinds}" + ("" if served else ", the release asks for none"))


@check(
    "gpu/mig/off",
    "plan",
    judges="MIG is off on the servers' GPUs",
    source="servers need whole GPUs",
    ask="nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
    of_gpu=True,
)
def mig(found: Found) -> Verdict:
    sliced = [gpu.index for gpu in found.gpus if gpu.mig]
    if sliced:
        line = f"MIG is on for {indices(sliced)}: servers need whole GPUs"
        return by_use(
            found, sliced, line, "`nvidia-smi -mig 0`", [f"GPU {i}: mig.mode.current Enabled" for i in sliced]
        )
    return healthy("MIG is off on every GPU")


@check(
    "gpu/persistence/on",
    "hardware",
    judges="the driver stays loaded between processes; off is a warning unless this run switches it on",
    source="NVIDIA driver persistence: without it a card starts anew for every process",
    settings=("gpu_persistence",),
    ask="nvidia-smi --query-gpu=index,persistence_mode --format=csv",
    required=False,
    of_gpu=True,
)
def persistence(found: Found) -> Verdict:
    off = [gpu.index for gpu in found.gpus if not gpu.persistence]
    said = [f"GPU {index}: persistence_mode Disabled" for index in off]
    if off and not found.settings.gpu_persistence:
        return warning(f"persistence is off for {indices(off)}", "set gpu_persistence = True", *said)
    if off:
        return healthy(f"off for {indices(off)}, this run switches it on", *said)
    return healthy("on for every GPU")


@check(
    "gpu/ecc/uncorrected",
    "plan",
    judges="no uncorrected memory error since the driver was loaded, and none in SRAM ever; ECC off is a warning",
    source="Azure HPC health checks: uncorrectable SRAM errors above 0 fail",
    ask="nvidia-smi -q -d ECC",
    of_gpu=True,
)
def uncorrected(found: Found) -> Verdict:
    cards = health(found)
    off = [card for card in cards if card.cells["ecc.mode.current"] == "Disabled"]
    without = [card for card in cards if card.silent("ecc.mode.current")]
    counted = [card for card in cards if card not in off and card not in without]
    columns = [name for name in HEALTH_COLUMNS.split(",") if name.startswith("ecc.errors.uncorrected")]
    faulty = {card.gpu.index: [(name, card.number(name)) for name in columns] for card in counted}
    bad = {
        index: [(name, n) for name, n in counts if n] for index, counts in faulty.items() if any(n for _, n in counts)
    }
    if bad:
        said = [f"GPU {index}: {name} {n}" for index, counts in bad.items() for name, n in counts]
        total = sum(n for counts in bad.values() for _, n in counts)
        return by_use(
            found,
            list(bad),
            f"{indices(list(bad))} counts {total} uncorrected memory errors",
            "reset the GPU; replace it where they come back",
            said,
        )
    if off:
        return warning(
            f"ECC is off for {indices([card.gpu.index for card in off])}: memory errors go unseen",
            "`nvidia-smi -e 1`, then reboot",
            *(card.line for card in off),
        )
    if not counted:
        return healthy("these cards have no ECC", *(card.line for card in without))
    return healthy(f"no uncorrected error on {len(counted)} GPUs")


@check(
    "gpu/ecc/corrected",
    "plan",
    judges="corrected memory errors since the driver was loaded stay below the limits",
    source="Azure HPC health checks: above 10,000 in SRAM or 20,000,000 in DRAM fail",
    settings=("maximum_corrected_sram_errors", "maximum_corrected_dram_errors"),
    ask="nvidia-smi -q -d ECC",
    of_gpu=True,
)
def corrected(found: Found) -> Verdict:
    limits = {
        "ecc.errors.corrected.volatile.sram": found.settings.maximum_corrected_sram_errors,
        "ecc.errors.corrected.volatile.dram": found.settings.maximum_corrected_dram_errors,
    }
    cards = [card for card in health(found) if card.cells["ecc.mode.current"] == "Enabled"]
    counts = [(card.gpu.index, name, card.number(name)) for card in cards for name in limits]
    over = [(index, name, n) for index, name, n in counts if n > limits[name]]
    if over:
        said = [f"GPU {index}: {name} {n}" for index, name, n in over]
        line = f"GPU {over[0][0]} counts {over[0][2]} corrected errors ({over[0][1].rpartition('.')[2]})"
        return by_use(
            found,
            [index for index, _, _ in over],
            f"{line}, {limits[over[0][1]]} are allowed",
            "replace the card",
            said,
        )
    return healthy(f"at most {max((n for _, _, n in counts), default=0)} corrected errors on a GPU")


@check(
    "gpu/rows/remapped",
    "plan",
    judges="no row of GPU memory waits to be remapped, and none could not be",
    source="Azure HPC health checks: remapped rows pending or failed",
    ask="nvidia-smi --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure --format=csv",
    of_gpu=True,
)
def remapped(found: Found) -> Verdict:
    index_of = {gpu.uuid: gpu.index for gpu in found.gpus}
    bad: dict[int, str] = {}
    seen = set()
    for line in found.rows("rows"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or cells[0] not in index_of:
            raise Unreadable("a line that is cut short or of another shape", line.strip())
        index = index_of[cells[0]]
        seen.add(index)
        if all(cell in NOT_SAID for cell in cells[1:]):
            continue  # a card that cannot remap
        if any(cell not in ("0", "No", "1", "Yes") for cell in cells[1:]):
            raise Unreadable(f"GPU {index} says neither yes nor no", line.strip())
        if cells[1:] not in (["0", "0"], ["No", "No"]):
            bad[index] = line.strip()
    missing = sorted(set(index_of.values()) - seen)
    if missing:
        raise Unreadable(f"no line for GPU {missing[0]}")
    if bad:
        return by_use(
            found,
            list(bad),
            f"{indices(list(bad))} has rows of memory that wait to be remapped, or could not be",
            "reset the GPU or reboot; replace it where a remapping failed",
            list(bad.values()),
        )
    return healthy(f"no row pending or failed on {len(seen)} GPUs")


@check(
    "gpu/use/others",
    "plan",
    judges="on the servers' GPUs only processes of our own units compute",
    source="field reports: a stray scheduler keeps GPU memory, and the next start fails for want of it",
    settings=("end_strays",),
    ask="nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv",
    of_gpu=True,
)
def others(found: Found) -> Verdict:
    users = users_of(found)
    index_of = {gpu.uuid: gpu.index for gpu in found.gpus}
    strangers = [
        (index_of.get(uuid, -1), pid, command, line, is_stray(unit, command))
        for pid, uuid, unit, command, line in users
        if not is_ours(unit) and index_of.get(uuid, -1) in found.wanted
    ]
    staying = [each for each in strangers if not (found.settings.end_strays and each[-1])]
    if staying:
        named = ", ".join(f"GPU {index} by pid {pid} ({command})" for index, pid, command, *_ in staying)
        may_end = (
            ", set end_strays = True for servers of SGLang's outside every unit" if any(s[-1] for s in staying) else ""
        )
        return error(
            f"others compute on GPUs of this plan: {named}",
            f"end them{may_end}, or give the servers other GPUs",
            *(line for *_, line, _ in staying),
        )
    if strangers:
        named = ", ".join(f"pid {pid} ({command})" for _, pid, command, *_ in strangers)
        return healthy(f"this run ends {named}", *(line for *_, line, _ in strangers))
    ours = len({pid for pid, _, unit, *_ in users if is_ours(unit)})
    return healthy(f"{ours} processes of our own units, no other" if ours else "no process computes on them")


def strays(found: Found) -> list[Stray]:
    """Servers of SGLang's outside every unit that compute on the plan's GPUs."""
    index_of = {gpu.uuid: gpu.index for gpu in found.gpus}
    return [
        Stray(pid, command, f"GPU {index_of[uuid]}")
        for pid, uuid, unit, command, _ in users_of(found)
        if is_stray(unit, command) and index_of.get(uuid, -1) in found.wanted
    ]


@check(
    "gpu/memory/free",
    "plan",
    judges="a GPU that none of our units uses holds next to no memory",
    source="measured: one second after a killed server its GPU still held 40 GiB",
    settings=("gpu_idle_memory_mib",),
    ask="nvidia-smi --query-gpu=index,memory.used --format=csv",
    of_gpu=True,
)
def memory(found: Found) -> Verdict:
    limit = found.settings.gpu_idle_memory_mib
    ours = {
        uuid
        for _, uuid, unit, command, _ in users_of(found)
        if is_ours(unit) or (found.settings.end_strays and is_stray(unit, command))
    }
    cards = [card for card in health(found) if card.gpu.index in found.wanted]
    held = [(card, card.number("memory.used")) for card in cards if card.gpu.uuid not in ours]
    full = [(card, mib) for card, mib in held if mib > limit]
    if full:
        return error(
            f"GPU {full[0][0].gpu.index} holds {full[0][1]} MiB though none of our units uses it, "
            f"{limit} MiB are allowed",
            "wait until the driver has freed it, or end what holds it; reset the GPU where nothing does",
            *(f"GPU {card.gpu.index}: memory.used {mib} MiB" for card, mib in full),
        )
    return healthy(f"{len(held)} GPUs hold at most {max((mib for _, mib in held), default=0)} MiB")


def users_of(found: Found) -> list[tuple[int, str, str, str, str]]:
    """Processes that compute: pid, GPU uuid, unit of systemd ("" for none), command, and the driver's line."""
    answer = found.answers.get("apps")
    if answer is None or answer.status != 0 or "holders" not in found.answers:
        found.text("apps")
        raise Unreadable("the host's answer is cut short")
    owner = {}
    for line in found.answers["holders"].text.splitlines():
        pid, unit, command = [*line.split("\t", 2), "", ""][:3]
        owner[pid.strip()] = (unit, command.strip() or "a process that has ended")
    users = []
    for line in answer.text.splitlines():
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not cells[0].isdecimal() or not cells[1].startswith("GPU-"):
            raise Unreadable("a line that is cut short or of another shape", line.strip())
        unit, command = owner.get(cells[0], ("", "a process that has ended"))
        users.append((int(cells[0]), cells[1], unit, command, line.strip()))
    return users


@check(
    "gpu/inforom/intact",
    "plan",
    judges="the infoROM of each card is intact; one that nvidia-smi calls corrupted is a warning",
    source="nvidia-smi(1), exit status 14: such a card computes, its serial numbers and counters may be wrong",
    ask="nvidia-smi",
    required=False,
    of_gpu=True,
)
def inforom(found: Found) -> Verdict:
    corrupted = warned(found, "infoROM is corrupted")
    if corrupted:
        buses = ", ".join(sorted({line.rpartition(" ")[2].rstrip(".") for line in corrupted}))
        return warning(
            f"the infoROM of {buses} is corrupted: the card computes, what it says of its errors may be wrong",
            "have the card's maker look at it; a power cycle mends some",
            *corrupted[:4],
        )
    return healthy(f"nothing said of {len(found.gpus)} GPUs")
