"""Says in one sentence why a hub gave nothing, and what to do about it."""

from __future__ import annotations

import errno

from sax.errors import CheckpointError, CheckpointNotFound, CheckpointUnreachable
from sax.references import HubReference

_REFUSED = (401, 403)
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


def told(exc: Exception, wanted: HubReference, endpoint: str) -> CheckpointError:
    """Turn an error of huggingface_hub into one of ours."""
    from huggingface_hub import errors

    if isinstance(exc, errors.GatedRepoError):
        return _not_found(
            f"{wanted} is gated: accept its terms at {endpoint}/{wanted.repo}, and start the model "
            "server with HF_TOKEN of the account that did"
        )
    if isinstance(exc, errors.RevisionNotFoundError):
        return _not_found(f"the hub {endpoint} has no revision {wanted.revision} of {wanted.repo}")
    if isinstance(exc, errors.RepositoryNotFoundError):
        return _not_found(
            f"the hub {endpoint} has no {wanted.repo}, or it is private: check the name, start the "
            "model server with HF_TOKEN of an account that may read it, or, if a folder was "
            "meant, write its absolute path"
        )
    if isinstance(exc, errors.HfHubHTTPError):
        return _of_status(exc, wanted, endpoint)
    if isinstance(exc, ValueError):
        return _not_found(f"{wanted}: {_first_line(exc)}")
    if isinstance(exc, OSError) and exc.errno in _NO_PLACE:
        return CheckpointError(
            f"{wanted} cannot be kept: {exc.strerror}; make room with `sax rm`, or set HF_HOME to "
            "another folder",
            param="checkpoint",
        )
    return _unreachable(wanted, endpoint, _first_line(exc))


def _of_status(exc: Exception, wanted: HubReference, endpoint: str) -> CheckpointError:
    status = getattr(getattr(exc, "response", None), "status_code", 0)
    if status in _REFUSED:
        return _not_found(
            f"the hub {endpoint} refuses {wanted} ({status}): start the model server with HF_TOKEN "
            "of an account that may read it"
        )
    if status == 404:
        return _not_found(f"the hub {endpoint} has no {wanted}")
    return _unreachable(wanted, endpoint, f"it answers {status}")


def _not_found(text: str) -> CheckpointNotFound:
    return CheckpointNotFound(text, param="checkpoint")


def _unreachable(wanted: HubReference, endpoint: str, why: str) -> CheckpointUnreachable:
    return CheckpointUnreachable(
        f"{wanted} is not in the cache of this model server, and the hub {endpoint} is not "
        f"reachable from it ({why}): check its network, set HF_ENDPOINT to a mirror, or copy the "
        "checkpoint to this machine and publish its path",
        param="checkpoint",
    )


def _first_line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]
