"""The bucket that holds a cell's state, and whom it sees: an account for each role, and the folders
that each may use. Pure.

docs/how_to/kubernetes.md has the same table, and a test holds one against the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sax.errors import InvalidRequest

_NAMES = {
    "gs": r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]",
    "s3": r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    "az": r"[a-z0-9]([a-z0-9]|-(?!-)){1,61}[a-z0-9]",
}
_PREFIX = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._=-]*)*", re.ASCII)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (or a role of the pods)",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or an identity of the pods)",
}


@dataclass(frozen=True, slots=True)
class StorageBucket:
    """A bucket, or a folder in one."""

    scheme: str
    name: str
    prefix: str = ""  # /with/slashes

    @classmethod
    def parse(cls, text: str) -> StorageBucket:
        """Parse gs://bucket/folder, or s3:// or az://. Raises InvalidRequest."""
        scheme, found, rest = text.partition("://")
        if not found or scheme not in _NAMES:
            raise InvalidRequest(
                f"--bucket {text!r}: write gs://BUCKET, e.g. gs://my-sax-bucket; s3://BUCKET and "
                "az://CONTAINER work too if the pods have credentials for them",
                param="bucket",
            )
        name, slash, folder = rest.rstrip("/").partition("/")
        bucket = cls(scheme, name, slash + folder)
        if not re.fullmatch(_NAMES[scheme], name) or not _PREFIX.fullmatch(bucket.prefix):
            raise InvalidRequest(
                f"--bucket {text!r} is not a bucket name: use 3 to 63 lower-case letters, digits, "
                f"'-' and '.', optionally with /folders, e.g. {scheme}://my-sax-bucket/cells",
                param="bucket",
            )
        return bucket

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.name}{self.prefix}"

    @property
    def variable(self) -> str:
        """Value of GSBUCKET: only the name for a bare gs:// bucket, as in Saxml; else the URL."""
        return self.name if self.scheme == "gs" and not self.prefix else self.url

    @property
    def credentials(self) -> str | None:
        """Credentials that the pods need; None: workload identity is enough."""
        return _CREDENTIALS.get(self.scheme)


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
