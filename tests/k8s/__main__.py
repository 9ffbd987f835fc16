"""`python -m tests.k8s`: render all manifests into files, check each, a line for each.

Exits 1 when anything is wrong. What is not checked is said as well.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from tests.k8s.check import Subject, check, subjects
from tests.k8s.cluster import NO_CLUSTER, dry_run, kubeconfig, own_namespace
from tests.k8s.finding import Finding
from tests.k8s.manifests import ROOT, CannotRender, objects_of
from tests.k8s.schemas import NO_CRDS, custom_schemas


def say(line: str) -> None:
    """To whoever started this."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """0 when everything is well."""
    parser = argparse.ArgumentParser("python -m tests.k8s", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "manifests")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.yaml"):
        old.unlink()
    if not custom_schemas():
        say(f"custom kinds are not checked: {NO_CRDS}")
    if not kubeconfig():
        say(NO_CLUSTER)
    every = subjects()
    with own_namespace() if kubeconfig() else nullcontext("") as namespace:
        failed = sum([_one(each, out, namespace) for each in every])
    say(f"{len(every)} renderings in {out}: {failed or 'none'} with errors")
    return 1 if failed else 0


def _one(subject: Subject, out: Path, namespace: str) -> bool:
    """Write, check and tell of one, with a dry run in a namespace unless it is ""."""
    try:
        text = subject.render()
    except CannotRender as problem:
        say(f"FAILED  {subject}: it does not render")
        say(f"        {problem}")
        return True
    name = str(subject).replace(" ", "-").replace("/", "-")
    (out / f"{name}.yaml").write_text(text)
    objects = objects_of(text)
    found = check(str(subject), objects)
    if namespace and (said := dry_run(text, namespace)):
        found.append(Finding("the API server", said))
    errors = [finding for finding in found if not finding.note]
    say(f"{'FAILED' if errors else 'ok':7} {subject}: {len(objects)} objects")
    for finding in errors:
        say(f"        {finding}")
    for text in dict.fromkeys(finding.text for finding in found if finding.note):
        say(f"        note: {text}")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
