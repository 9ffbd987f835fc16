"""Writes the dashboard of the Kubernetes manifests to sax.json, for a Grafana without Kubernetes.

python examples/dashboard/write_dashboard.py
"""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).parent
MANIFEST = HERE.parents[1] / "k8s" / "overlays" / "monitoring" / "dashboard.yaml"

if __name__ == "__main__":
    (HERE / "sax.json").write_text(yaml.safe_load(MANIFEST.read_text())["data"]["sax.json"])
