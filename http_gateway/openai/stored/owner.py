"""Whose objects a request may see: those of its key, if keys exist."""

from __future__ import annotations

import hashlib

from sax.auth.acl import caller


def owner_folder() -> str:
    """Return the name of the folder of the caller's objects."""
    return folder_of_key(caller().name)


def folder_of_key(name: str) -> str:
    """Return the folder of a key's objects; a key's name may hold characters that no folder has."""
    return hashlib.sha256(name.encode()).hexdigest()[:32] if name else "everyone"
