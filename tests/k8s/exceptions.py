"""What containers may do that others may not, with the reason. The only list of such things."""

from __future__ import annotations

# Google's own images, started as Google's controller starts them.
FOREIGN = {
    "pathways-rm": "the controller of PathwaysJobs starts it like this",
    "pathways-proxy": "the controller of PathwaysJobs starts it like this",
    "pathways-worker": "the controller of PathwaysJobs starts it like this",
    "colocated-python-sidecar": "the controller of PathwaysJobs starts it like this",
}
# Containers with this resource may run as root: the device files of a TPU belong to root alone.
ROOT_FOR = "google.com/tpu"
# What a container may add to no capabilities at all, and only together with ROOT_FOR.
MEMLOCK = "SYS_RESOURCE"
# Variables that are not ours, and who reads them.
VARIABLES = {
    "MEGASCALE_NUM_SLICES": "libtpu; emptied, as the tutorial does",
    "NAMESPACE": "the endpoint picker",
    "POD_NAME": "the endpoint picker",
    "JAX_PLATFORMS": "jax",
    "JAX_BACKEND_TARGET": "jax, of its proxy backend",
    "XCLOUD_ENVIRONMENT": "Pathways",
    "PATHWAYS_HEAD": "part of JAX_BACKEND_TARGET, as the controller names it",
}
