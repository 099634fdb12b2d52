#!/usr/bin/env bash
# Brings a fresh checkout to the point where `moerl` runs: Debian packages, .venv, the cluster's programs.
# Shared by the Makefile and .ci/run, so that a person and the CI walk the same way.
#
#   localcluster/bootstrap.sh demo|test|lint
#
# What is there already is left alone; a second call takes about a second. Downloads overlap compiling.
# Caches: programs, images and tools in $MOERL_CACHE; uv and Go keep their own.
set -euo pipefail

purpose=${1:?usage: bootstrap.sh demo|test|lint}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

UV_VERSION=0.13.9
PYTHON=/usr/bin/python3.11  # the path that a pod's base image has too: pods can use this .venv
export MOERL_CACHE=${MOERL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moerl}
export UV_PROJECT_ENVIRONMENT=$root/.venv UV_PYTHON_DOWNLOADS=never
logs=$MOERL_CACHE/logs
timings=${MOERL_BOOTSTRAP_TIMINGS:-$MOERL_CACHE/bootstrap-timings.tsv}

fail() { echo "moerl: $*" >&2; exit 1; }
say() { echo "[bootstrap] $*"; }
now() { date +%s; }
took() { printf '%s\t%s\n' "$1" "$(($(now) - $2))" >>"$timings"; }

# A file that proves a package is there, and the package. Only what the purpose needs.
needs() {
  echo "$PYTHON python3.11-venv"
  [ "$purpose" = lint ] && return
  [ "$node" = yes ] || return 0
  echo "/usr/bin/containerd containerd" "/usr/sbin/runc runc" "/usr/lib/cni/bridge containernetworking-plugins" \
    "/usr/sbin/iptables iptables" "/usr/sbin/ip iproute2" "/usr/sbin/debootstrap debootstrap"
  [ "$purpose" = demo ] && return
  echo "/usr/bin/redis-server redis-server" "/usr/sbin/dockerd docker.io"
}

