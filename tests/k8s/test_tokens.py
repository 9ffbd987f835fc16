"""With tokens every process asks for one and has one of its own, from the Secret that it mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sax.auth.token_file import TokenFile
from tests.each_case import each_case
from tests.k8s.check import Subject
from tests.k8s.flags import role_of
from tests.k8s.kubelet import Container
from tests.k8s.manifests import objects_of
from tests.k8s.pods import Pod, pods_of
from tests.k8s.specs import containers

CLOSED = ("tokens", "memlock", "inference-gateway", "tokens/beside-primaries")
SUBJECTS = (
    Subject("overlays/tutorial", ("tokens",)),
    Subject("overlays/cpu", ("tokens",)),
    Subject("overlays/leaderworkerset", CLOSED),
)
OWN = {"admin_server": "admin", "http_gateway": "gateway", "model_server": "model-server"}


def ours(subject: Subject) -> list[tuple[Pod, Container, str]]:
    pods = pods_of(objects_of(subject.render()))
    every = [(pod, each, role_of(each)[0]) for pod in pods for each in pod.containers]
    return [(pod, container, role) for pod, container, role in every if role]


@each_case("subject", SUBJECTS)
def test_every_process_is_closed_and_shows_its_own_token(subject: Subject) -> None:
    found = ours(subject)
    assert {role for _, _, role in found} == set(OWN)
    for pod, container, role in found:
        assert "--tokens=/etc/sax/tokens.txt" in container.args, container
        assert container.env["SAX_TOKEN_FILE"] == f"/etc/sax/{OWN[role]}.token"
        assert mounted(pod, container) == {"tokens.txt", f"{OWN[role]}.token"}


def mounted(pod: Pod, container: Container) -> set[str]:
    """The files that a container finds in /etc/sax."""
    spec: Any = next(each for each in containers(pod.spec) if each["name"] == container.name)
    (mount,) = (each for each in spec["volumeMounts"] if each["mountPath"] == "/etc/sax")
    (volume,) = (each for each in pod.spec["volumes"] if each["name"] == mount["name"])
    return {item["path"] for item in volume["secret"]["items"]}


def test_the_placeholders_let_nobody_in(tmp_path: Path) -> None:
    objects = objects_of(SUBJECTS[0].render())
    (secret,) = (each for each in objects if each["kind"] == "Secret")
    file = tmp_path / "tokens.txt"
    file.write_text(secret["stringData"]["tokens.txt"])
    tokens = TokenFile(file)
    assert {tokens.find(each) for each in secret["stringData"].values()} == {None}
    names = {line.split()[0] for line in file.read_text().splitlines()}
    assert names == {"operator", *OWN.values()}
