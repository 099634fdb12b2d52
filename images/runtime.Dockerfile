# The data plane: trainer, engine, driver, reward, environment, agent and buffer in one image, since they share a version.
# torch is PyPI's CUDA build. The build context is as for the operator, with locks/runtime.txt; see ../Dockerfile.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
WORKDIR /build
COPY wheelhouse/ wheelhouse/
COPY locks/runtime.txt lock.txt
RUN python3 -m zipfile -e wheelhouse/uv-*.whl uv \
 && chmod +x uv/*/scripts/uv \
 && python3 -m venv --without-pip /opt/moerl \
 && export UV_OFFLINE=1 UV_NO_CACHE=1 UV_LINK_MODE=copy VIRTUAL_ENV=/opt/moerl \
 && uv/*/scripts/uv pip install --no-index --find-links wheelhouse --no-verify-hashes --compile-bytecode -r lock.txt \
 && uv/*/scripts/uv pip install --no-index --no-deps --compile-bytecode wheelhouse/moerl-*.whl

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="moerl-runtime" org.opencontainers.image.licenses="Apache-2.0"
# The buffer's server; the local base image has it already.
RUN command -v redis-server >/dev/null \
 || (apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*)
COPY --from=build /opt/moerl /opt/moerl
ENV PATH=/opt/moerl/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 HOME=/tmp
WORKDIR /var/lib/moerl
USER 65532:65532
# The operator names the role: python -m moerl_runtime trainer|agent|engine|driver|reward|environment|buffer
CMD ["python", "-m", "moerl_runtime"]
