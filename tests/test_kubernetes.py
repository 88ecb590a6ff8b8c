"""
The manifests in deploy/kubernetes are what Kubernetes accepts, as far as that can be known without one.

Kubernetes' own objects are held to its schemas, strictly. Of RayCluster, ScaledObject and TriggerAuthentication no
package brings a schema: the fields that they may have are listed here, as they were read.
"""

import copy
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from django.db import ProgrammingError, connection, transaction

from django_manta import conf
from django_manta.execution.runners.ray import envoys
from django_manta.ledger import Ledger
from tests.app import tasks
from tests.test_documentation import ROOT, commands_on, page, parser_of, python_blocks

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))

#: The oldest and the newest Kubernetes whose schemas are asked.
VERSIONS = ("1.31", "1.37")

CUSTOM = {"RayCluster", "ScaledObject", "TriggerAuthentication"}


def objects(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


ALL = [(file.name, each) for file in FILES for each in objects(file)]


def found(kind: str, name: str | None = None) -> dict[str, Any]:
    [only] = [each for _, each in ALL if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return only


def named(value: tuple[str, dict[str, Any]]) -> str:
    return f"{value[0]}:{value[1]['kind']}:{value[1]['metadata']['name']}"


CLUSTER = found("RayCluster")
GROUPS = [CLUSTER["spec"]["headGroupSpec"], *CLUSTER["spec"]["workerGroupSpecs"]]
DEPLOYMENTS = [each for _, each in ALL if each["kind"] == "Deployment"]
TEMPLATES = [group["template"] for group in GROUPS] + [each["spec"]["template"] for each in DEPLOYMENTS]


# -- schemas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("each", [each for each in ALL if each[1]["kind"] not in CUSTOM], ids=named)
def test_what_is_kubernetes_own_keeps_to_its_schema(each: tuple[str, dict[str, Any]], version: str) -> None:
    kubernetes_validate.validate(each[1], version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_of_the_ray_cluster_keep_to_the_schema_of_pods(version: str) -> None:
    for group in GROUPS:
        template = {"apiVersion": "v1", "kind": "PodTemplate", "template": group["template"]}
        kubernetes_validate.validate(template, version, strict=True)
        assert group["template"]["spec"]["containers"], "the schema lets a pod have none"


def test_the_schemas_would_notice() -> None:
    wrong = copy.deepcopy(found("Deployment", "shop-worker"))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


#: The reference of KubeRay 1.6.2; which of them must be there, as the types of ray.io/v1 say.
RAY_CLUSTER = {
    "spec": (
        {"headGroupSpec"},
        {
            "upgradeStrategy",
            "authOptions",
            "suspend",
            "managedBy",
            "autoscalerOptions",
            "headServiceAnnotations",
            "enableInTreeAutoscaling",
            "gcsFaultToleranceOptions",
            "rayVersion",
            "workerGroupSpecs",
        },
    ),
    "head": ({"template", "rayStartParams"}, {"headService", "enableIngress", "resources", "labels", "serviceType"}),
    "workers": (
        {"groupName", "template", "minReplicas", "maxReplicas", "rayStartParams"},
        {"suspend", "replicas", "idleTimeoutSeconds", "resources", "labels", "scaleStrategy", "numOfHosts"},
    ),
    "authOptions": (set(), {"mode", "secretName", "enableK8sTokenAuth"}),
    "autoscalerOptions": (
        set(),
        {
            "resources",
            "image",
            "imagePullPolicy",
            "securityContext",
            "idleTimeoutSeconds",
            "upscalingMode",
            "version",
            "env",
            "envFrom",
            "volumeMounts",
        },
    ),
}


def has_known_fields(given: dict[str, Any], fields: tuple[set[str], set[str]]) -> None:
    required, optional = fields
    assert required <= set(given) <= required | optional


def test_the_ray_cluster_has_only_fields_that_exist() -> None:
    spec = CLUSTER["spec"]
    assert (CLUSTER["apiVersion"], set(CLUSTER)) == ("ray.io/v1", {"apiVersion", "kind", "metadata", "spec"})
    has_known_fields(spec, RAY_CLUSTER["spec"])
    has_known_fields(spec["headGroupSpec"], RAY_CLUSTER["head"])
    has_known_fields(spec["authOptions"], RAY_CLUSTER["authOptions"])
    has_known_fields(spec["autoscalerOptions"], RAY_CLUSTER["autoscalerOptions"])
    for group in spec["workerGroupSpecs"]:
        has_known_fields(group, RAY_CLUSTER["workers"])
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in GROUPS:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_the_ray_cluster_has_tokens_grows_and_has_gpus() -> None:
    spec = CLUSTER["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert tuple(map(int, spec["rayVersion"].split("."))) >= (2, 52, 0)  # KubeRay refuses tokens for an older Ray
    assert spec["enableInTreeAutoscaling"] is True
    limits = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in spec["workerGroupSpecs"]]
    assert ["nvidia.com/gpu" in each for each in limits] == [False, True]


#: KEDA's scaledobject_types.go and triggerauthentication_types.go of keda.sh/v1alpha1, and what its scaler for
#: PostgreSQL reads: listed by hand, because no package has their schemas.
SCALED_OBJECT = {
    "spec": (
        {"scaleTargetRef", "triggers"},
        {
            "pollingInterval",
            "initialCooldownPeriod",
            "cooldownPeriod",
            "idleReplicaCount",
            "minReplicaCount",
            "maxReplicaCount",
            "advanced",
            "fallback",
        },
    ),
    "scaleTargetRef": ({"name"}, {"apiVersion", "kind", "envSourceContainerName"}),
    "advanced": (set(), {"horizontalPodAutoscalerConfig", "restoreToOriginalReplicaCount", "scalingModifiers"}),
    "horizontalPodAutoscalerConfig": (set(), {"behavior", "name"}),
    "trigger": ({"type", "metadata"}, {"name", "useCachedMetrics", "authenticationRef", "metricType"}),
    "metadata": (
        {"query", "targetQueryValue"},
        {
            "activationTargetQueryValue",
            "connectionFromEnv",
            "host",
            "port",
            "userName",
            "dbName",
            "sslmode",
            "passwordFromEnv",
        },
    ),
}


def test_the_scaler_has_only_fields_that_exist() -> None:
    spec = found("ScaledObject")["spec"]
    has_known_fields(spec, SCALED_OBJECT["spec"])
    for name in ("scaleTargetRef", "advanced"):
        has_known_fields(spec[name], SCALED_OBJECT[name])
    [trigger] = spec["triggers"]
    has_known_fields(trigger, SCALED_OBJECT["trigger"])
    has_known_fields(trigger["metadata"], SCALED_OBJECT["metadata"])
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert float(trigger["metadata"]["targetQueryValue"]) > 0
    assert 0 < spec["minReplicaCount"] <= spec["maxReplicaCount"]
    assert found("TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"] == {
        "secretTargetRef": [{"parameter": "connection", "name": "shop-scaler", "key": "connection"}]
    }


def test_how_the_scaler_scales_down_keeps_to_kubernetes_schema() -> None:
    config = found("ScaledObject")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    has_known_fields(config, SCALED_OBJECT["horizontalPodAutoscalerConfig"])
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "x"}, "maxReplicas": 1, "behavior": config["behavior"]}
    autoscaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec}
    kubernetes_validate.validate(autoscaler, VERSIONS[-1], strict=True)


