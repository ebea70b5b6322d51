"""Manifests of patches, what a release chooses of them, and what the host is told."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import yaml

from tasks.plan.errors import PlanError
from tasks.plan.release import patches
from tasks.plan.release.history import Description, read_description
from tasks.plan.release.patches import HOOK, Patch
from tasks.support import catalogue
from tests.plan.builders import manifest, overlay, patch_manifest, release

NAMES = sorted(path.parent.name for path in catalogue.KERNELS.glob("*/manifest.yaml"))
OLD, CPU, NEW = (catalogue.manifest(f"sglang-{name}") for name in ("0.5.13.post1-cu130", "0.5.20-cpu", "0.5.23-cu130"))
SHA = "ab" * 32


def names(chosen: tuple[Patch, ...]) -> list[str]:
    return [patch.name for patch in chosen]


class Folder:
    """A user's patch_dir."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, content: dict[str, str] | None = None, /, **changes: object) -> None:
        """A patch; by default an overlay of one file. None takes a field away."""
        content = content if content is not None else {f"pd_overlay_{name}.pth": "import os\n"}
        fields: dict[str, object] = {
            "name": name, "description": "d", "why": "w", "sglang": ">=0.5", "apply": "overlay", "files": [*content],
            "tests": "t", "source": "s", **changes,
        }  # fmt: skip
        self.write(name, yaml.safe_dump({key: value for key, value in fields.items() if value is not None}))
        for path, text in content.items():
            (self.path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name / path).write_text(text)

    def write(self, name: str, text: str) -> None:
        (self.path / name).mkdir()
        (self.path / name / "manifest.yaml").write_text(text)

    def chosen(self, *names: str, release: object = NEW) -> tuple[Patch, ...]:
        return catalogue.chosen_patches(release, list(names), str(self.path))  # type: ignore[arg-type]

    def refusal(self, *names: str) -> tuple[str, ...]:
        with pytest.raises(PlanError) as raised:
            self.chosen(*names)
        assert not any("\n" in line for line in raised.value.lines)
        return raised.value.lines


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# ---- those of files/kernels


@pytest.mark.parametrize("name", NAMES)
def test_every_patch_can_be_read_and_names_every_file(name: str) -> None:
    found = catalogue.patch(catalogue.KERNELS / name)
    there = {
        str(path.relative_to(catalogue.KERNELS / name))
        for path in (catalogue.KERNELS / name).rglob("*")
        if path.is_file() and path.name != "manifest.yaml" and path.suffix != ".pyc"
    }
    assert set(found.files) == there


def test_the_hook_comes_with_the_first_patch_and_is_not_named() -> None:
    assert names(catalogue.chosen_patches(CPU)) == [HOOK, "cpu-engine", "disagg-stop"]
    assert catalogue.chosen_patches(NEW) == () == catalogue.chosen_patches(CPU, [])
    with pytest.raises(PlanError, match="names patch 'hook'"):
        catalogue.chosen_patches(CPU, ["hook"])


def test_more_patches_come_besides_those_of_the_release_or_of_a_list(folder: Folder) -> None:
    folder.add("mine")
    own = str(folder.path)
    assert names(catalogue.chosen_patches(CPU, own=own, more=["mine"])) == [HOOK, "cpu-engine", "disagg-stop", "mine"]
    assert names(catalogue.chosen_patches(CPU, [], own=own, more=["mine", "mine"])) == [HOOK, "mine"]
    assert names(catalogue.chosen_patches(CPU, ["disagg-stop"], more=["disagg-stop"])) == [HOOK, "disagg-stop"]


@pytest.mark.parametrize("setting", ["patches", "more_patches"])
def test_a_patch_of_ones_own_without_its_folder_is_told_of_the_setting(setting: str) -> None:
    with pytest.raises(PlanError) as error:
        catalogue.chosen_patches(
            CPU, ["mine"] if setting == "patches" else None, more=["mine"] * (setting != "patches")
        )
    (line,) = error.value.lines
    assert line.startswith(f"setting {setting} names patch 'mine': files/kernels holds ")
    assert line.endswith(". For a patch of your own, set patch_dir to the folder that holds it.")


def test_where_the_fast_paths_are_missing_the_release_brings_them_for_the_gpus_that_they_serve() -> None:
    assert names(catalogue.chosen_patches(OLD, capabilities={"12.0"})) == [HOOK, "sm120-decode", "sm120-hc-pre"]
    assert catalogue.chosen_patches(OLD, capabilities={"10.0"}) == ()
    assert catalogue.chosen_patches(OLD, capabilities={"10.0", "12.0"}) == ()
    asked = catalogue.chosen_patches(OLD, ["sm120-decode"], capabilities={"10.0"})
    assert names(asked) == [HOOK, "sm120-decode"], "what a setting names is placed or refused, never left out"


