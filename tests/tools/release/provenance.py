"""The statement of where the files of a release come from, as in-toto and SLSA write it. Pure.

It is not signed. A release's workflow signs one of GitHub's own; this one is for those who build by
themselves, and for a look at what will be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FILE = "provenance.intoto.json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"


def statement(
    sums: Mapping[str, str],
    *,
    tag: str,
    commit: str,
    repository: str,
    builder: str,
    times: tuple[str, str],
    packages: Mapping[str, str],
) -> dict[str, Any]:
    """Return the statement.

    sums: SHA-256 in hexadecimal, by the name of the file.
    commit: of the sources, with "-dirty" at its end if they differ from it.
    repository: the address of the sources; "": it is not known.
    times: when building began and when it ended, in RFC 3339.
    packages: version of each package that builds.
    """
    sources = {"uri": f"git+{repository}" if repository else "git+file:.", "digest": {}}
    if not commit.endswith("-dirty"):
        sources["digest"] = {"gitCommit": commit}
    return {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": sum_}} for name, sum_ in sums.items()],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{repository or 'file:.'}#make-release-dry-run",
                "externalParameters": {"tag": tag, "commit": commit},
                "resolvedDependencies": [
                    sources,
                    *({"uri": f"pkg:pypi/{name}@{each}"} for name, each in packages.items()),
                ],
            },
            "runDetails": {
                "builder": {"id": builder},
                "metadata": {"startedOn": times[0], "finishedOn": times[1]},
            },
        },
    }
