"""The commands `k8s render` and `k8s doctor`, the latter against a real small API server."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from sax.cli.main import app
from tests.each_case import each_case
from tests.k8s.doctor.snapshots import LEADING, event, pool, well
from tests.k8s.render.orders import MODEL
from tests.kubernetes_api import KubernetesApi, kubernetes_api

_needs_client = pytest.mark.skipif(
    importlib.util.find_spec("lightkube") is None,
    reason="lightkube is not installed",
)
_needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed"
)
_EXEC = "client.authentication.k8s.io/v1beta1"
_PATHWAYS = ("--kind", "pathways")
_USUAL = ("--topology", "v5e:4x8", "--bucket", "gs://my-sax")


def sax(*words: str) -> Result:
    return CliRunner().invoke(app, ["k8s", *words])


def render(*words: str, model: str = MODEL) -> Result:
    return sax("render", *_USUAL, "--no-plan", *words, model)


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# render


def test_manifests_go_to_stdout_and_the_same_words_give_the_same_bytes() -> None:
    made = render("--replicas", "2", "--kind", "one-jobset", "-n", "prod")
    assert made.exit_code == 0
    kinds = [each["kind"] for each in yaml.safe_load_all(made.stdout)]
    assert kinds.count("JobSet") == 1
    assert {"Deployment", "Service", "ServiceAccount", "ConfigMap"} <= set(kinds)
    assert made.stdout == render("--replicas", "2", "--kind", "one-jobset", "-n", "prod").stdout


def test_the_command_in_the_heading_makes_the_same_again() -> None:
    made = render(
        "--set", 'QUANTIZE="int8"', "--set", 'TASKS=["generate", "embed"]', "--spot", "--slots", "5"
    )
    words = shlex.split(made.stdout.splitlines()[1].removeprefix("#"))
    assert words[:3] == ["sax", "k8s", "render"]
    again = CliRunner().invoke(app, words[1:])
    assert again.stdout == made.stdout


@each_case(
    "model, words, said",
    [
        (MODEL, ("--set", "NUM_LAYER=2"), "unknown override 'NUM_LAYER': did you mean NUM_LAYERS?"),
        ("gs://b/m", ("--set", "NONSENSE=2"), "unknown override 'NONSENSE'"),
        ("gs://b/m", ("--model-path", "llama", "--set", "ROTARY_DIM=2"), "ROTARY_DIM"),
        (MODEL, ("--set", "NUM_LAYERS=2", "--set", "ram=1e9"), ""),
        (f"{MODEL}s", (), f"{MODEL}s is none of sax's own model paths"),
        ("no.such.Model", ("--set", "ITS_OWN=2"), "no.such.Model is none of sax's own model paths"),
    ],
)
def test_without_a_plan_names_of_overrides_are_checked_all_the_same(
    model: str, words: tuple[str, ...], said: str
) -> None:
    made = render(*words, model=model)
    refused = "override" in said or "ROTARY" in said
    assert (made.exit_code, bool(made.stdout)) == ((2, False) if refused else (0, True))
    assert said in made.stderr


def test_a_model_whose_name_looks_like_an_option_is_a_model() -> None:
    made = CliRunner().invoke(app, ["k8s", "render", *_USUAL, "--no-plan", "--", "--json"])
    words = shlex.split(made.stdout.splitlines()[1].removeprefix("#"))
    assert words[-2:] == ["--", "--json"]


@pytest.mark.extended
@each_case(
    "words, told",
    [
        (["--machine-type", "ct5lp-hightpu-1t"], "not 4x8 with its 32 chips"),
        (["--topology", "v5e:3x3"], "there is no slice v5e:3x3"),
        (["--topology", "auto"], "name a slice"),
        (["--replicas", "0"], "--replicas 0"),
        (["--replicas", "-2"], "--replicas -2"),
        (["--bucket", "my-sax"], "write gs://BUCKET"),
        (["--name", "x" * 40], "is too long"),
        (["--cell", "/sax/Prod"], "is not a cell"),
        (["--tag", "a:b"], "is not an image tag"),
        (["--image-registry", "https://x.io/y"], "write HOST/PATH"),
        (["--set", "QUANTIZE=int8"], "is not JSON"),
        (["--chip", "v6e"], "goes with --topology auto"),
        (["--kind", "pod"], "choose one of"),
        (["--publish-as", "/sax/other/m"], "another cell"),
        (["--namespace", "a\nkind: Pod"], "lower-case letters"),
        (["--slices", "2"], "--slices goes with --kind pathways"),
        ([*_PATHWAYS, "--slices", "2", "--elastic-slices", "2"], "one of the slices must stay"),
        ([*_PATHWAYS, "--max-slice-restarts", "2"], "ignores it without --elastic-slices"),
        ([*_PATHWAYS, "--deployment-mode", "x"], "choose one of default, colocate_head"),
        ([*_PATHWAYS, "--component", "head=sax"], "a KIND of pathways_server, worker"),
        ([*_PATHWAYS, "--component", "worker=me/x:1"], "write an image as HOST/PATH:TAG"),
        ([*_PATHWAYS, "--component-flag", "worker=--server_port=1"], "cannot be changed"),
        ([*_PATHWAYS, "--worker-node-selector", "a"], "write KEY=VALUE"),
        ([*_PATHWAYS, "--pathways-dir", "/tmp"], "write gs://BUCKET/FOLDER"),
        ([*_PATHWAYS, "--bucket", "s3://my-sax"], "give --pathways-dir"),
        ([*_PATHWAYS, "--our-components", "--pathways-version", "1"], "no image of Google's"),
        ([*_PATHWAYS, "--topology", "v5e:1x1"], "takes no ct5lp-hightpu-1t"),
        ([*_PATHWAYS, "--name", "x" * 21], "its coordinator"),
    ],
)
def test_a_wrong_question_is_one_line_and_status_2(words: list[str], told: str) -> None:
    made = render(*words)
    assert made.exit_code == 2
    assert told in made.stderr
    assert not made.stdout


def test_every_field_of_a_pathways_job_has_an_option_and_the_heading_repeats_it() -> None:
    words = [
        *_PATHWAYS, "--only", "servers", "--slices", "3", "--elastic-slices", "1",
        "--max-slice-restarts", "4", "--max-restarts", "7", "--pathways-version", "jax-1",
        "--pathways-dir", "gs://other/dir", "--deployment-mode", "colocate_head_with_workers",
        "--component", "worker=sax", "--component", "colocated_python_sidecar=gcr.io/me/s:1",
        "--component-flag", "proxy_server=--virtual_slices=tpuv5e:2x4",
        "--component-env", "pathways_server=A=b", "--worker-node-selector", "pool=a",
        "--worker-grace-seconds", "9", "--worker-priority-class", "low",
        "--enable-metrics-collection", "--spot",
    ]  # fmt: skip
    made = render(*words)
    assert made.exit_code == 0, made.stderr
    (job,) = yaml.safe_load_all(made.stdout)
    spec = job["spec"]
    assert (spec["maxRestarts"], spec["pathwaysVersion"]) == (7, "jax-1")
    assert spec["pathwaysDir"] == "gs://other/dir"
    assert spec["workers"] == [
        {"type": "ct5lp-hightpu-4t", "topology": "4x8", "numSlices": 3, "maxSliceRestarts": 4,
         "terminationGracePeriodSeconds": 9, "priorityClassName": "low",
         "nodeSelector": {"cloud.google.com/gke-spot": "true", "pool": "a"}}
    ]  # fmt: skip
    controller = spec["controller"]
    assert controller["deploymentMode"] == "colocate_head_with_workers"
    assert (controller["elasticSlices"], controller["enableMetricsCollection"]) == (1, True)
    assert [each["componentType"] for each in spec["customComponents"]] == [
        "pathways_server", "worker", "proxy_server", "colocated_python_sidecar",
    ]  # fmt: skip
    again = CliRunner().invoke(app, shlex.split(made.stdout.splitlines()[1][1:])[1:])
    assert again.stdout == made.stdout


@pytest.mark.parametrize("cell", ["prod", "/sax/prod"])
def test_a_cell_may_be_named_by_its_last_word(cell: str) -> None:
    made = render("--cell", cell).stdout
    assert "SAX_CELL: /sax/prod" in made
    assert "--sax_cell" not in made


def test_a_folder_is_written_again_but_not_over_somebodys_files(tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    for _ in range(2):
        made = render("--output-dir", str(folder))
        assert made.exit_code == 0
        assert not made.stdout
    names = {path.name for path in folder.iterdir()}
    assert names == {"kustomization.yaml", "control.yaml", "model-servers.yaml"}
    (folder / "control.yaml").write_text("kind: Mine\n")
    refused = render("--output-dir", str(folder))
    assert refused.exit_code == 2
    assert "not written by this command" in refused.stderr
    assert (folder / "control.yaml").read_text() == "kind: Mine\n"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = render("--output-dir", str(tmp_path / "file" / "deploy"))
    assert made.exit_code == 2
    assert "--output-dir" in made.stderr


@pytest.mark.nightly
@_needs_compiler
def test_a_model_that_does_not_fit_is_refused_with_the_plans_advice() -> None:
    words = ("--topology", "v5e:1x1", "--bucket", "gs://my-sax", "meta-llama/Llama-3-8B")
    made = sax("render", *words)
    assert made.exit_code == 1
    assert "does not fit v5e:1x1" in made.stderr
    assert "--set QUANTIZE=" in made.stderr
    assert not made.stdout


@pytest.mark.extended
def test_what_cannot_be_planned_is_refused_and_no_plan_is_offered() -> None:
    """The planner is a process of its own, with its own complaint on stderr."""
    done = _python("-m", "sax.cli", "k8s", "render", *_USUAL, "no.such.Model")
    assert done.returncode == 2
    assert "'no.such.Model' is not a model path" in done.stderr
    assert "--no-plan" in done.stderr
    assert not done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@_needs_compiler
def test_the_tutorials_model_is_planned_and_gets_its_hosts() -> None:
    made = sax("render", *_USUAL, "--replicas", "2", MODEL)
    assert made.exit_code == 0, made.stderr
    sets = [each for each in yaml.safe_load_all(made.stdout) if each["kind"] == "JobSet"]
    assert len(sets) == 2
    for each in sets:
        job = each["spec"]["replicatedJobs"][0]["template"]["spec"]
        assert job["parallelism"] == job["completions"] == 8
        pod = job["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
        assert pod["nodeSelector"] == {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
            "cloud.google.com/gke-tpu-topology": "4x8",
        }
    assert "# Planned: " in made.stdout


# doctor


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[KubernetesApi]:
    """A cluster in which all is well, and the environment that points to it."""
    with kubernetes_api(tmp_path) as server:
        server.version = "v1.33.1-gke.100"
        server.install("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
        groups = {"controllers": "deployments.apps", "deployments": "deployments.apps"}
        groups |= {"jobsets": "jobsets.jobset.x-k8s.io"}
        hooks = "mutatingwebhookconfigurations"
        for name, things in well().seen.items():
            if name == "customresourcedefinitions":
                continue
            suffix = ".admissionregistration.k8s.io" if name == hooks else ""
            for thing in things:
                server.add(groups.get(name, name) + suffix, thing)
        proxy = "/api/v1/namespaces/default/services/sax-admin-server:status/proxy/status.json"
        server.pages[proxy] = LEADING
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


def doctor(*words: str) -> Result:
    return sax("doctor", *words)


@_needs_client
def test_a_cluster_in_which_all_is_well_is_status_0(api: KubernetesApi) -> None:
    made = doctor("--topology", "v5e:4x8", "--replicas", "2")
    assert made.exit_code == 0, made.stdout
    assert "0 problems, 0 warnings" in made.stdout
    assert "is led by 10.0.0.1:10000" in made.stdout
    assert {verb for verb, _, _ in api.requests} == {"get", "list"}


@_needs_client
def test_a_problem_is_status_1_with_the_command_below_it(api: KubernetesApi) -> None:
    for index in range(8):
        api.remove("nodes", f"p1-{index}")
    made = doctor()
    assert made.exit_code == 1
    lines = made.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("PROBLEM  nodes: 1 usable"))
    assert lines[at + 1].startswith("         -> gcloud container node-pools create")


@_needs_client
def test_programs_get_json(api: KubernetesApi) -> None:
    api.change("configmaps", "sax-cell", {"data": {"GSBUCKET": "BUCKET_NAME"}})
    made = doctor("--json")
    found = json.loads(made.stdout)
    (problem,) = [each for each in found if each["level"] == "problem"]
    assert problem["about"] == "bucket"
    assert "patch configmap" in problem["remedy"]


@pytest.mark.extended
@_needs_client
@each_case("resource", ["nodes", "events", "jobsets.jobset.x-k8s.io", "*"])
def test_a_missing_right_is_a_warning_and_never_the_end(resource: str, api: KubernetesApi) -> None:
    api.forbid("list", resource)
    made = doctor("--topology", "v5e:4x8", "--replicas", "2")
    assert made.exit_code == 0, made.stdout
    named = "pods" if resource == "*" else resource
    assert f"you may not list {named}" in made.stdout
    assert f"kubectl auth can-i list {named}" in made.stdout


@_needs_client
def test_an_admin_that_may_not_be_reached_is_a_warning(api: KubernetesApi) -> None:
    api.forbid("get", "services/proxy")
    made = doctor()
    assert made.exit_code == 0
    assert "cannot be read through the API server" in made.stdout


@_needs_client
def test_a_look_that_fails_is_told_and_the_others_go_on(api: KubernetesApi) -> None:
    api.fail("500", "list", "events")
    made = doctor()
    assert "events could not be listed" in made.stdout
    assert "ok       nodes" in made.stdout


@_needs_client
def test_more_objects_than_one_answer_holds_are_all_seen(api: KubernetesApi) -> None:
    for number in range(70):
        for host in pool(f"more{number}"):
            api.add("nodes", host)
    made = doctor("--topology", "v5e:4x8", "--replicas", "72")
    assert "72 usable v5e:4x8" in made.stdout
    assert made.exit_code == 0


@_needs_client
def test_a_kind_that_the_cluster_does_not_know_is_no_failure(api: KubernetesApi) -> None:
    api.remove("customresourcedefinitions.apiextensions.k8s.io", "jobsets.jobset.x-k8s.io")
    made = doctor()
    assert "PROBLEM  controllers: JobSet is not installed" in made.stdout


@_needs_client
def test_another_namespace_is_looked_at_when_asked(api: KubernetesApi) -> None:
    made = doctor("--namespace", "elsewhere")
    assert "sax is not deployed in namespace elsewhere yet" in made.stdout


@_needs_client
def test_what_a_cluster_says_cannot_steer_the_terminal(api: KubernetesApi) -> None:
    message, name = "\x1b[2Jno\nPROBLEM  forged: line", "sax-model-server-set-0"
    told = event("FailedCreate", message, name, kind="JobSet")
    api.add("events", {"metadata": {"name": "e"}, **told})
    made = doctor()
    assert "\x1b" not in made.stdout
    assert "\nPROBLEM  forged" not in made.stdout
    assert "no PROBLEM forged: line" in made.stdout


@_needs_client
def test_without_a_cluster_it_cannot_look_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    made = doctor()
    assert made.exit_code == 2
    assert "get-credentials" in made.stderr


@_needs_client
def test_a_server_that_is_gone_or_does_not_know_us_is_status_2(
    api: KubernetesApi, tmp_path: Path
) -> None:
    config: dict[str, Any] = yaml.safe_load(api.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "another"
    stranger = tmp_path / "stranger"
    stranger.write_text(yaml.safe_dump(config))
    made = doctor("--kubeconfig", str(stranger))
    assert (made.exit_code, "rejected your credentials" in made.stderr) == (2, True)
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    stranger.write_text(yaml.safe_dump(config))
    made = doctor("--kubeconfig", str(stranger))
    assert made.exit_code == 2
    assert "refused" in made.stderr


@pytest.mark.extended
@_needs_client
@each_case(
    "words, told",
    [
        (["--context", "nobodys"], "nobodys"),
        (["--uses", "helm"], "choose from jobset"),
        (["--replicas", "0"], "--replicas 0"),
        (["--topology", "v5e:9x9"], "there is no slice"),
        (["--machine-type", "ct5lp-hightpu-4t"], "goes with --topology"),
        (["--flex-start"], "--flex-start goes with --topology"),
        (["--namespace", "A"], "lower-case"),
    ],
)
def test_a_wrong_question_to_the_doctor_is_status_2(
    words: list[str], told: str, api: KubernetesApi
) -> None:
    made = doctor(*words)
    assert made.exit_code == 2
    assert told in made.stderr


@pytest.mark.parametrize("text", ["", "[]", "apiVersion: v1", "a: [", "\x00"])
@_needs_client
def test_a_kubeconfig_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    made = doctor("--kubeconfig", str(file))
    assert made.exit_code == 2
    assert made.stderr.startswith("sax: ")


@_needs_client
@pytest.mark.parametrize(
    ("user", "told"),
    [
        ({"exec": {"apiVersion": _EXEC, "command": "no-such-plugin"}}, "no-such-plugin"),
        (None, "kubeconfig is not usable"),
    ],
)
def test_a_user_that_cannot_be_one_is_told(
    api: KubernetesApi, tmp_path: Path, user: Any, told: str
) -> None:
    """As on a machine without Google's plugin for kubectl."""
    config: dict[str, Any] = yaml.safe_load(api.kubeconfig.read_text())
    if user is None:
        del config["contexts"][0]["context"]["user"]
    else:
        config["users"][0]["user"] = user
    file = tmp_path / "other"
    file.write_text(yaml.safe_dump(config))
    made = doctor("--kubeconfig", str(file))
    assert made.exit_code == 2
    assert told in made.stderr


@pytest.mark.extended
def test_without_the_client_it_says_how_to_get_one() -> None:
    """As in an installation without the extra: a process in which lightkube cannot be imported."""
    script = (
        "import sys; sys.modules['lightkube'] = None\n"
        "from sax.cli.main import app\n"
        "app(['k8s', 'doctor'])"
    )
    done = _python("-c", script)
    assert done.returncode == 2
    assert "pip install 'lightkube" in done.stderr


@pytest.mark.parametrize("command", ["render", "doctor"])
def test_its_help_teaches_by_examples(command: str) -> None:
    text = sax(command, "--help").stdout
    assert f"sax k8s {command} " in text
    assert "Exit status: 0" in " ".join(text.split())
