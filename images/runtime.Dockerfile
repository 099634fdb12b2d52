# The data plane: trainer, engine, driver, reward, environment, agent and buffer in one image, since they share a version.
# torch is PyPI's CUDA build. The build context is as for the operator (../Dockerfile), with locks/runtime.txt.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
WORKDIR /build
COPY wheelhouse/ wheelhouse/
COPY locks/runtime.txt lock.txt
ENV UV_OFFLINE=1 UV_NO_CACHE=1 UV_LINK_MODE=copy VIRTUAL_ENV=/opt/moerl
RUN python3 -m zipfile -e wheelhouse/uv-*.whl uv && mv uv/*/scripts/uv /usr/local/bin/uv && chmod +x /usr/local/bin/uv \
 && python3 -m venv --without-pip /opt/moerl \
 && echo /opt/application >/opt/moerl/lib/python3.11/site-packages/application.pth \
 && uv pip install --no-index --find-links wheelhouse --no-verify-hashes --compile-bytecode -r lock.txt

FROM dependencies AS application
COPY application/ application/
RUN uv pip install --no-index --no-deps --compile-bytecode --target /opt/application application/moerl-*.whl

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="moerl-runtime" org.opencontainers.image.licenses="Apache-2.0"
# The account has a name: programs that ask who they are fail without one.
RUN grep -q ^moerl: /etc/passwd \
 || { echo moerl:x:65532:65532::/tmp:/usr/sbin/nologin >>/etc/passwd && echo moerl:x:65532: >>/etc/group; }
# The buffer's server; the local base image has it already.
RUN command -v redis-server >/dev/null \
 || { apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*; }
# Two layers: a new version of ours leaves the large one alone.
COPY --from=dependencies /opt/moerl /opt/moerl
COPY --from=application /opt/application /opt/application
# Safe path: a file in the working directory never stands in for a module.
ENV PATH=/opt/application/bin:/opt/moerl/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 HOME=/tmp
WORKDIR /var/lib/moerl
USER 65532:65532
# The operator names the role: python -m moerl_runtime trainer|agent|engine|driver|reward|environment|buffer
CMD ["python", "-m", "moerl_runtime"]
