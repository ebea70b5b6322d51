"""Identity of a release, its arguments, and what is said of its checks and patches."""

import json
import re

import pytest

from tasks.plan.release.manifest import checked, damage, driver_cuda, patch_changes, unknown_arguments
from tasks.plan.release.patches import Patch
from tests.plan.builders import manifest, overlay, release

SHIM = overlay()
KERNEL = overlay("kernel", {"pd_overlay_kernel/__init__.py": b"two\n"}, environment=["SGLANG_X"])


# ---- id


def test_the_same_inputs_give_the_same_id() -> None:
    assert release(patches=[SHIM, KERNEL]).id == release(patches=[SHIM, KERNEL]).id


def test_the_order_of_patches_and_of_their_files_does_not_matter() -> None:
    turned = Patch(SHIM.manifest, dict(reversed(SHIM.files.items())))
    assert release(patches=[SHIM, KERNEL]).id == release(patches=[KERNEL, turned]).id


@pytest.mark.parametrize(
    "other",
    [
        release(lock="sglang==9.9 --hash=sha256:01\n"),
        release(lock="sglang==9.9 --hash=sha256:00\n\n"),
        release(router_lock="sglang-router==9.4 --hash=sha256:00\n"),
        release(python="3.12"),
        release(patches=[SHIM]),
        release(patches=[KERNEL]),
        release(patches=[SHIM, KERNEL]),
        release(patches=[overlay(files={**SHIM.files, "pd_overlay_shim.pth": b"import y\n"})]),
        release(patches=[overlay(files={**SHIM.files, "pd_overlay_shim/more.py": b""})]),
        release(patches=[overlay("other", SHIM.files)]),
        release(patches=[overlay(environment=["SGLANG_Y"])]),
        release(manifest(name="sglang-9.9-cu140")),
    ],
)
def test_any_other_input_gives_another_id(other: object) -> None:
    assert getattr(other, "id") != release().id  # noqa: B009


def test_ids_differ_from_one_another() -> None:
    variants = [
        release(), release(python="3.12"), release(patches=[SHIM]), release(patches=[KERNEL]),
        release(patches=[overlay(environment=["SGLANG_Y"])]), release(patches=[overlay(compute_capabilities=["9.0"])]),
    ]  # fmt: skip
    assert len({variant.id for variant in variants}) == len(variants)


def test_text_cannot_move_from_one_lock_into_the_other() -> None:
    assert release(lock="a\nb\n", router_lock="c\n").id != release(lock="a\n", router_lock="b\nc\n").id


def test_the_id_names_release_and_python_and_can_be_a_folder() -> None:
    assert re.fullmatch(r"sglang-9\.9-cu130-py3\.11-[0-9a-f]{10}", release().id)


def test_what_changes_nothing_on_disk_keeps_the_id() -> None:
    described = manifest(description="other words", notes=["a remark"])
    assert release(described).id == release().id


def test_a_switch_of_releases_says_what_happens_to_patches() -> None:
    changed = overlay("kernel", {"pd_overlay_kernel/__init__.py": b"other\n"})
    serving = json.dumps({"patches": {"kernel": changed.sha256, "old": "00", "shim": SHIM.sha256}})
    assert patch_changes([KERNEL, SHIM], serving) == [
        "patch kernel: another version placed (overlay, 1 files)",
        "patch old: taken out, SGLang's own is back",
    ]


@pytest.mark.parametrize("serving", [None, "", "not JSON", "[]", '{"patches": null}', '{"id": "old"}'])
def test_where_nothing_serves_every_patch_is_placed(serving: str | None) -> None:
    assert patch_changes([SHIM], serving) == ["patch shim: placed (overlay, 2 files)"]


# ---- arguments

ACCEPTED = frozenset({"--cuda-graph-max-bs-decode", "--log-level", "--port", "--mem-fraction-static"})


def refused(arguments: list[str], accepted: frozenset[str] = ACCEPTED) -> str:
    (line,) = unknown_arguments(manifest(), accepted, arguments, "decode_arguments")
    assert line.startswith("setting decode_arguments: ")
    return line