missing_packages() {
  local words file
  read -ra words <<<"$(needs | tr '\n' ' ')"
  for ((i = 0; i < ${#words[@]}; i += 2)); do
    file=${words[i]}
    # Debian before merged /usr, and packages that moved from sbin to bin, keep the name but not the folder.
    [ -e "$file" ] || [ -e "${file/\/sbin\///bin/}" ] || [ -e "${file#/usr}" ] || echo "${words[i + 1]}"
  done
  "$PYTHON" -m ensurepip --version >/dev/null 2>&1 || echo python3.11-venv
}

preflight() {
  node=no
  [ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ] && node=yes
  if [ "$purpose" = demo ] && [ "$node" = no ]; then
    fail "the demo runs real pods, which needs root on Linux: run \`sudo make demo\`, or \`make cluster-up\` for a control plane with fake nodes only"
  fi
  if [ "$purpose" != lint ]; then
    command -v go >/dev/null || fail "Go is not on PATH: install Go 1.26 or later from https://go.dev/dl"
  fi
  local want=1 free
  [ -e .venv/.moerl-lock ] || want=$((want + 7))
  [ "$purpose" = lint ] || compgen -G "$MOERL_CACHE/bin/*/kube-apiserver" >/dev/null || want=$((want + 6))
  mkdir -p "$MOERL_CACHE" 2>/dev/null || fail "cannot write $MOERL_CACHE: make it writable or set MOERL_CACHE to another folder"
  free=$(df -Pk "$MOERL_CACHE" | awk 'NR==2 {print int($4 / 1048576)}')
  [ "$free" -ge "$want" ] || fail "disk nearly full: $free GiB free at $MOERL_CACHE, $want GiB are needed: free some, or set MOERL_CACHE to another disk"
}

install_packages() {
  local list=() began
  mapfile -t list < <(missing_packages | sort -u)
  [ ${#list[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "missing: ${list[*]} (Debian's package names): install them with your system's package manager"
  [ "$(id -u)" = 0 ] || fail "missing: ${list[*]}: run \`sudo apt-get install ${list[*]}\`"
  say "apt-get install ${list[*]}"
  began=$(now)
  # Servers that come with packages must not start: the local cluster starts its own, in its own folders.
  local policy=/usr/sbin/policy-rc.d ours=no
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && ours=yes; }
  if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${list[@]}"; } \
    >"$logs/apt.log" 2>&1 </dev/null; then
    [ $ours = no ] || rm -f $policy
    fail "apt-get install ${list[*]} failed: $(grep -m1 -E '^(E|Err):?' "$logs/apt.log" || tail -1 "$logs/apt.log") (all of it: $logs/apt.log)"
  fi
  [ $ours = no ] || rm -f $policy
  took packages "$began"
}

# uv in a folder of its own: Debian's Python takes no packages from outside.
install_uv() {
  uv=$MOERL_CACHE/tools/uv-$UV_VERSION/bin/uv
  [ -x "$uv" ] && return
  say "uv $UV_VERSION"
  local folder=${uv%/bin/uv}
  rm -rf "$folder"
  { "$PYTHON" -m venv "$folder" && "$folder/bin/python" -m pip install -q --disable-pip-version-check "uv==$UV_VERSION"; } \
    >"$logs/uv.log" 2>&1 || fail "installing uv $UV_VERSION failed: $(tail -1 "$logs/uv.log")"
}

lock_hash() { { sha256sum <locks/dev.txt; "$PYTHON" -V; echo "$root"; } | sha256sum | cut -c1-16; }
project_hash() { sha256sum <pyproject.toml | cut -c1-16; }

make_venv() { [ -x .venv/bin/python ] || "$uv" venv -q --python "$PYTHON" .venv; }

# Everything of locks/dev.txt (torch is most of it), then this project as an editable install.
sync_venv() {
  local began
  began=$(now)
  if [ "$(cat .venv/.moerl-lock 2>/dev/null)" != "$(lock_hash)" ]; then
    # Compiled here once (half a minute of one core), since pods mount .venv read-only and could not keep it.
    "$uv" pip sync -q --python .venv/bin/python --compile-bytecode --require-hashes locks/dev.txt || return
    rm -f .venv/.moerl-project
    lock_hash >.venv/.moerl-lock
    took python "$began"
  fi
  if [ "$(cat .venv/.moerl-project 2>/dev/null)" != "$(project_hash)" ]; then
    "$uv" pip install -q --python .venv/bin/python --no-deps -e . || return
    project_hash >.venv/.moerl-project
  fi
}

# The few packages the builder of the programs imports, so that compiling need not wait for torch.
venv_for_building() {
  awk '/^[a-z0-9]/ {keep = /^(rich|markdown-it-py|mdurl|pygments)==/} keep' locks/dev.txt >"$logs/first.txt"
  "$uv" pip install -q --python .venv/bin/python --no-deps --require-hashes -r "$logs/first.txt"
}

programs() {
  PYTHONPATH=localcluster .venv/bin/python - "$1" "$node" <<'PY'
import sys
from moerl_local.cluster import build
from moerl_local.cluster.errors import ClusterError
ask, node = sys.argv[1:]
names = build.CONTROL_PLANE + (build.NODE if node == "yes" else ())
try:
    if ask == "missing":
        sys.exit(0 if build.missing(names) else 3)
    build.build(names)
except ClusterError as error:
    sys.exit(f"moerl: {error}")
PY
}

# Fetches the Go modules while packages and Python are still being installed.
fetch_modules() {
  local module
  for module in kubernetes etcd kwok; do
    (cd "localcluster/go/$module" && CGO_ENABLED=0 GOFLAGS= GOWORK=off go list -deps ./... >/dev/null) || return
  done
}

children=()
stop_children() { [ ${#children[@]} -eq 0 ] || kill "${children[@]}" 2>/dev/null || true; }
trap stop_children EXIT

main() {
  preflight
  mkdir -p "$logs"
  : >"$timings"
  local cold=no began status
  [ "$purpose" = lint ] || compgen -G "$MOERL_CACHE/bin/*/kube-apiserver" >/dev/null || cold=yes
  if [ $cold = yes ]; then
    fetch_modules >"$logs/modules.log" 2>&1 &
    children+=($!)
  fi
  install_packages
  install_uv
  make_venv
  if [ "$purpose" = lint ]; then
    [ -e .venv/.moerl-lock ] || say "Python packages of locks/dev.txt (about 2.6 GB when cold)"
    sync_venv || fail "installing the Python packages of locks/dev.txt failed"
    return
  fi
  if [ "$(cat .venv/.moerl-lock 2>/dev/null)" != "$(lock_hash)" ]; then
    say "Python packages of locks/dev.txt (about 2.6 GB when cold), while Go compiles"
    venv_for_building || fail "installing the first Python packages failed"
  fi
  { sync_venv && after_venv; } >"$logs/python.log" 2>&1 &
  local python_job=$!
  children+=("$python_job")
  status=0
  programs missing || status=$?
  [ $status = 0 ] || [ $status = 3 ] || exit 1
  if [ $status = 0 ]; then
    began=$(now)
    programs build || exit 1
    took programs "$began"
  fi
  if kill -0 "$python_job" 2>/dev/null; then say "waiting for the Python packages"; fi
  wait "$python_job" || fail "installing the Python packages of locks/dev.txt failed: $(tail -1 "$logs/python.log") (all of it: $logs/python.log)"
  children=()
}

# What may be made beside the compiler once Python is complete.
after_venv() {
  [ "$purpose" = demo ] || return 0
  .venv/bin/python -m moerl_local.demo.prepare
}

main
