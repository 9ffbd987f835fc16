"""Kubernetes: the manifests, what renders them for a model, and what diagnoses a cluster.

`importlib.resources.files("k8s")` finds the manifests in an installed sax.
"""
