"""An environment that is there already: read, compared with the release, never built."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from tasks.plan.bench import figures as bench
from tasks.plan.errors import PlanError
from tasks.plan.findings import Finding, Level, Refused
from tasks.plan.host.answers import Answer
from tasks.plan.phases.activate import release_checks
from tasks.plan.phases.system import packages
from tasks.plan.plan import Plan
from tasks.plan.release import existing
from tasks.plan.release.existing import Asked
from tasks.plan.release.manifest import Existing
from tasks.support import catalogue
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware, manifest, servers, settings
from tests.plan.judging import finding

MANIFEST = catalogue.manifest("sglang-0.5.16-cu130")
PYTHON = "/opt/torch/.venv/bin/python3"
ASKED = Asked(PYTHON, PYTHON, ("/srv/wheels",))
PACKAGES = {"sglang": "0.5.16", "torch": "2.11.0+cu130", "sglang-router": "0.3.2", **MANIFEST.packages}


def told(**changes: Any) -> Answer:
    fields = {"version": "3.12", "cuda": "13.0", "packages": PACKAGES, "site_packages": "/srv/wheels", **changes}
    return Answer(0, "a warning of some import\n" + json.dumps(fields))


def read(servers: Answer | None = None, router: Answer | None = None, asked: Asked = ASKED) -> Existing:
    return existing.read({"servers": servers or told(), "router": router or told()}, asked)


def planned(found: Existing, **data: object) -> Plan:
    made = catalogue_plan({"release": "sglang-0.5.17-cu130", **data}, hardware(TWO_SOCKETS))
    release = catalogue.adopted(MANIFEST, found, "sglang-router").release
    return replace(made, release=release, instances=servers(made.settings, made.hardware, release, made.profile))


def test_an_environment_that_holds_what_the_release_says_fits() -> None:
    assert existing.misfits(read(), MANIFEST, "sglang-router") == []
    assert finding("release/environment/fits", made=planned(read())).level is Level.HEALTHY


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"version": "3.10"}, "Python is 3.10, the release serves 3.11 and 3.12"),
        ({"packages": {**PACKAGES, "torch": "2.10.0+cu130"}}, "torch is 2.10.0+cu130, the release says 2.11.0"),
        ({"packages": {**PACKAGES, "sglang": "0.5.17"}}, "sglang is 0.5.17, the release says 0.5.16"),
        ({"packages": {n: v for n, v in PACKAGES.items() if n != "nixl"}}, "nixl is missing, the release says 1.5.1"),
        ({"cuda": "12.8"}, "torch is built for CUDA 12.8, the release says 13.0"),
        ({"cuda": None}, "torch is built for CUDA none, the release says 13.0"),
    ],
)
def test_what_does_not_fit_is_said_with_both_values(changes: dict[str, Any], line: str) -> None:
    found = read(told(**changes))
    assert existing.misfits(found, MANIFEST, "sglang-router") == [line]
    said = finding("release/environment/fits", made=planned(found))
    assert said.level is Level.ERROR and line in said.line and PYTHON in said.line


def test_the_routers_package_is_looked_for_in_the_routers_environment() -> None:
    without = told(packages={n: v for n, v in PACKAGES.items() if n != "sglang-router"})
    assert existing.misfits(read(without), MANIFEST, "sglang-router") == []
    assert existing.misfits(read(router=without), MANIFEST, "sglang-router") == [
        "sglang-router is missing, the release says 0.3.2"
    ]
    assert existing.misfits(read(), MANIFEST, "smg") == ["smg is missing, the release says 1.13.0"]


def test_an_interpreter_that_does_not_run_is_refused_with_what_it_said() -> None:
    with pytest.raises(Refused, match=r"setting existing_python: .*/python3 does not run: no such file"):
        read(Answer(127, "no such file"))
    with pytest.raises(Refused, match="setting existing_router_python"):
        read(router=Answer(127, "no such file"))


def test_without_sglang_it_says_where_it_looked() -> None:
    with pytest.raises(Refused, match="and /srv/wheels finds no sglang"):
        read(told(site_packages=None))


@pytest.mark.parametrize("text", ["", "{}", '{"version": "3.12"', "[]", "12"])
def test_an_answer_that_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        read(Answer(0, text or "\n "))
    with pytest.raises(PlanError, match="cut short"):
        existing.read({"servers": told()}, ASKED)


def test_the_benchmarks_client_runs_in_it() -> None:
    plan = planned(read())
    asked = json.loads(bench.config_file(plan).content)
    assert asked["python"] == f"{plan.release_directory}/env/bin/{PYTHON.rpartition('/')[2]}"
    assert asked["environment"]["PYTHONPATH"] == "/srv/wheels"


def test_the_id_follows_what_is_installed() -> None:
    one = planned(read()).release.id
    assert one.startswith("sglang-0.5.16-cu130-existing-")
    assert planned(read()).release.id == one
    changed = told(packages={**PACKAGES, "numpy": "2.0"})
    assert planned(read(changed)).release.id != one


def test_servers_and_checks_use_its_interpreter_and_paths() -> None:
    made = planned(read())
    for instance in made.instances:
        assert instance.interpreter.endswith("/bin/python3")
        variables = {v.name: v.value for v in instance.environment}
        assert variables["PYTHONPATH"] == "/srv/wheels"
        assert variables["PYTHONPYCACHEPREFIX"].startswith(made.paths.release_cache(made.release.id))
    assert made.release.folders == {"env": "/opt/torch/.venv", "router": "/opt/torch/.venv"}
    assert made.site_packages == "/srv/wheels"
    checks = release_checks(made)
    probe, router = (shlex.split(check.command) for check in checks)
    assert "--untouched" in probe and json.loads(checks[0].told)["paths"] == ["/srv/wheels"]
    assert router[-2:] == ["--path", "/srv/wheels"]
    assert not any(package.startswith("python3.") for package in packages(made)), "its Python is not ours to install"


def test_mooncake_is_taken_where_the_environment_has_it_and_imported_before_it_serves() -> None:
    def said(**packages: str) -> tuple[Finding, list[str]]:
        made = planned(read(told(packages=PACKAGES | packages)), transfer_backend="mooncake")
        probe = json.loads(release_checks(made)[0].told)
        return finding("release/transfer/there", wanted=made.settings, made=made), probe["imports"]

    lacking, _ = said()
    assert lacking.stops and f"{PYTHON} holds no mooncake-transfer-engine" in lacking.line
    there, imports = said(**{"mooncake-transfer-engine-cuda13": "0.3.9"})
    assert there.level is Level.HEALTHY
    assert "mooncake.engine" in imports and "nixl" not in imports


def test_nothing_of_it_is_compared_where_the_release_is_built_here() -> None:
    said = finding("release/environment/fits")
    assert said.level is Level.HEALTHY and "built here" in said.line


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(PlanError, match="set existing_python too"):
        settings(environment="existing")
    with pytest.raises(PlanError, match='existing_paths is read with environment = "existing" only'):
        settings(existing_paths=["/srv/wheels"])
    with pytest.raises(PlanError, match="existing_python"):
        settings(environment="existing", existing_python="/opt/torch/.venv")
    with pytest.raises(PlanError, match='nothing is placed into environment = "existing"; leave it out'):
        settings(environment="existing", existing_python=PYTHON, patches=["sm120-decode"])
    assert settings(environment="existing", existing_python=PYTHON, patches=[]).existing_python == PYTHON


def test_manifest_of_a_cpu_release_asks_for_no_cuda() -> None:
    cpu = manifest(
        device="cpu", cuda=None, packages={}, sglang="0.5.16", torch="2.11.0", python=["3.12"],
        routers={"sglang-router": "0.3.2"},
    )  # fmt: skip
    assert existing.misfits(read(told(cuda="12.6")), cpu, "sglang-router") == []
