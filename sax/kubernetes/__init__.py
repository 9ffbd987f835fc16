"""sax on Kubernetes: renders manifests and diagnoses a live cluster.

Everything but `doctor.cluster` and `packaged` is pure. Nothing here is needed without Kubernetes.
"""
