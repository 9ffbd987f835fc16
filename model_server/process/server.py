"""One model server process: wires its parts and starts and stops them in order.

The loader is an argument, so tests run the same process with arithmetic instead of weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from model_server.config import ANY_ADDRESS, ModelServerConfig, advertised_host
from model_server.disaggregation.prefill_servers import PrefillServers
from model_server.engine.watchdog import tell_of_hang
from model_server.loading.loaded_model import Loader
from model_server.loading.memory_plan import Devices
from model_server.loading.saving import Saver
from model_server.process.health_page import HealthPage, LoopWatch, why_not_ready
from model_server.process.join import AdminProcess, Joiner, admin_command
from model_server.services.fencing import Fencing
from model_server.services.lm_service import LmService
from model_server.services.modelet import (
    CheckOverrides,
    ControlService,
    Modelet,
    PinCheckpoint,
    takes_every_checkpoint,
    takes_every_override,
)
from model_server.services.saxml_services import (
    AudioService,
    CustomService,
    MultimodalService,
    SpeechService,
    TranscriptService,
    VisionService,
)
from model_server.services.token_service import PrefillService, TokenService
from model_server.serving.adapter_servable import AdapterServable
from model_server.serving.admission import Admission
from model_server.serving.handler import Handler
from model_server.serving.metrics.registry import ModelServerMetrics, VersionRequests
from model_server.serving.passes.custom import CustomCalls
from model_server.serving.passes.embeddings import Embeddings
from model_server.serving.passes.gradients import GradientCalls
from model_server.serving.passes.images import VisionCalls
from model_server.serving.passes.sounds import AudioCalls
from model_server.serving.passes.speech import SpeechCalls
from model_server.serving.prefiller import Prefiller
from model_server.serving.remote_prefill import RemotePrefill
from model_server.serving.servables import Servables, load_static
from model_server.text.encoding import EncodingThreads
from sax.auth.credentials import Credentials
from sax.auth.security import CLOSING_FLAGS
from sax.client.location import find_admin
from sax.config import check_addresses
from sax.errors import NotLoaded, ReplicaLost, SaxError
from sax.host import is_loopback, open_warning
from sax.proto import (
    audio_pb2,
    audio_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    custom_pb2,
    custom_pb2_grpc,
    lm_pb2,
    lm_pb2_grpc,
    modelet_pb2,
    modelet_pb2_grpc,
    multimodal_pb2,
    multimodal_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
    speech_pb2,
    speech_pb2_grpc,
    tokens_pb2,
    tokens_pb2_grpc,
    transcripts_pb2,
    transcripts_pb2_grpc,
    vision_pb2,
    vision_pb2_grpc,
)
from sax.tracing import NO_TRACER, Tracer
from sax.types import ModelSpec, ServerInfo
from sax.wire.interceptor import ErrorInterceptor
from sax.wire.rpc import server_options

logger = logging.getLogger(__name__)

_SERVICES = (
    modelet_pb2.DESCRIPTOR.services_by_name["Modelet"].full_name,
    lm_pb2.DESCRIPTOR.services_by_name["LMService"].full_name,
    custom_pb2.DESCRIPTOR.services_by_name["CustomService"].full_name,
    audio_pb2.DESCRIPTOR.services_by_name["AudioService"].full_name,
    speech_pb2.DESCRIPTOR.services_by_name["SpeechService"].full_name,
    transcripts_pb2.DESCRIPTOR.services_by_name["TranscriptService"].full_name,
    vision_pb2.DESCRIPTOR.services_by_name["VisionService"].full_name,
    multimodal_pb2.DESCRIPTOR.services_by_name["MultimodalService"].full_name,
    tokens_pb2.DESCRIPTOR.services_by_name["TokenService"].full_name,
    prefill_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name,
    control_pb2.DESCRIPTOR.services_by_name["Control"].full_name,
)
_ONE_SEED = 1234  # of --deterministic_rng
_GRACE_S = 1.0  # for calls to end by themselves once every request is answered


class Hosts(Protocol):
    """The other hosts of this replica, and their events, called from another thread."""

    on_loss: Callable[[ReplicaLost], None] | None
    on_leaving: Callable[[str], None] | None  # a host received a stop signal

    def give_up(self, error: ReplicaLost) -> None:
        """End the replica for a reason of this host's: the others leave, `on_loss` is called."""
        ...