@pytest.mark.parametrize(("found", "count"), [(OLD, 2), (NEW, 3)])
def test_what_the_decode_kernels_must_report_depends_on_the_version(found: object, count: int) -> None:
    chosen = catalogue.chosen_patches(found, ["sm120-decode"])  # type: ignore[arg-type]
    said = patches.demands(chosen, found.sglang)  # type: ignore[attr-defined]
    assert len(said) == count
    assert {variable for one in said for variable in one["variables"]} == set(chosen[1].environment)
    assert all(one["line"].startswith(f"active: {one['variables'][0]}: sglang.") for one in said)


def test_the_patch_of_hc_pre_is_refused_where_upstream_fuses_by_itself() -> None:
    assert [
        one["variables"] for one in patches.demands(catalogue.chosen_patches(OLD, ["sm120-hc-pre"]), OLD.sglang)
    ] == [["SGLANG_SM120_MMA_HC_PRE"]]
    with pytest.raises(
        PlanError, match=r"patch sm120-hc-pre is for SGLang >=0.5.13.post1,<0.5.18, release .* has 0.5.2"
    ):
        patches.check(catalogue.chosen_patches(CPU, ["sm120-hc-pre"]), CPU.sglang, "sglang-0.5.20-cpu")


# ---- a user's own


def test_a_users_patches_stand_beside_ours(folder: Folder) -> None:
    folder.add("mine")
    assert names(folder.chosen("mine", "sm120-decode")) == [HOOK, "mine", "sm120-decode"]
    assert names(folder.chosen("mine", "mine")) == [HOOK, "mine"]


def test_an_unknown_patch_names_the_nearest(folder: Folder) -> None:
    folder.add("mine")
    assert folder.refusal("mien", "sm120-decod") == (
        f"setting patches names patch 'mien': files/kernels with {folder.path} holds cpu-engine, disagg-stop, mine, "
        "sm120-decode, sm120-hc-pre. Did you mean mine?",
        f"setting patches names patch 'sm120-decod': files/kernels with {folder.path} holds cpu-engine, disagg-stop, mine, "
        "sm120-decode, sm120-hc-pre. Did you mean sm120-decode?",
    )


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(PlanError, match="setting patch_dir = '/nonexistent': no such folder on this machine"):
        catalogue.chosen_patches(NEW, [], "/nonexistent")


def test_a_name_of_ours_is_taken(folder: Folder) -> None:
    folder.add("sm120-decode")
    assert "files/kernels has a patch sm120-decode too" in folder.refusal("sm120-decode")[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sgland": "x"}, "sgland: Extra inputs are not permitted"),
        ({"why": None}, "why: Field required"),
        ({"name": "other"}, "calls itself 'other': name and folder must agree"),
        ({"sglang": "0.5"}, "sglang: '0.5' is not a version specifier such as >=0.5.13,<0.5.24"),
        ({"sglang": ">=0.6"}, "patch mine is for SGLang >=0.6, release sglang-0.5.23-cu130 has 0.5.23"),
        ({"apply": "copy"}, "apply: Input should be 'overlay', 'file' or 'diff'"),
        ({"apply": "file", "files": None}, "apply: file needs replaces"),
        ({"apply": "diff", "files": None, "replaces": {"a.py": SHA}}, "apply: diff needs diff"),
        ({"replaces": {"a.py": SHA}}, "apply: overlay has no replaces"),
        ({"apply": "file", "replaces": {"a.py": SHA}}, "apply: file has no files"),
        ({"apply": "file", "files": None, "replaces": {"a.py": SHA[1:]}}, "replaces.a.py: String should match pattern"),
        ({"files": ["../pd_overlay_x.pth"]}, "'../pd_overlay_x.pth' is not a plain path relative to site-packages"),
        ({"files": ["/pd_overlay_x.pth"]}, "is not a plain path relative to site-packages"),
        (
            {"files": ["sglang/srt/x.py"]},
            "files: 'sglang/srt/x.py' must lie in site-packages under a name that starts with pd_overlay_",
        ),
        ({"files": ["pd_overlay_gone.py"]}, "/mine/pd_overlay_gone.py is named in its manifest, but not there"),
        ({"log": "on: {modul}"}, "log: 'on: {modul}' may hold {patch}, {variable}, {module}, {function}, {path} only"),
        ({"log": "on: {"}, "log: 'on: {' may hold"),
        ({"environment": ["SGLANG_X"]}, "environment names SGLANG_X, but no file of it does"),
        ({"targets": {"X": [{"module": "a", "function": "b"}]}}, "targets: 'X' is neither 'always' nor a variable"),
        ({"targets": {"always": [{"module": "a/b", "function": "c"}]}}, "targets.always.0.module: String should match"),
        (
            {"targets": {"always": [{"module": "a", "function": "b", "sglang": "<0.5.23"}]}},
            "patch mine: no target of always is for SGLang 0.5.23: it would bind nothing",
        ),
    ],
)
def test_a_manifest_with_a_fault_is_one_line(folder: Folder, changes: dict[str, object], words: str) -> None:
    folder.add("mine", **changes)
    (line,) = folder.refusal("mine")
    assert words in line


