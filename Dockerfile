# The images of a cell: control (admin server, gateway, command line; no jax), model-cpu, model-tpu
# and model-cuda. docs/how_to/images.md says how to build and to run them.
#
# BASE needs Python 3.11 as `python3`, with venv; for the same image every time name it by its
# digest: --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm

# --- what builds and does not stay ----------------------------------------------------------------

FROM ${BASE} AS build
# The seconds that files in the wheel bear: the same tree makes the same wheel.
ARG SOURCE_DATE_EPOCH=315532800
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt requirements/
RUN { python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
        || { echo 'BASE must have Python 3.11 as python3: the locks are for it'; exit 1; }; } \
    && python3 -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes \
        -r requirements/build.txt \
    && python3 -m venv --without-pip /opt/sax

# With the native CPU kernels, for all machines of this type. Zig from PyPI compiles them where the
# base has no compiler.
FROM build AS wheel
ARG REVISION=unknown
COPY . .
RUN SAX_BUILD_COMMIT="$REVISION" /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation \
    --wheel-dir /wheels . \
    && { python3 -c 'import sys, zipfile; names = zipfile.ZipFile(sys.argv[1]).namelist(); \
        sys.exit(not any("kernels/cpu/_native" in each for each in names))' /wheels/*.whl \
        || { echo 'the native CPU kernels could not be compiled'; exit 1; }; }

# Bytecode is made here, once, and never looked after again: nothing can be written where it runs.

FROM build AS build-control
COPY requirements/control.txt requirements/
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --require-hashes -r requirements/control.txt
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --no-index /wheels/*.whl \
    && /opt/sax/bin/python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/sax/lib

FROM build AS build-model-cpu
COPY requirements/model-cpu.txt requirements/
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --require-hashes -r requirements/model-cpu.txt
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --no-index /wheels/*.whl \
    && /opt/sax/bin/python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/sax/lib

FROM build AS build-model-tpu
COPY requirements/model-tpu.txt requirements/
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --require-hashes -r requirements/model-tpu.txt
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --no-index /wheels/*.whl \
    && /opt/sax/bin/python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/sax/lib

FROM build AS build-model-cuda
COPY requirements/model-cuda.txt requirements/
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --require-hashes -r requirements/model-cuda.txt
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/sax/bin/python3 install --no-cache-dir --no-compile \
    --no-deps --no-index /wheels/*.whl \
    && /opt/sax/bin/python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/sax/lib

# --- what runs ------------------------------------------------------------------------------------

FROM ${BASE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.source=${SOURCE} \
      org.opencontainers.image.licenses=Apache-2.0
# Works as any user, on a file system that cannot be written to. Modules come from /opt/sax and
# PYTHONPATH, never from the folder a process happens to be in.
ENV PATH=/opt/sax/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1
COPY LICENSE /licenses/LICENSE
WORKDIR /tmp
USER 10001:10001
STOPSIGNAL SIGTERM

FROM runtime AS model-runtime
# gRPC, and /healthz, /readyz and /metrics
EXPOSE 10001 10003
ENTRYPOINT ["python", "-m", "sax.container", "model_server"]

FROM model-runtime AS model-cuda
LABEL org.opencontainers.image.title=sax-model-cuda
# What the container toolkit of NVIDIA gives a container: no more than computing needs.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-model-cuda /opt/sax /opt/sax

FROM model-runtime AS model-tpu
LABEL org.opencontainers.image.title=sax-model-tpu
COPY --from=build-model-tpu /opt/sax /opt/sax

FROM model-runtime AS model-cpu
LABEL org.opencontainers.image.title=sax-model-cpu
# On a machine with an accelerator, too.
ENV JAX_PLATFORMS=cpu
COPY --from=build-model-cpu /opt/sax /opt/sax

FROM runtime AS control
LABEL org.opencontainers.image.title=sax-control
# admin server: gRPC, status page; gateway
EXPOSE 10000 10002 8888
COPY --from=build-control /opt/sax /opt/sax
ENTRYPOINT ["python", "-m", "sax.container"]

# The same image by its two servers, for manifests that start an image without arguments, as those
# written for Saxml's images do.
FROM control AS admin-server
ENTRYPOINT ["python", "-m", "sax.container", "admin_server"]

FROM control AS http
ENTRYPOINT ["python", "-m", "sax.container", "http_gateway"]