# -- one with the other ------------------------------------------------------------------------------


def test_everything_that_is_referred_to_is_there() -> None:
    there = {(each["kind"], each["metadata"]["name"]) for _, each in ALL}
    keys = {each["metadata"]["name"]: set(each["stringData"]) for _, each in ALL if each["kind"] == "Secret"}
    there.add(("Secret", CLUSTER["metadata"]["name"]))  # KubeRay makes it, and it has this key
    keys[CLUSTER["metadata"]["name"]] = {"auth_token"}
    for template in TEMPLATES:
        for container in template["spec"]["containers"]:
            for source in container["envFrom"]:
                [(kind, ref)] = source.items()
                assert ({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], ref["name"]) in there
            for variable in container.get("env", []):
                if ref := variable.get("valueFrom", {}).get("secretKeyRef"):
                    assert ref["key"] in keys[ref["name"]]
    for ref in found("TriggerAuthentication")["spec"]["secretTargetRef"]:
        assert ref["key"] in keys[ref["name"]]
    assert ("Deployment", found("ScaledObject")["spec"]["scaleTargetRef"]["name"]) in there


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    among = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in among)
    return wanted.items() <= labels.items() and all(labels.get(each["key"]) in each["values"] for each in among)


def pods() -> dict[str, dict[str, str]]:
    """The labels of every pod, with those that KubeRay adds."""
    known = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in DEPLOYMENTS}
    for group in GROUPS:
        name = group.get("groupName", "head")
        added = {
            "ray.io/cluster": CLUSTER["metadata"]["name"],
            "ray.io/node-type": "worker" if name != "head" else name,
        }
        known[name] = group["template"]["metadata"]["labels"] | added
    return known