@pytest.mark.parametrize("argument", ["--cuda-graph-max-bs", "--cuda-graph-max-bs=64"])
@pytest.mark.parametrize("accepted", [ACCEPTED, frozenset[str]()], ids=["known arguments", "arguments not listed"])
def test_a_renamed_argument_names_its_replacement(argument: str, accepted: frozenset[str]) -> None:
    line = refused([argument, "64"], accepted)
    assert "--cuda-graph-max-bs is not an argument of SGLang 9.9" in line
    assert line.endswith("use --cuda-graph-max-bs-decode")


def test_an_unknown_argument_names_the_nearest() -> None:
    assert refused(["--log-levle", "debug"]).endswith("knows no argument --log-levle. Did you mean --log-level?")


def test_an_abbreviation_is_unknown_too() -> None:
    assert "knows no argument --mem-fraction." in refused(["--mem-fraction", "0.5"])


def test_each_unknown_argument_has_a_line() -> None:
    assert len(unknown_arguments(manifest(), ACCEPTED, ["--one", "--two", "--port", "1"], "prefill_arguments")) == 2


@pytest.mark.parametrize("arguments", [[], ["--log-level", "debug"], ["--log-level=debug"], ["--port", "-1"]])
def test_known_arguments_pass(arguments: list[str]) -> None:
    assert unknown_arguments(manifest(), ACCEPTED, arguments, "decode_arguments") == []


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("525.60.13", "CUDA 12.0"),
        ("535.183.01", "CUDA 12.2"),
        ("550.90.07", "CUDA 12.4"),
        ("565.57.01", "CUDA 12.7"),
        ("570.172.08", "CUDA 12.8"),
        ("575.57.08", "CUDA 12.9"),
        ("580.95.05", "CUDA 13.0"),
        ("999.1", "CUDA 13.2"),
        ("470.256.02", "no CUDA 12"),
    ],
)
def test_the_newest_cuda_of_a_driver(driver: str, cuda: str) -> None:
    assert driver_cuda(driver) == cuda


# ---- what was found wrong in an environment


def test_damage_of_a_whole_environment() -> None:
    assert damage({"whole": True}) == []


def test_damage_is_one_line_each() -> None:
    part = {
        "whole": False,
        "packages": {
            "version": [{"name": "torch", "found": "2.0", "wanted": "2.1"}], "missing": ["nixl"], "extra": ["pip"],
        },
        "files": {"missing": ["a.py"], "changed": ["b.py"], "extra": ["c.py"]},
    }  # fmt: skip
    assert damage(part) == [
        "package torch is 2.0, the lock says 2.1",
        "package nixl is missing",
        "package pip is extra",
        "file a.py is missing",
        "file b.py is changed",
        "file c.py is extra",
    ]


@pytest.mark.parametrize("part", [None, {}, {"whole": False}, {"whole": False, "reason": "no record"}])
def test_an_environment_that_is_not_whole_always_has_a_line(part: dict[str, object] | None) -> None:
    assert len(damage(part)) == 1


def test_what_a_check_of_a_release_says_in_lines() -> None:
    def entry(name: str, ok: bool = True, skipped: bool = False, reason: str | None = None) -> dict[str, object]:
        return {"name": name, "ok": ok, "skipped": skipped, "reason": reason}

    checks = [entry("import a"), entry("import b", skipped=True, reason="no GPU"), entry("cuda", False, reason="12.8")]
    assert checked({"checks": checks, "output": ["last words"]}) == [
        "passed: import a", "skipped: import b: no GPU", "failed: cuda: 12.8", "last words",
    ]  # fmt: skip
    assert checked({"checks": checks[1:2], "output": []}) == ["skipped: import b: no GPU"]


def test_a_removed_argument_says_so() -> None:
    (line,) = unknown_arguments(manifest(), ACCEPTED, ["--long-gone"], "decode_arguments")
    assert (
        line
        == "setting decode_arguments: SGLang 9.9 has no argument --long-gone any more, nor one in its place: leave it out"
    )
