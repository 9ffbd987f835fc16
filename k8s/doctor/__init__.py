"""Diagnosis of a live cluster: `sax k8s doctor`."""
