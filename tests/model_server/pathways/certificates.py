"""Certificates for links."""

from __future__ import annotations

from pathlib import Path

import trustme

from model_server.pathways.link.safety import LinkSafety


def issued(folder: Path, name: str, authority: trustme.CA) -> LinkSafety:
    """Write a certificate of an authority for 127.0.0.1."""
    found = authority.issue_cert("127.0.0.1")
    cert, key, ca = (folder / f"{name}.{kind}" for kind in ("cert", "key", "ca"))
    found.cert_chain_pems[0].write_to_path(cert)
    found.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    return LinkSafety(tls_cert=str(cert), tls_key=str(key), tls_ca=str(ca))