def test_deployments_select_their_own_pods_and_no_others() -> None:
    for deployment in DEPLOYMENTS:
        name = deployment["metadata"]["name"]
        chosen = [pod for pod, labels in pods().items() if selects(deployment["spec"]["selector"], labels)]
        assert chosen == [name]


def allowed(source: str, target: str) -> set[int | str]:
    """The ports at which one pod may connect to another."""
    labels = pods()
    policies = [each["spec"] for _, each in ALL if each["kind"] == "NetworkPolicy"]
    mine = [each for each in policies if selects(each["podSelector"], labels[target])]
    ports: set[int | str] = set() if mine else {"every"}
    for rule in (rule for policy in mine for rule in policy["ingress"]):
        if any(selects(peer["podSelector"], labels[source]) for peer in rule["from"]):
            ports |= {port["port"] for port in rule["ports"]} if "ports" in rule else {"every"}
    return ports


def test_only_those_who_must_can_connect() -> None:
    ray, workers = ["head", "cpu", "gpu"], ["shop-worker", "shop-worker-ray"]
    for source, target in product(ray, ray):
        assert allowed(source, target) == {"every"}  # the foreman's port, too, which nobody knows beforehand
    assert allowed("shop-worker-ray", "head") == {10001, 8265}
    assert allowed("shop-worker", "head") == set()
    for source, target in [*product(workers, ["cpu", "gpu"]), *product([*ray, *workers], workers)]:
        assert allowed(source, target) == set()


def test_the_head_opens_the_ports_that_the_settings_name() -> None:
    [head] = GROUPS[0]["template"]["spec"]["containers"]
    opened = {port["containerPort"] for port in head["ports"]}
    service = f"{CLUSTER['metadata']['name']}-head-svc"
    data = found("ConfigMap")["data"]
    assert data["MANTA_RAY_ADDRESS"] == f"ray://{service}:10001"
    assert data["MANTA_RAY_DASHBOARD"] == f"http://{service}:8265"
    assert {10001, 8265, 6379} == opened


# -- with what django-manta says ---------------------------------------------------------------------


def command_of(deployment: dict[str, Any]) -> Any:
    """The command of a worker, as our own parser reads it."""
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    python, manage, manta, verb, *flags = container["command"]
    assert (python, manage, manta, verb) == ("python", "manage.py", "manta", "worker")
    return parser_of("worker").parse_args(flags)


def test_workers_have_the_time_that_they_need_to_stop() -> None:
    plain, on_ray = (found("Deployment", name) for name in ("shop-worker", "shop-worker-ray"))
    assert (command_of(plain).runner, command_of(on_ray).runner) == ("processes", "ray")
    for deployment in (plain, on_ray):
        grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace > command_of(deployment).stop_timeout + 2
    assert on_ray["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 2 * envoys.LEAVE_SECONDS
    assert "replicas" not in plain["spec"]  # the scaler's, and every apply would set it back
    assert on_ray["spec"]["replicas"] >= 2


def test_probes_ask_for_the_health_of_their_own_worker() -> None:
    for deployment in DEPLOYMENTS:
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            [shell, flag, script] = container[probe]["exec"]["command"]
            assert (shell, flag) == ("sh", "-c")
            [(verb, *flags)] = commands_on(script.replace('"', ""))
            assert (verb, parser_of(verb).parse_args(flags).worker) == ("health", "$HOSTNAME")
        # A database that is away for minutes is no reason to start workers again.
        assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] >= 600


def test_the_release_is_the_tag_of_the_image() -> None:
    for deployment in DEPLOYMENTS:
        template = deployment["spec"]["template"]
        [container] = template["spec"]["containers"]
        release = template["metadata"]["labels"]["app.kubernetes.io/version"]
        assert container["image"] == f"shop:{release}"
        assert release in found("ConfigMap")["data"]["CODE_URI"]
        [variable] = [each for each in container["env"] if each["name"] == "RELEASE"]
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.labels['app.kubernetes.io/version']"
    [image] = {container["image"] for group in GROUPS for container in group["template"]["spec"]["containers"]}
    assert image == f"shop-ray:{CLUSTER['spec']['rayVersion']}"


