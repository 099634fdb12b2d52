# A fresh clone needs no step before any of these; the first run of `make demo` or `make test` builds what it needs.
.PHONY: help demo test lint unit cluster-up cluster-down bench format
VENV := .venv/bin
ARGS ?=
# Most of the e2e tests' time is waiting, so two processes share two cores well, each with a cluster of its own; a file
# stays with one of them, in the order of collection: the long ones first.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

help:
	@echo "make demo          train a tiny MoE in real pods on this machine, and show it (as root)"
	@echo "make test          lint, unit and e2e tests"
	@echo "make unit          unit tests only      (ARGS='-k plan' narrows any test target)"
	@echo "make lint          ruff, mypy, import-linter"
	@echo "make cluster-up    a local Kubernetes with an AWS emulator; cluster-down ends it (ARGS=--purge: its data too)"
	@echo "make bench         measure the control plane and write docs/benchmarks.md"

demo:
	@/usr/bin/env python3 localcluster/moerl_local/demo/plan.py
	@localcluster/bootstrap.sh demo
	@MOERL_PLAN_SHOWN=1 $(VENV)/moerl demo $(ARGS)

test:
	@localcluster/bootstrap.sh test
	@$(MAKE) -s lint-only
	@$(VENV)/pytest tests $(PARALLEL) $(ARGS)

lint:
	@localcluster/bootstrap.sh lint
	@$(MAKE) -s lint-only

.PHONY: lint-only
lint-only:
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy
	@$(VENV)/lint-imports
	@$(VENV)/moerl crds --check crds

unit:
	@localcluster/bootstrap.sh lint
	@$(VENV)/pytest tests/unit $(ARGS)

cluster-up:
	@localcluster/bootstrap.sh test
	@$(VENV)/moerl cluster up $(ARGS)

cluster-down:
	@$(VENV)/moerl cluster down $(ARGS)

bench:
	@localcluster/bootstrap.sh test
	@$(VENV)/moerl bench control-plane $(ARGS)

format:
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .
