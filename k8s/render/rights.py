"""Whom a cell's bucket sees: an account for each role, and the folders that each may use. Pure.

docs/how_to/kubernetes.md has the same table, and a test holds one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from k8s.render.bucket import StorageBucket

READ, WRITE = "roles/storage.objectViewer", "roles/storage.objectUser"
ADMIN, GATEWAY, MODEL_SERVER = ACCOUNTS = ("sax-admin", "sax-gateway", "sax-model-server")
CHECKPOINTS = "checkpoints"
FOLDERS = {
    ADMIN: {"sax-fs-root": WRITE, "sax-root": WRITE},
    GATEWAY: {"sax-root": READ, "sax-files": WRITE},
    MODEL_SERVER: {"sax-root": READ, CHECKPOINTS: READ},
}
PATHWAYS = {"pathways": WRITE}  # of what runs its programs
_PRINCIPAL = (
    "principal://iam.googleapis.com/projects/PROJECT_NUMBER/locations/global/"
    "workloadIdentityPools/PROJECT_ID.svc.id.goog/subject/ns/{}/sa/{}"
)


def folder_commands(
    bucket: StorageBucket, namespace: str, pathways: Sequence[str] = ()
) -> list[str]:
    """Return the commands that give each account its folders of a Google bucket.

    pathways: accounts that run programs of Pathways.
    """
    rights = [
        (account, folder, role) for account in ACCOUNTS for folder, role in FOLDERS[account].items()
    ]
    rights += [(account, folder, role) for account in pathways for folder, role in PATHWAYS.items()]
    folders = [f"{bucket.url}/{folder}/" for folder in dict.fromkeys(each[1] for each in rights)]
    return [
        f"gcloud storage managed-folders create {' '.join(folders)}",
        *(
            f"gcloud storage managed-folders add-iam-policy-binding {bucket.url}/{folder}/ "
            f"--role={role} --member={_PRINCIPAL.format(namespace, account)}"
            for account, folder, role in rights
        ),
    ]


def impersonation_commands(email: str, namespace: str) -> list[str]:
    """Return the commands that let all accounts act as one Google service account."""
    return [
        f"gcloud iam service-accounts add-iam-policy-binding {email} "
        "--role=roles/iam.workloadIdentityUser "
        f'--member="serviceAccount:PROJECT_ID.svc.id.goog[{namespace}/{account}]"'
        for account in ACCOUNTS
    ]