def settings_of_the_page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that docs/kubernetes.md shows, in the environment of a worker on Ray."""
    environment = found("ConfigMap")["data"] | found("Secret", "shop")["stringData"] | {"RELEASE": "2026-11-16"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    [example] = [block for block in python_blocks("docs/kubernetes.md") if "TASKS" in block]
    read = re.findall(r'os\.environ(?:\.get\(|\[)"(\w+)"', example)
    assert set(read) <= environment.keys()
    assert environment.keys() - set(read) == {"DJANGO_SETTINGS_MODULE"}
    settings: dict[str, Any] = {}
    exec(example, settings)
    return settings


def test_the_settings_on_the_page_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    [backend] = settings_of_the_page(monkeypatch)["TASKS"].values()
    assert list(conf.problems_of(backend["OPTIONS"])) == []
    config = conf.read("default", backend["OPTIONS"])
    assert config.ray["ADDRESS"] == "ray://shop-ray-head-svc:10001"
    assert config.ray["DASHBOARD"] == "http://shop-ray-head-svc:8265"
    assert config.ray["VERSION"] == "2026-11-16"
    assert config.runtime_envs[config.ray["RUNTIME_ENV"]] == {"working_dir": "s3://shop-releases/2026-11-16.zip"}


def query() -> str:
    [trigger] = found("ScaledObject")["spec"]["triggers"]
    asked: str = trigger["metadata"]["query"]
    return asked


def test_the_scaler_counts_the_queues_of_the_runner_that_it_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    [backend] = settings_of_the_page(monkeypatch)["TASKS"].values()
    chosen = {queue: each["runner"] for queue, each in backend["OPTIONS"]["QUEUE_OPTIONS"].items()}
    theirs = [queue for queue in backend["QUEUES"] if chosen.get(queue, "processes") == "processes"]
    [listed] = re.findall(r"queue IN \(([^)]*)\)", query())
    assert [queue.strip(" '") for queue in listed.split(",")] == theirs
    # More than all replicas could be wanted for need not be counted.
    spec = found("ScaledObject")["spec"]
    [limit] = re.findall(r"LIMIT (\d+)", query())
    assert int(limit) >= spec["maxReplicaCount"] * float(spec["triggers"][0]["metadata"]["targetQueryValue"])


def count() -> int:
    with connection.cursor() as cursor:
        cursor.execute(query())
        [(number,)] = cursor.fetchall()
    return int(number)


@pytest.mark.postgres  # KEDA asks PostgreSQL
@pytest.mark.django_db
def test_the_scaler_s_query_counts_what_is_ready_and_may_be_claimed() -> None:
    assert count() == 0
    tasks.add.starmap((n, 1) for n in range(7))
    tasks.add.using(queue_name="urgent").enqueue(1, 1)
    tasks.add.using(queue_name="slow").enqueue(1, 1)
    tasks.add.using(hold=True).enqueue(1, 1)
    tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1)
    assert count() == 8
    Ledger().pause("urgent")
    assert count() == 7
    Ledger().claim("worker", ["default"], 3)
    assert count() == 4


@pytest.mark.postgres
@pytest.mark.django_db
def test_the_scaler_s_user_may_count_and_no_more() -> None:
    [statements] = re.findall(r"^```sql\n(.*?)^```", page("docs/kubernetes.md"), re.M | re.S)
    tasks.add.enqueue(1, 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        if cursor.fetchone() != (True,):
            pytest.skip("on a server of yours, where the tests may make no users")
        cursor.execute(statements)
        cursor.execute("SET LOCAL ROLE shop_scaler")
        assert count() == 1
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            cursor.execute("SELECT arguments FROM manta_run")


@pytest.mark.postgres
@pytest.mark.django_db
def test_the_index_of_the_claim_answers_the_scaler() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN (FORMAT JSON) {query()}")
        [(plan,)] = cursor.fetchall()
    assert "manta_run_ready" in json.dumps(plan)


# -- the page ----------------------------------------------------------------------------------------


def test_the_page_shows_every_manifest_and_says_what_was_not_done() -> None:
    text = page("docs/kubernetes.md")
    assert set(re.findall(r'--8<-- "deploy/kubernetes/([\w-]+\.yaml)"', text)) == {file.name for file in FILES}
    assert "never been run on a cluster" in text
    assert f"Kubernetes {VERSIONS[0]} and {VERSIONS[-1]}" in text


def test_no_manifest_names_a_host_for_images() -> None:
    def images(value: Any) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key == "image":
                yield inner
            elif isinstance(inner, dict | list):
                yield from images(inner)

    assert {image for _, each in ALL for image in images(each)} == {"shop:2026-11-16", "shop-ray:2.60.0"}
