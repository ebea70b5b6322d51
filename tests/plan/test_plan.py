"""What the phases read from a plan: paths, owners, what the on-host tools are told."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from tasks.plan.bench import figures as bench
from tasks.plan.errors import PlanError
from tasks.plan.model import derive
from tasks.plan.phases.activate import SAMPLING, jit, release_checks
from tasks.plan.phases.runtime import build_spec, description, lock_files, mark, patch_list_file, pins, uv_lock
from tasks.plan.phases.system import directories
from tasks.plan.phases.verify import verify_config
from tasks.plan.plan import Plan
from tasks.plan.proof import judgement as proof
from tasks.support import catalogue, render
from tests.plan.builders import API_KEY, TWO_SOCKETS, hardware, manifest, overlay, plan, profile, release, settings

SHIM = overlay()


def made(**changes: object) -> Plan:
    return plan(settings(**changes), hardware(TWO_SOCKETS))


def config(found: Plan) -> dict[str, Any]:
    return dict(json.loads(verify_config(found).content))


def test_every_path_follows_the_settings() -> None:
    found = made(root_dir="/srv/pd", config_dir="/srv/etc", state_dir="/data/pd")
    paths = [directory.path for directory in directories(found)]
    assert all(path.startswith(("/srv/pd", "/srv/etc", "/data/pd")) for path in paths)
    assert found.release_directory == f"/srv/pd/releases/{found.release.id}"
    assert found.paths.model == "/data/pd/models/some-model-000000000000"


def test_a_folder_comes_after_the_one_that_holds_it() -> None:
    paths = [directory.path for directory in directories(made())]
    for path in paths:
        inside = [other for other in paths if other.startswith(f"{path}/")]
        assert all(paths.index(path) < paths.index(other) for other in inside)


def test_only_what_servers_write_belongs_to_them() -> None:
    found = made(service_user="pd")
    owners = {directory.path: directory.owner for directory in directories(found)}
    assert {path for path, owner in owners.items() if owner == "pd"} == {
        "/var/lib/sglang-pd",
        "/var/lib/sglang-pd/models",
        "/var/lib/sglang-pd/cache",
        f"/var/lib/sglang-pd/cache/{found.release.id}",
    }


def test_what_a_server_compiles_serves_its_own_release_only() -> None:
    variables = [
        {variable.name: variable.value for variable in found.workers[0].environment}
        for found in (plan(settings(), hardware(TWO_SOCKETS), release(patches=patches)) for patches in ([], [SHIM]))
    ]
    for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"):
        assert variables[0][name] != variables[1][name]
    assert variables[0]["HF_HOME"] == variables[1]["HF_HOME"]


def test_kernels_are_compiled_ahead_as_the_server_would_look_for_them() -> None:
    built = release(manifest(jit=["package:gen_norm"]))
    found = plan(settings(), hardware(TWO_SOCKETS), built)
    kernels = jit(found)
    assert kernels is not None
    asked = kernels.asked
    variables = json.loads(asked.told)
    assert variables.items() >= {(v.name, v.value) for v in found.workers[0].environment}
    assert variables["PATH"].startswith(f"{found.release_directory}/env/bin:")
    assert variables["CUDA_HOME"] == f"{found.release_directory}/env/cuda"
    assert asked.words[1:] == ["--python", found.python, "--environment", "-", "package:gen_norm"]
    assert jit(made()) is None, "nothing to compile"
    assert kernels.named_by("package:gen_norm\npackage:gen_other\n")
    assert not kernels.named_by("package:gen_other\n") and not kernels.named_by(None)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, {"package:gen_norm", SAMPLING}),
        ({"prefill_arguments": ["--sampling-backend", "pytorch"]}, {"package:gen_norm", SAMPLING}),
        (
            {f"{role}_arguments": ["--sampling-backend", "pytorch"] for role in ("prefill", "decode")},
            {"package:gen_norm"},
        ),
        (
            {
                "prefill_arguments": ["--sampling-backend=pytorch"],
                "decode_arguments": ["--log-level", "info", "--sampling-backend=pytorch"],
            },
            {"package:gen_norm"},
        ),
    ],
)
def test_the_kernels_of_sampling_are_compiled_where_a_server_samples_by_them(
    changes: dict[str, Any], names: set[str]
) -> None:
    built = release(manifest(jit=["package:gen_norm", SAMPLING]))
    kernels = jit(plan(settings(**changes), hardware(TWO_SOCKETS), built))
    assert kernels is not None and set(kernels.names) == names


@pytest.mark.parametrize(
    ("model", "changes", "names"),
    [
        ("random-qwen2-7b", {}, {"a:b", "kernels:store(1024, 1024)", "kernels:rope(128)"}),
        (
            "random-qwen2-7b",
            {"decode_tensor_parallel": 2},
            {"a:b", "kernels:store(1024, 1024)", "kernels:store(512, 512)", "kernels:rope(128)"},
        ),
        ("", {}, {"a:b"}),  # its cache holds no keys and values
    ],
)
def test_kernels_are_asked_for_with_the_numbers_of_the_model(
    model: str, changes: dict[str, Any], names: set[str]
) -> None:
    built = release(manifest(jit=["a:b", "kernels:store({key_bytes}, {value_bytes})", "kernels:rope({head})"]))
    roles = {"prefill_tensor_parallel": 1, "decode_tensor_parallel": 1, **changes}
    shape = derive.settled(catalogue.stated(model), None, None)[0] if model else profile()
    kernels = jit(plan(settings(**roles), hardware(TWO_SOCKETS), built, shape))
    assert kernels is not None and set(kernels.names) == names


def test_values_of_variables_stand_in_no_command_line() -> None:
    """Any user of a host reads command lines, those of systemd-run in `systemctl show` too."""
    value = "value-of-a-token"
    role = {f"{role}_environment": {"TOKEN": value} for role in ("prefill", "decode", "router")}
    worker = {"TOKEN2": {"value": value, "reason": "a test", "source": "here"}}
    found = plan(
        settings(worker_environment=worker, **role), hardware(TWO_SOCKETS), release(manifest(jit=["package:gen_norm"]))
    )
    kernels = jit(found)
    assert kernels is not None and value in kernels.asked.told
    for one in (kernels.asked, *release_checks(found)):
        assert value not in one.command
    files = [render.instance_files(found, instance) for instance in found.instances]
    for file in (one for each in files for one in each.all if value.encode() in one.content):
        assert file.mode == "640", f"{file.path} can be read by others"
    for config in (bench.config_file(found), proof.config_file(found)):
        assert value.encode() in config.content and config.mode == "640"


def test_a_password_in_a_package_source_is_readable_by_root_alone() -> None:
    found = made(package_index="https://me:password@pypi.example/simple")
    spec = build_spec(found)
    assert b"password" in spec.content and spec.mode == "600"
    (folder,) = [one for one in directories(found) if one.path == found.paths.locks]
    assert folder.mode == "700", "specs of earlier versions lie there too"
    for file in (*lock_files(found), description(found)):
        assert b"password" not in file.content


@pytest.mark.parametrize(
    ("changes", "source", "folder", "brought"),
    [
        ({}, {"hub": "a/b", "revision": "0" * 40}, "/var/lib/sglang-pd/models/some-model-000000000000", False),
        ({}, {"directory": "/models/x"}, "/models/x", True),
        ({"model_dir": "/models/y"}, {"hub": "a/b", "revision": "0" * 40}, "/models/y", True),
        ({"model_dir": "/models/y"}, {"directory": "/models/x"}, "/models/y", True),
        ({}, {"bundled": "small"}, "/opt/sglang-pd/models/some-model", False),
    ],
)
def test_where_the_model_lies(changes: dict[str, object], source: dict[str, str], folder: str, brought: bool) -> None:
    found = plan(settings(**changes), hardware(TWO_SOCKETS), model=profile(source=source))
    assert (found.paths.model, found.brings_model) == (folder, brought)


def test_a_revision_of_the_settings_wins() -> None:
    assert made().model_revision == "0" * 40
    assert made(model_revision="1" * 40).model_revision == "1" * 40


def test_the_builder_is_told_the_same_identity() -> None:
    found = plan(settings(), hardware(TWO_SOCKETS), release(patches=[SHIM]))
    spec = json.loads(build_spec(found).content)
    assert (spec["id"], spec["python"]) == (found.release.id, "3.11")
    assert spec["mark"] == mark(found) and mark(found)["patches"] == {"shim": SHIM.sha256}
    assert {spec["lock"], spec["router_lock"]} == {file.path for file in lock_files(found)}
    assert patch_list_file(found) is not None and spec["patch_list"] == patch_list_file(found).path
    assert json.loads(build_spec(made()).content)["patch_list"] is None


def test_package_sources_reach_the_builder() -> None:
    given = {
        "package_index": "http://mirror/simple",
        "package_extra_indexes": ["http://mirror/cpu"],
        "package_find_links": ["/wheels"],
        "package_certificate": "/etc/ssl/mirror.pem",
    }
    spec = json.loads(build_spec(made(**given)).content)
    assert [spec[key] for key in ("index_url", "extra_index_urls", "find_links", "certificate")] == list(given.values())
    assert spec["wheelhouse"] is None


def test_a_wheelhouse_reaches_the_builder_and_holds_both_locks_and_uv() -> None:
    found = made(package_wheelhouse="/srv/wheels")
    assert json.loads(build_spec(found).content)["wheelhouse"] == "/srv/wheels"
    assert {pin.name for pin in pins(found)} == {"sglang", "sglang-router", "uv"}


def test_a_release_is_probed_in_the_environment_of_its_servers() -> None:
    found = made()
    checks = release_checks(found)
    probe, router, variables = (shlex.split(check.command) for check in checks)
    assert probe[1:] == ["probe", f"{found.release_directory}/env", "--expect", "-"]
    expected = json.loads(checks[0].told)
    wanted = {variable.name: variable.value for variable in found.workers[0].environment}
    assert wanted["NCCL_P2P_LEVEL"] == "SYS" and expected["environment"].items() < wanted.items()
    assert not any(found.paths.cache in value for value in expected["environment"].values()), "root writes no cache"
    assert expected["folders"] == [wanted["CUDA_HOME"]]
    assert (expected["torch"], expected["cuda"]) == ("9.1.0", "13.0")
    assert list(expected["arguments"]) == ["prefill", "decode"]
    assert expected["arguments"]["decode"][:2] == ["--model-path", found.paths.model]
    assert expected["gpu_imports"] == ["sgl_kernel"]
    assert router[2:5] == [f"{found.release_directory}/router", "--module", "sglang_router.launch_router"]
    assert json.loads(router[6])[:2] == ["--pd-disaggregation", "--prefill"]
    assert variables[1:] == ["variables", f"{found.release_directory}/env", "SGLANG_HOST_IP"]


def test_a_variable_that_a_patch_reads_is_not_looked_for_in_the_source() -> None:
    patch = overlay("x", environment=["SGLANG_OF_THE_OVERLAY"])
    wanted = settings(decode_environment={"SGLANG_OF_THE_OVERLAY": "1", "SGLANG_OTHER": "1"})
    found = plan(wanted, hardware(TWO_SOCKETS), release(patches=[patch]))
    assert found.judged_variables == ["SGLANG_HOST_IP", "SGLANG_OTHER"]


def test_after_a_rollback_the_switch_of_a_patch_may_stay_in_the_settings() -> None:
    patch = overlay("x", environment=["SGLANG_OF_THE_OVERLAY"])
    wanted = settings(decode_environment={"SGLANG_OF_THE_OVERLAY": "1", "SGLANG_OTHER": "1"})
    found = plan(wanted, hardware(TWO_SOCKETS), release())
    assert "SGLANG_OF_THE_OVERLAY" in found.judged_variables
    back = replace(found, asked=release(patches=[patch]))
    assert back.judged_variables == ["SGLANG_HOST_IP", "SGLANG_OTHER"]


def test_a_cuda_build_of_torch_may_serve_a_release_for_the_cpu() -> None:
    cpu = manifest(device="cpu", cuda=None)
    for lock, judged in (("torch==9.1.0+cpu --hash=x\n", True), ("torch==9.1.0 --hash=x\n", False)):
        probe = release_checks(plan(settings(), hardware(TWO_SOCKETS), release(cpu, lock=lock)))[0]
        expected = json.loads(probe.told)
        assert ("cuda" in expected) is judged
        assert "gpu_imports" not in expected


def test_the_questions_go_through_the_router() -> None:
    found = config(made(router_port=9000))
    assert found["url"] == "http://127.0.0.1:9000"
    assert found["model"] == "some"
    assert found["api_key_file"] is None
    assert [golden["expect"] for golden in found["golden"]] == ["391"]


def test_the_counters_of_every_worker_are_asked_for() -> None:
    several = made(prefill_instances=2, prefill_tensor_parallel=2, decode_tensor_parallel=2)
    first, second, decode = (f"http://127.0.0.1:{port}/metrics" for port in (30000, 30010, 30001))
    assert config(made())["metrics"] == {"prefill": [first], "decode": [decode]}
    assert config(several)["metrics"] == {"prefill": [first, second], "decode": [decode]}


def test_the_tool_is_told_where_the_key_is_and_not_the_key() -> None:
    found = plan(settings(router_api_key_env="KEY"), hardware(TWO_SOCKETS), api_key=API_KEY)
    assert config(found)["api_key_file"] == found.paths.secret
    assert API_KEY not in verify_config(found).content.decode()


def test_a_fingerprint_changes_with_the_key() -> None:
    found = made()
    files = (verify_config(found), uv_lock(found), build_spec(found))
    without = found.fingerprint(*files, None, "router")
    assert without.secret is None
    assert found.fingerprint(*files, uv_lock(found), "router") != without


# ---- questions


def asked(**changes: object) -> dict[str, Any]:
    return config(plan(settings(**changes), hardware(TWO_SOCKETS), model=profile(**OF_MODEL)))


OF_MODEL: dict[str, object] = {"chat_template_kwargs": {"enable_thinking": False}}
OWN = [{"name": "own", "prompt": "Who are you?", "expect": "Tiny", "max_tokens": 2048}]


def test_questions_are_the_profiles_unless_a_setting_has_others() -> None:
    assert [one["name"] for one in asked()["golden"]] == ["arithmetic"]
    assert asked()["chat_template_kwargs"] == {"enable_thinking": False}
    found = asked(questions=OWN, chat_template_kwargs={"reasoning_effort": "low"})
    assert found["golden"] == [
        {"name": "own", "prompt": "Who are you?", "expect": "Tiny", "match": "contains", "max_tokens": 2048}
    ]
    assert found["chat_template_kwargs"] == {"reasoning_effort": "low"}
    assert asked(chat_template_kwargs={})["chat_template_kwargs"] == {}


def test_no_answer_may_be_longer_than_half_of_the_context() -> None:
    (question,) = asked(questions=OWN, context_length=1024)["golden"]
    assert question["max_tokens"] == 512


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"name": "x", "prompt": "y"}, "expect is missing"),
        ({"name": "x", "prompt": "y", "expect": "z", "match": "like"}, "write 'contains', 'equals'"),
        ({"prompt": "y", "expect": "z"}, "field required"),
    ],
)
def test_a_question_with_a_fault_is_one_line(question: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError) as error:
        settings(questions=[question])
    (line,) = error.value.lines
    assert line.startswith("setting questions") and words in line
