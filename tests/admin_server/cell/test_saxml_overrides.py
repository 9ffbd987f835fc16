"""Parameters of Saxml's classes at a publish: refused by name, or accepted with a warning."""

from __future__ import annotations

import pytest

from sax.errors import InvalidRequest
from sax.types import ModelSpec
from tests.each_case import each_case

M = "/sax/test/m"
LM = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"


def spec(**overrides: str) -> ModelSpec:
    return ModelSpec(model_id=M, model_path=LM, checkpoint="None", replicas=1, overrides=overrides)


@pytest.mark.virtual_time
@each_case(
    "key, text, says",
    [
        ("BATCH_SIZE", "[1, 0]", "give a whole number of 1 or more"),
        ("EXTRA_INPUTS", '{"heat": 1}', "heat is not supported"),
        ("PREPEND_SOS", "false", "add_bos_token"),
        ("FPROP_DTYPE", '"float32"', "use DTYPE"),
        ("NUM_SAMPLES", "None", "write null"),
    ],
)
async def test_an_admin_server_alone_refuses_what_no_load_can_take(key, text, says, admin):
    with pytest.raises(InvalidRequest, match=says):
        await admin.cell.publish(spec(**{key: text}))
    assert admin.cell.models() == []
    await admin.cell.publish(spec(NUM_LAYERS="2"))
    with pytest.raises(InvalidRequest, match=says):
        await admin.cell.update(spec(**{key: text}))
    found = admin.cell.find(M)
    assert found.spec.overrides == {"NUM_LAYERS": "2"}
    assert found.published_at_s == admin.cell.versions(M)[0].at_s > 0
    await admin.cell.unpublish(M)


@pytest.mark.virtual_time
async def test_what_has_no_effect_is_warned_of_as_long_as_it_is_published(admin, start_modelet):
    await admin.cell.publish(spec(BUCKET_KEYS="[128, 512]", NUM_LAYERS="2"))
    (warning,) = admin.cell.find(M).warnings
    assert warning.startswith("BUCKET_KEYS has no effect here: ")
    await start_modelet(paths=(LM,))
    assert admin.cell.find(M).warnings == (warning,)
    await admin.cell.update(spec(NUM_LAYERS="2"))
    assert admin.cell.find(M).warnings == ()
