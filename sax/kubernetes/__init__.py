"""sax on Kubernetes: what is rendered for a cluster, and what is wrong with a live one.

Everything but `cluster` is pure: values in, values out. Nothing here is needed without Kubernetes.
"""
