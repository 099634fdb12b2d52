# The operator: control plane only, no torch. The build context holds this file, locks/operator.txt and wheelhouse/ (the
# wheels of that lock, of uv and of moerl), so the build needs no network and runs nothing that the lock does not name;
# hashes are checked where the wheelhouse is filled, since a wheel built from checked sources has none in the lock.
# `moerl image build operator` makes the context and builds; by hand, see CONTRIBUTING.md.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
WORKDIR /build
COPY wheelhouse/ wheelhouse/
COPY locks/operator.txt lock.txt
RUN python3 -m zipfile -e wheelhouse/uv-*.whl uv \
 && chmod +x uv/*/scripts/uv \
 && python3 -m venv --without-pip /opt/moerl \
 && export UV_OFFLINE=1 UV_NO_CACHE=1 UV_LINK_MODE=copy VIRTUAL_ENV=/opt/moerl \
 && uv/*/scripts/uv pip install --no-index --find-links wheelhouse --no-verify-hashes --compile-bytecode -r lock.txt \
 && uv/*/scripts/uv pip install --no-index --no-deps --compile-bytecode wheelhouse/moerl-*.whl

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="moerl-operator" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/moerl /opt/moerl
# Safe path: a file in the working directory never stands in for a module.
ENV PATH=/opt/moerl/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 HOME=/tmp
WORKDIR /var/lib/moerl
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["moerl"]
CMD ["operator", "run"]
