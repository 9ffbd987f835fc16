"""Each role has an account, and each account the folders that its processes use."""

from __future__ import annotations

import re

from k8s.render.bucket import ACCOUNTS, FOLDERS, READ, WRITE
from sax.container import ADMIN, GATEWAY, MODEL, command
from tests.demo_model import ROOT
from tests.each_case import each_case
from tests.k8s.flags import role_of
from tests.k8s.pods import pods_of
from tests.k8s.render.orders import by_name, pathways, rendered

BUCKET = "gs://my-sax/"


def used() -> dict[tuple[str, str], set[str]]:
    """Folders of the bucket in the flags and variables of processes, by role and account."""
    found: dict[tuple[str, str], set[str]] = {}
    for pod in pods_of(list(rendered().objects)):
        for container in pod.containers:
            role, args = role_of(container)
            flags, environ = command(role, args, container.env)
            words = [*flags, environ.get("SAX_ROOT", "")]
            folders = {word.partition(BUCKET)[2] for word in words if BUCKET in word}
            found.setdefault((role, pod.spec["serviceAccountName"]), set()).update(folders)
    return found


def test_each_role_has_an_account_that_may_use_its_folders() -> None:
    found = used()
    assert sorted(account for _, account in found) == sorted(ACCOUNTS)
    written = {ADMIN: {"sax-root", "sax-fs-root"}, GATEWAY: {"sax-files"}, MODEL: set[str]()}
    for (role, account), folders in found.items():
        assert folders <= FOLDERS[account].keys(), role
        assert {name for name, right in FOLDERS[account].items() if right == WRITE} == written[role]


def test_no_pod_gets_a_token_of_kubernetes_and_no_account_is_without_pods() -> None:
    accounts = [each for each in rendered().objects if each["kind"] == "ServiceAccount"]
    assert [each["metadata"]["name"] for each in accounts] == list(ACCOUNTS)
    assert not any(each["automountServiceAccountToken"] for each in accounts)


def test_the_heading_gives_each_account_its_folders() -> None:
    told = rendered(namespace="serving").heading
    for account, folders in FOLDERS.items():
        for folder, role in folders.items():
            line = rf"{BUCKET}{folder}/ --role={role} --member=principal://\S+/ns/serving/sa/{account}\n"
            assert re.search(line, told), (account, folder)
    assert told.count("add-iam-policy-binding") == sum(map(len, FOLDERS.values()))


@each_case(
    "kind, accounts",
    [
        ("pathways", {"sax-model-server", "default"}),
        ("pathways-jobset", {"sax-model-server"}),
    ],
)
def test_what_runs_pathways_may_use_its_folder(kind: str, accounts: set[str]) -> None:
    found = re.findall(rf"{BUCKET}pathways/ --role=(\S+) \S+/sa/(\S+)", pathways(kind).heading)
    assert set(found) == {(WRITE, account) for account in accounts}


def test_one_google_account_may_stand_for_all_three() -> None:
    email = "sax@my-project.iam.gserviceaccount.com"
    made = rendered(service_account_email=email)
    for account in ACCOUNTS:
        annotations = by_name(made.objects)["ServiceAccount", account]["metadata"]["annotations"]
        assert annotations == {"iam.gke.io/gcp-service-account": email}
        assert f"PROJECT_ID.svc.id.goog[default/{account}]" in made.heading


def test_the_page_has_the_same_table() -> None:
    page = (ROOT / "docs" / "how_to" / "kubernetes.md").read_text()
    for account, folders in FOLDERS.items():
        (row,) = re.findall(rf"^\| `{account}` \|.*$", page, re.MULTILINE)
        groups = re.findall(r"((?:`[a-z-]+`(?:, )?)+): `(roles/\S+)`", row)
        told = {name: role for names, role in groups for name in re.findall(r"`([a-z-]+)`", names)}
        assert told == folders
        assert set(told.values()) <= {READ, WRITE}