@pytest.mark.parametrize("text", ["name: [", "\x00"])
def test_a_manifest_that_is_no_yaml(folder: Folder, text: str) -> None:
    folder.write("mine", text)
    assert f"{folder.path}/mine/manifest.yaml is not YAML: " in folder.refusal("mine")[0]


def test_two_patches_may_not_write_one_file(folder: Folder) -> None:
    replaces = {"sglang/x.py": SHA}
    folder.add("one", {"sglang/x.py": "y\n"}, apply="file", files=None, replaces=replaces)
    folder.add("two", {"it.diff": "--- a/x\n"}, apply="diff", files=None, diff="it.diff", replaces=replaces)
    folder.chosen("one")
    folder.chosen("two")
    assert folder.refusal("one", "two") == ("patches one and two both write sglang/x.py: make one patch of them",)


# ---- what the host is told


def test_the_bundle_holds_every_byte_and_only_the_targets_of_this_version() -> None:
    files = {"pd_overlay_shim.pth": "import ä\r\n\x0c".encode(), "pd_overlay_shim/data": b"\xff\0"}
    targets = {
        "always": [
            {"module": "a", "function": "f", "sglang": "<9"},
            {"module": "b", "function": "C.g", "parameters": ["self"]},
        ]
    }
    told = json.loads(release(patches=[overlay(files=files, targets=targets)]).patch_list())
    (patch,) = told["patches"]
    text, data = patch["files"].values()
    assert {"".join(text).encode(), base64.b64decode(data)} == set(files.values())
    assert patch["targets"] == [{"variable": "always", "module": "b", "function": "C.g", "parameters": ["self"]}]
    assert told["demands"] == [
        {"patch": "shim", "variables": [], "line": "active: always: b.C.g is ours", "path": None}
    ]


def test_what_is_only_judged_travels_without_the_files() -> None:
    whole = Patch(
        patch_manifest(name="whole", apply="file", files=None, replaces={"sglang/x.py": SHA}),
        {"sglang/x.py": b"secret sauce\n"},
    )
    diff = Patch(
        patch_manifest(name="d", apply="diff", files=None, diff="d.diff", replaces={"sglang/y.py": SHA}),
        {"d.diff": b"--- a/sglang/y.py\n"},
    )
    found = release(patches=[overlay(), whole, diff])
    assert (
        "secret sauce" in found.patch_list().decode()
        and "secret sauce" not in found.patch_list(contents=False).decode()
    )
    assert "--- a/sglang/y.py" in found.patch_list(contents=False).decode()
    assert [one["line"] for one in json.loads(found.patch_list())["demands"]] == [
        "active: whole: sglang/x.py is ours",
        "active: d: sglang/y.py is ours",
    ]


def test_a_file_that_variables_switch_on_is_demanded_where_one_is_set() -> None:
    whole = Patch(
        patch_manifest(
            name="whole",
            apply="file",
            files=None,
            replaces={"x.py": SHA},
            environment=["A", "B"],
            log="{patch}: {path}",
        ),
        {"x.py": b"A B"},
    )
    assert patches.demands([whole], "9.9") == [
        {"patch": "whole", "variables": ["A", "B"], "line": "whole: x.py", "path": "x.py"}
    ]


def test_a_release_without_patches_tells_nothing() -> None:
    assert release().patch_list() == b"" and release().patch_list(contents=False).decode() == ""


def test_a_release_with_every_kind_of_patch_comes_back_from_its_description() -> None:
    whole = Patch(patch_manifest(name="w", apply="file", files=None, replaces={"x.py": SHA}), {"x.py": b"\xff\r\n"})
    bound = overlay(targets={"always": [{"module": "a", "function": "f", "parameters": ["q"]}]})
    described = Description(release(patches=[bound, whole]), ("--tp",))
    read = read_description(described.to_json().decode(), described.release.id, "FILE")
    assert read == described
    assert read.release.patch_list() == described.release.patch_list()


def test_the_order_of_the_setting_does_not_make_another_release() -> None:
    one, two = overlay("one"), overlay("two")
    assert release(manifest(), patches=[one, two]).id == release(manifest(), patches=[two, one]).id
