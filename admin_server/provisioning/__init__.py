"""Machines for models: an admin server that asks Kubernetes for the model servers that it lacks."""
