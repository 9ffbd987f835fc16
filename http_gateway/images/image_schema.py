"""Schemas of images in bodies."""

from __future__ import annotations

from http_gateway.images.image_link import DETAILS
from http_gateway.openapi import Schema
from sax.fields.field import RequestRoute
from sax.fields.table import field

_BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
DETAIL: Schema = {"enum": [None, *DETAILS]}


def base64_schema(route: RequestRoute, name: str) -> Schema:
    return {"type": "string", "pattern": f"^{_BASE64}$", "maxLength": field(route, name).bytes}


def url_schema(route: RequestRoute, name: str) -> Schema:
    return {
        "type": "string",
        "pattern": f"^data:image/(jpe?g|png|webp);base64,{_BASE64}$",
        "maxLength": field(route, name).bytes,
        "description": "Or an http or https URL of a host in the gateway's --media_hosts.",
    }
