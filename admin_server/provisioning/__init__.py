"""Provisioning: request missing model servers from Kubernetes."""
