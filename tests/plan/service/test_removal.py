"""What goes when everything of ours goes, and what stays."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.files import ABSENT, FoundPath, FoundPaths
from tasks.plan.service.paths import Paths
from tasks.plan.service.removal import Removal, brought, confirmed, removal
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware

PATHS = catalogue_plan({}, hardware(TWO_SOCKETS)).paths
UNITS = ["sglang-pd-prefill.service", "sglang-pd-decode-1.service"]


def every(planned: Removal) -> list[str]:
    return [*planned.of_root, *planned.of_user, *planned.folders]


def test_no_folder_goes_that_others_may_use_too() -> None:
    planned = removal(PATHS, UNITS)
    whole = {
        "/",
        "/opt",
        "/etc",
        "/var/lib",
        "/etc/systemd/system",
        PATHS.root,
        PATHS.config,
        PATHS.state,
        PATHS.models,
    }
    assert not whole & {*planned.of_root, *planned.of_user}
    assert not [path for path in planned.of_root if path.startswith(PATHS.state + "/")], "that is the user's to do"
    assert all(path.startswith(f"{PATHS.state}/") for path in planned.of_user)


def test_the_models_stay() -> None:
    assert PATHS.model.startswith(PATHS.models)
    assert not [path for path in every(removal(PATHS, UNITS)) if path.startswith(PATHS.models + "/")]


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({"model_dir": "/opt/sglang-pd/models/mine"}, "/opt/sglang-pd/models"),
        ({"model_dir": "/var/lib/sglang-pd/.cache/huggingface/hub/mine"}, "/var/lib/sglang-pd/.cache"),
        ({"model_dir": "/var/lib/sglang-pd/cache"}, "/var/lib/sglang-pd/cache"),
        ({"state_dir": "/opt/sglang-pd/cache/state"}, "/opt/sglang-pd/cache"),
        ({"state_dir": "/opt/sglang-pd/models/state"}, "/opt/sglang-pd/models"),
    ],
)
def test_what_the_user_brought_stays_wherever_it_lies(more: dict[str, str], kept: str) -> None:
    plan = catalogue_plan(more, hardware(TWO_SOCKETS))
    stays = brought(plan.paths, plan.settings)
    without, with_it = (removal(plan.paths, UNITS, given) for given in ((), stays))
    assert {*every(without)} - {*every(with_it)} == {kept}


def test_in_somebodys_home_only_what_has_our_names_goes() -> None:
    planned = removal(catalogue_plan({"state_dir": "/home/ann"}, hardware(TWO_SOCKETS)).paths, UNITS)
    assert not [path for path in planned.of_user if path.startswith("/home/ann/.")]
    assert "/home/ann/cache" in planned.of_user


def test_units_go_with_their_scripts_and_environment_files() -> None:
    planned = removal(PATHS, UNITS)
    assert {
        "/etc/sglang-pd/decode-1.sh",
        "/etc/sglang-pd/decode-1.env",
        "/etc/systemd/system/sglang-pd-decode-1.service",
    } < {*planned.of_root}


def there(*paths: str, units: tuple[str, ...] = ()) -> Removal:
    planned = removal(PATHS, units)
    found = FoundPaths(
        {path: FoundPath("directory") if path in paths else ABSENT for path in (*every(planned), *planned.asked)}
    )
    return planned.there(found)


@pytest.mark.parametrize("paths", [(), (PATHS.models, PATHS.state)])
def test_a_second_time_there_is_nothing(paths: tuple[str, ...]) -> None:
    assert there(*paths).is_nothing(PATHS.models)


@pytest.mark.parametrize("path", [PATHS.root, PATHS.cache, PATHS.pin, "/run/sglang-pd"])
def test_whatever_is_left_is_something(path: str) -> None:
    assert not there(path).is_nothing(PATHS.models)


def test_where_none_of_our_tools_is_folders_go_only_when_they_are_empty() -> None:
    """A root_dir that was mistyped, or changed since the last run, may be anybody's."""
    theirs = [f"{PATHS.root}/models", f"{PATHS.root}/tools"]
    mistyped = there(PATHS.root, *theirs)
    assert mistyped.of_root == () and set(mistyped.folders) == {*theirs, PATHS.root}
    assert mistyped.folders[-1] == PATHS.root, "those below first"
    assert set(there(PATHS.root, *theirs, f"{PATHS.bin}/pd-launch").of_root) == {*theirs}
    below = [path for path in removal(PATHS, UNITS).of_root if path.startswith(f"{PATHS.root}/")]
    assert below[-1] == PATHS.bin, "a removal that broke off is known by it the next time"


@pytest.mark.parametrize("given", [None, "", "gpu-2", "gpu-*", 1])
def test_a_host_is_named_once_more(given: object) -> None:
    confirmed("gpu-1", "gpu-1")
    with pytest.raises(PlanError, match="NAME=gpu-1"):
        confirmed("gpu-1", given)


def test_every_path_of_ours_goes() -> None:
    """One that is added to tasks/plan/service/paths.py is not forgotten here."""
    planned = removal(PATHS, UNITS)
    gone = {*planned.of_root, *planned.of_user, *planned.folders}
    known = {name: getattr(PATHS, name) for name, kind in vars(Paths).items() if isinstance(kind, property)}
    single = [path for path in known.values() if isinstance(path, str)] + list(PATHS.secret_leftovers[:-1])
    above = {path: {path, *(str(folder) for folder in PurePosixPath(path).parents)} for path in single}
    assert not [path for path in single if not above[path] & gone]
    left = {PATHS.root, PATHS.config, PATHS.state}
    assert not [path for path in single if path not in left and not above[path] & (gone - left)]
