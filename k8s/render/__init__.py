"""sax on Kubernetes: renders manifests and diagnoses a live cluster.

Only `doctor.cluster` talks to a cluster and only `packaged` reads files; the rest is pure. Nothing
here is needed without Kubernetes.
"""
