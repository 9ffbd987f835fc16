"""A start that finds fewer records than a beat or a list of servers names."""

import shutil
from pathlib import Path

import httpx
import pytest

from admin_server.config import AdminConfig
from admin_server.leadership import LeadTiming
from admin_server.process import running
from admin_server.storage.envelope import CorruptLog
from sax.errors import StateLost
from sax.types import ModelSpec
from tests.admin_server.conftest import FAST, eventually

QUICK = LeadTiming(beat_s=0.1, patience_s=0.3)


def spec(name: str) -> ModelSpec:
    return ModelSpec(model_id=f"/sax/test/{name}", model_path="llama", checkpoint="/c", replicas=0)


async def publish(config: AdminConfig, *names: str) -> None:
    async with running(config, FAST) as admin:
        for name in names:
            await admin.cell.publish(spec(name))


def cell_folder(config: AdminConfig) -> Path:
    return Path(config.fs_root) / "sax/test"


async def test_a_start_without_the_last_record_says_what_is_missing_and_what_to_do(config):
    await publish(config, "a", "b")
    (cell_folder(config) / "records" / f"{3:012d}").unlink()
    with pytest.raises(CorruptLog, match=r"records/0+3 .*are missing.*Restore them from a backup"):
        await publish(config)


async def test_a_list_of_servers_names_the_last_record_too(config):
    await publish(config, "a", "b")
    async with running(config, FAST):  # writes the list anew, with the record of this leader: 4
        await eventually(lambda: list((cell_folder(config) / "roster").glob("*4/*")))
    shutil.rmtree(cell_folder(config) / "beats")
    (cell_folder(config) / "records" / f"{4:012d}").unlink()
    with pytest.raises(CorruptLog, match="list of model servers names record 4"):
        async with running(config, FAST, QUICK) as admin:
            await admin.life  # it follows first: no beat says that the leader is gone


async def test_a_start_goes_on_without_them_once_the_beats_and_the_list_are_deleted(config):
    await publish(config, "a", "b")
    (cell_folder(config) / "records" / f"{3:012d}").unlink()
    for kind in ("beats", "roster"):  # a short life may have left no list
        shutil.rmtree(cell_folder(config) / kind, ignore_errors=True)
    async with running(config, FAST, QUICK) as admin:
        await eventually(lambda: admin.role.cell)
        assert set(admin.cell.ledger.state.models) == {"/sax/test/a"}


@pytest.mark.extended
@pytest.mark.parametrize("status_port", [0])
async def test_a_leader_whose_folder_is_deleted_says_so_everywhere_and_acknowledges_nothing(config):
    async with (
        running(config, FAST) as admin,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin.status_port}") as http,
    ):
        await admin.cell.publish(spec("a"))
        kept = cell_folder(config).parents[1]
        kept.rename(kept.with_name("moved"))
        await eventually(lambda: admin.role.health.replaced)  # by a beat, before any change
        with pytest.raises(StateLost):
            await admin.cell.publish(spec("b"))
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "deleted or replaced" in ready.json()["reason"]
        metrics = (await http.get("/metrics")).text
        assert "sax_admin_store_replaced 1.0" in metrics
        kept.with_name("moved").rename(kept)
        await eventually(lambda: not admin.role.health.failing)
        await admin.cell.publish(spec("b"))
    await publish(config)
