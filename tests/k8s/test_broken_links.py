"""The checks of references, containers and metrics find what is wrong: each breaks one thing."""

from __future__ import annotations

from tests.each_case import each_case
from tests.k8s.breaking import (
    ALERTS,
    GATEWAY,
    KUEUE,
    SCALED,
    TUTORIAL,
    Case,
    admin,
    env,
    found_in,
    main,
    one,
    pod,
    put,
)

CASES: dict[str, Case] = {
    "a Service that selects nothing": (
        TUTORIAL,
        lambda o: put(one(o, "Service")["spec"], selector={"app": "sax-htpp"}),
        "no pod here has the labels",
    ),
    "a budget that selects nothing": (
        TUTORIAL,
        lambda o: put(
            one(o, "PodDisruptionBudget")["spec"], selector={"matchLabels": {"app": "x"}}
        ),
        "no pod here has the labels",
    ),
    "a Service's port that no container has": (
        TUTORIAL,
        lambda o: put(one(o, "Service")["spec"]["ports"][0], targetPort="web"),
        "has no port web",
    ),
    "a probe's port that is not there": (
        TUTORIAL,
        lambda o: put(main(o)["readinessProbe"]["httpGet"], port="metrics"),
        "readinessProbe: there is no port metrics",
    ),
    "a volume that is not there": (
        TUTORIAL,
        lambda o: main(o)["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"}),
        "no volume shm",
    ),
    "a map of variables that is not there": (
        TUTORIAL,
        lambda o: o.remove(one(o, "ConfigMap")),
        "ConfigMap sax-cell is not in the same rendering",
    ),
    "an account that is not there": (
        TUTORIAL,
        lambda o: put(pod(o, "JobSet"), serviceAccountName="sax"),
        "ServiceAccount/sax is not there",
    ),
    "an autoscaler of nothing": (
        SCALED,
        lambda o: put(
            one(o, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"], name="sax-servers"
        ),
        "/sax-servers is not there",
    ),
    "a queue that is not there": (
        KUEUE,
        lambda o: put(
            one(o, "JobSet")["metadata"]["labels"], **{"kueue.x-k8s.io/queue-name": "tpus"}
        ),
        "LocalQueue/tpus is not there",
    ),
    "a pool that takes secondaries as well": (
        GATEWAY,
        lambda o: put(
            one(o, "InferencePool")["spec"]["selector"], matchLabels={"app": "sax-model-server"}
        ),
        "which is no primary",
    ),
    "a flag that the model server does not know": (
        TUTORIAL,
        lambda o: main(o)["args"].append("--platform_chips=tpuv5e"),
        "unrecognized arguments: --platform_chips=tpuv5e",
    ),
    "a value that the model server refuses": (
        TUTORIAL,
        lambda o: main(o)["args"].append("--sax_cell=test"),
        "test",
    ),
    "a flag that the admin server does not know": (
        TUTORIAL,
        lambda o: admin(o)["args"].append("--sax-root=x"),
        "unrecognized arguments: --sax-root=x",
    ),
    "a flag that the gateway does not know": (
        TUTORIAL,
        lambda o: main(o, "Deployment", "sax-http")["args"].append("--admins=x"),
        "unrecognized arguments: --admins=x",
    ),
    "an admin server without a place for its state": (
        TUTORIAL,
        lambda o: put(one(o, "ConfigMap"), data={"SAX_CELL": "/sax/test"}),
        "nowhere to keep its state",
    ),
    "a gateway that cannot find its admin server": (
        "overlays/cpu",
        lambda o: put(one(o, "ConfigMap"), data={"SAX_CELL": "/sax/test"}),
        "it finds no admin server",
    ),
    "two places for one cell": (
        "overlays/cpu",
        lambda o: put(one(o, "ConfigMap")["data"], GSBUCKET="bucket"),
        "several places for one cell",
    ),
    "a flag that the slice check does not know": (
        "examples/slice-check",
        lambda o: main(o, "Job")["args"].append("--chips=32"),
        "unrecognized arguments: --chips=32",
    ),
    "a list of admins that could not be enforced": (
        TUTORIAL,
        lambda o: admin(o)["args"].append("--admin_acl=operator"),
        "cannot be enforced",
    ),
    "a variable that nobody reads": (
        TUTORIAL,
        lambda o: main(o)["env"].append(env("SAX_HOST_COUNT", "8")),
        "SAX_HOST_COUNT is documented nowhere",
    ),
    "a container without a request": (
        TUTORIAL,
        lambda o: (
            admin(o)["resources"]["requests"].pop("memory") and admin(o)["resources"].pop("limits")
        ),
        "requests no memory",
    ),
    "a container without a probe": (
        TUTORIAL,
        lambda o: admin(o).pop("livenessProbe"),
        "no livenessProbe",
    ),
    "a container that may be root": (
        TUTORIAL,
        lambda o: put(pod(o, "Deployment")["securityContext"], runAsNonRoot=False),
        "may run as root",
    ),
    "a privileged container": (
        TUTORIAL,
        lambda o: put(main(o)["securityContext"], privileged=True),
        "privileged",
    ),
    "a capability that nobody needs": (
        TUTORIAL,
        lambda o: put(main(o)["securityContext"]["capabilities"], add=["SYS_ADMIN"]),
        "SYS_ADMIN",
    ),
    "a file system that can be written": (
        TUTORIAL,
        lambda o: admin(o)["securityContext"].pop("readOnlyRootFilesystem"),
        "readOnlyRootFilesystem",
    ),
    "a grace that is shorter than the drain": (
        TUTORIAL,
        lambda o: put(pod(o, "JobSet"), terminationGracePeriodSeconds=60),
        "terminationGracePeriodSeconds 60 is not above 120",
    ),
    "a grace that forgets the load balancer": (
        TUTORIAL,
        lambda o: put(pod(o, "Deployment", "sax-http"), terminationGracePeriodSeconds=620),
        "terminationGracePeriodSeconds 620 is not above 625",
    ),
    "a startup probe that does not wait for the hosts": (
        TUTORIAL,
        lambda o: put(main(o)["startupProbe"], failureThreshold=6),
        "startupProbe gives up after 60 s",
    ),
    "an alert on a metric that does not exist": (
        ALERTS,
        lambda o: put(
            one(o, "PrometheusRule")["spec"]["groups"][0]["rules"][0], expr="sax_queue > 1"
        ),
        "no metric sax_queue",
    ),
    "an alert on a counter without its ending": (
        ALERTS,
        lambda o: put(
            one(o, "PrometheusRule")["spec"]["groups"][0]["rules"][0], expr="sax_steps > 1"
        ),
        "no metric sax_steps",
    ),
    "a panel on a metric that does not exist": (
        ALERTS,
        lambda o: put(
            one(o, "ConfigMap")["data"],
            **{"sax.json": one(o, "ConfigMap")["data"]["sax.json"].replace("sax_pages{", "sax_p{")},
        ),
        "no metric sax_p",
    ),
    "a panel on a metric that no process has": (
        ALERTS,
        lambda o: put(
            one(o, "ConfigMap")["data"],
            **{"sax.json": one(o, "ConfigMap")["data"]["sax.json"].replace("_resident_", "_rss_")},
        ),
        "no metric process_rss_memory_bytes",
    ),
    "an autoscaler on a metric that does not exist": (
        SCALED,
        lambda o: put(
            one(o, "HorizontalPodAutoscaler", "sax-model-server-set")["spec"]["metrics"][0][
                "external"
            ]["metric"],
            name="sax_wanted",
        ),
        "no metric sax_wanted",
    ),
    "the same object twice": (
        TUTORIAL,
        lambda o: o.append(one(o, "ConfigMap")),
        "it is there twice",
    ),
}


@each_case("case", CASES)
def test_it_is_found(case: str) -> None:
    found = found_in(CASES[case])
    assert any(CASES[case][2] in text for text in found), found