class ModelServer:
    """One model server; call `start`, then `stop`, on the same event loop."""

    def __init__(
        self,
        config: ModelServerConfig,
        loader: Loader,
        *,
        model_paths: Callable[[], Sequence[str]],
        compiles_while_serving: Callable[[], int],
        check_overrides: CheckOverrides = takes_every_override,
        pin_checkpoint: PinCheckpoint = takes_every_checkpoint,
        devices: Callable[[], Devices] | None = None,
        page: HealthPage | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`devices` is called in `start`; without it, flags alone give the memory. `page` may be
        serving already; without it, one is created.
        """
        self._check_overrides = check_overrides
        self._pin_checkpoint = pin_checkpoint
        self._config = config
        self._model_paths = model_paths
        self._ask_devices = devices
        self._devices = Devices(0, config.memory_limit)
        self.servables = Servables(loader, drain_s=config.drain_seconds)
        self._metrics = ModelServerMetrics(
            self.servables.loaded, compiles_while_serving, vllm_names=config.vllm_metric_names
        )
        versions = VersionRequests(self.servables.loaded, self.servables.version)
        self._metrics.registry.register(versions)
        self._admission = Admission()
        self._prefill = PrefillServers(config.prefill_servers, self._language_models)
        self._remote_prefill = RemotePrefill(self._prefill)
        self._encoding = EncodingThreads()
        self._tracer = tracer
        self._handler = Handler(
            self.servables,
            self._metrics,
            self._admission,
            self._remote_prefill,
            self._encoding,
            tracer,
            seed=_ONE_SEED if config.deterministic_rng else None,
            rejects_early=config.early_reject_on_dormant,
        )
        self._embeddings = Embeddings(self.servables, self._admission, self._encoding)
        authentication = config.security.authentication()
        self._tokens = TokenService(self._handler, self._embeddings, authentication)
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._server = grpc.aio.server(
            interceptors=[ErrorInterceptor(authentication)],
            options=server_options(config.max_message_bytes),
        )
        self._page = page or HealthPage()
        self._loop = LoopWatch()
        self._joiner = Joiner(self._admin, self.info)
        self._joining: asyncio.Task[None] | None = None
        self._static: asyncio.Task[None] | None = None  # the loads of the models of its flags
        self._admin_process = AdminProcess(admin_command(config)) if config.admin_port else None
        self.address = ""  # host:port, once started
        self.metrics_address = ""

    async def start(self) -> None:
        """Listen, then join. Raises OSError if a port is taken."""
        config = self._config
        self._tell_of_security()
        if self._ask_devices is not None:
            self._devices = self._ask_devices()
        self.servables.memory_total = self._devices.memory
        self._add_services()
        self.address = self._listen()
        await self._server.start()
        self._serve_page()
        await self._report(health_pb2.HealthCheckResponse.SERVING)
        self._prefill.start()
        self._static = asyncio.create_task(load_static(self.servables, config.static_models))
        if self._admin_process is not None:
            self._admin_process.start()
        if config.sax_cell:
            self._joining = asyncio.create_task(self._joiner.run())
        logger.info("model server listening on %s", self.address)

    async def stop(self) -> None:
        """Refuse new requests, let running ones end within the drain time, free everything."""
        self._page.waiting = lambda: "draining"
        leaving = asyncio.create_task(self._leave())
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        if not await self._admission.drain(self._config.drain_seconds):
            logger.warning("some requests did not finish within the drain time")
        await leaving
        await self._end_static()
        await self._remote_prefill.close()
        await self._prefill.stop()
        await self.servables.close(drain_s=0)
        self._tokens.end()
        self._encoding.close()
        self._loop.stop()
        ends = (asyncio.to_thread(each) for each in (self._page.close, self._tracer.close))
        await asyncio.gather(self._server.stop(_GRACE_S), *ends)
        if self._admin_process is not None:
            await self._admin_process.stop()
        logger.info("model server stopped")

    async def serve_until_signalled(self, hosts: Hosts | None = None) -> ReplicaLost | None:
        """Start, wait for SIGTERM or SIGINT on any host, then stop. Returns the error if a host is
        lost or hangs. Raises LoadFailed if a model of the flags cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[ReplicaLost | None] = loop.create_future()

        def end(why: ReplicaLost | None) -> None:
            if not ended.done():
                ended.set_result(why)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, None)
        if hosts is not None:
            hosts.on_loss = lambda error: _tell(loop, end, error)
            hosts.on_leaving = lambda host: _tell(loop, end, None)
        give_up = hosts.give_up if hosts else lambda error: _tell(loop, end, error)
        self.servables.on_hang = lambda hung: tell_of_hang(hung, give_up)
        await self.start()
        ended.add_done_callback(lambda _: self._static and self._static.cancel())
        failed = await self._static_failure()
        if failed is None and (lost := await ended) is not None:
            await self.lose(lost)
            return lost
        logger.info("draining")
        await self.stop()
        if failed is not None:
            raise failed
        return None

    async def _static_failure(self) -> SaxError | None:
        """Wait for the models of the flags; return why one could not be loaded."""
        assert self._static is not None
        await asyncio.wait([self._static])
        error = None if self._static.cancelled() else self._static.exception()
        if error is not None and not isinstance(error, SaxError):
            raise error
        return error

    async def _end_static(self) -> None:
        if self._static is not None:
            self._static.cancel()
            await asyncio.wait([self._static])

    async def lose(self, error: ReplicaLost) -> None:
        """Fail all requests at once: a host is lost or hangs, so there is nothing to drain."""
        self._page.waiting = lambda: error.text
        leaving = asyncio.create_task(self._leave())
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.servables.lose(error)
        await self._admission.drain(_GRACE_S)
        await leaving
        self._tokens.end()
        self._loop.stop()
        await self._server.stop(_GRACE_S)

    async def _leave(self) -> None:
        """Stop joining, and tell the admin."""
        if self._joining is not None:
            self._joining.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._joining
            await self._joiner.leave()

    def info(self) -> ServerInfo:
        config = self._config
        wanted = re.compile(config.model_filter_regex)
        return ServerInfo(
            address=self.address,
            debug_address=self.metrics_address,
            chip_type=config.platform_chip,
            chip_topology=config.platform_topology,
            model_paths=tuple(path for path in self._offered() if wanted.fullmatch(path)),
            tags=config.tags,
            incarnation=config.incarnation,
            memory_total=self._devices.memory,
            devices=self._devices.count,
        )

    def _offered(self) -> Sequence[str]:
        """The model paths that an admin server may send here."""
        config = self._config
        if not config.keep_statically_loaded_models:
            return self._model_paths()
        return list(dict.fromkeys(spec.model_path for spec in config.static_models))

    def _language_models(self) -> dict[str, ModelSpec]:
        """Models that the prefill servers must load too."""
        wanted: dict[str, ModelSpec] = {}
        for each in self.servables.language_models():
            if not isinstance(each, AdapterServable):
                with contextlib.suppress(NotLoaded):  # it is being unloaded
                    wanted[each.model_id] = self.servables.spec(each.model_id)
        return wanted

    async def _admin(self) -> str:
        config = self._config
        if config.admin is not None:
            return check_addresses(config.admin, "--admin")
        if config.admin_port:  # if it follows, it tells who leads
            host = "127.0.0.1" if config.host in ANY_ADDRESS else config.host
            return f"{host}:{config.admin_port}"
        return await find_admin(cell=config.cell)

    def _add_services(self) -> None:
        config, server, fencing = self._config, self._server, Fencing()
        modelet = Modelet(
            self.servables,
            self._admission,
            cell=config.cell,
            incarnation=config.incarnation,
            memory=self._devices.memory,
            fencing=fencing,
            security=config.security,
            keeps_own=config.keep_statically_loaded_models,
            saver=Saver(config.checkpoint_roots),
        )
        modelet_pb2_grpc.add_ModeletServicer_to_server(modelet, server)
        control = ControlService(
            fencing,
            self._check_overrides,
            config.security,
            self._pin_checkpoint,
            servables=self.servables,
        )
        control_pb2_grpc.add_ControlServicer_to_server(control, server)
        gradients = GradientCalls(self.servables, self._admission, self._encoding)
        language = LmService(self._handler, self._embeddings, gradients)
        lm_pb2_grpc.add_LMServiceServicer_to_server(language, server)
        custom = CustomService(CustomCalls(self.servables, self._admission))
        custom_pb2_grpc.add_CustomServiceServicer_to_server(custom, server)
        sounds = AudioCalls(self.servables, self._admission)
        audio_pb2_grpc.add_AudioServiceServicer_to_server(AudioService(sounds), server)
        transcripts_pb2_grpc.add_TranscriptServiceServicer_to_server(
            TranscriptService(sounds), server
        )
        seed = _ONE_SEED if config.deterministic_rng else None
        speech = SpeechCalls(self.servables, self._admission, seed)
        speech_pb2_grpc.add_SpeechServiceServicer_to_server(SpeechService(speech), server)
        images = VisionCalls(self.servables, self._admission)
        vision_pb2_grpc.add_VisionServiceServicer_to_server(VisionService(images), server)
        multimodal_pb2_grpc.add_MultimodalServiceServicer_to_server(
            MultimodalService(self._handler, images), server
        )
        tokens_pb2_grpc.add_TokenServiceServicer_to_server(self._tokens, server)
        prefiller = Prefiller(self.servables, expiry_s=config.kv_expiry_seconds)
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(
            PrefillService(prefiller, self._admission, config.security), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )

    def _listen(self) -> str:
        config = self._config
        try:
            port = config.security.listen(self._server, f"{config.host}:{config.port}")
        except RuntimeError as exc:
            raise OSError(f"cannot listen on {config.host}:{config.port}: {exc}") from exc
        return f"{self._host}:{port}"

    @property
    def _host(self) -> str:
        return advertised_host(self._config.host, self._config.advertise)

    def _serve_page(self) -> None:
        """Serve metrics and the real health state; until now the page said "starting"."""
        config, page = self._config, self._page
        page.show(self._metrics.registry)
        page.memory = self.servables.memory_table
        page.trouble, page.waiting = self._loop.trouble, self._why_not_ready
        self._loop.start()
        if config.metrics_ports:
            if not page.port:
                page.serve(config.host, *config.metrics_ports)
            self.metrics_address = f"{self._host}:{page.port}"
            logger.info("metrics on http://%s/metrics", self.metrics_address)

    def _why_not_ready(self) -> str:
        joined_for_s = self._joiner.joined_for_s if self._config.sax_cell else math.inf
        lost = [each for each in self.servables.language_models() if not each.computes]
        if lost:
            return f"{lost[0].model_id}: {lost[0].lost_islands}"
        return why_not_ready(
            joined_for_s=joined_for_s,
            loading=self.servables.loading(),
            loaded=[each.model_id for each in self.servables.loaded()],
        )

    def _tell_of_security(self) -> None:
        config = self._config
        if warning := open_warning(
            config.host,
            closed=config.security.authenticates,
            offers="load and unload models on this server and ask them anything",
            remedy=f"start it with {CLOSING_FLAGS}, or with --host 127.0.0.1",
        ):
            logger.warning("%s", warning)
        if not config.checkpoint_roots and not is_loopback(config.host):
            logger.warning(
                "whoever may publish a model can make this server read any file that it may read: "
                "start it with --checkpoint_roots"
            )
        if config.security.authenticates and config.sax_cell and not Credentials.ours().given:
            logger.warning(
                "this model server has no credentials, so an admin server that authenticates will "
                "not let it join: set SAX_TOKEN, SAX_TOKEN_FILE or SAX_TLS_CERT"
            )

    async def _report(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", *_SERVICES):
            await self._health.set(service, status)


def _tell(
    loop: asyncio.AbstractEventLoop, end: Callable[[ReplicaLost | None], None], why: Any
) -> None:
    with contextlib.suppress(RuntimeError):  # loop closed: already ended
        loop.call_soon_threadsafe(end, why)
