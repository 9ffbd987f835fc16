"""The Kubernetes manifests, for kustomize and for `sax k8s render`; no code.

`importlib.resources.files("k8s")` finds them in an installed sax.
"""
