# Everything works in a .venv of this checkout. `make demo` and `make test` set up what they
# need by themselves, and name Debian packages before they install them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Real sockets, clocks and emulated nodes: what failed beside others is tried once more alone,
# and both results are printed. With nothing failed before, it fails too.
ALONE  := $(BIN)/pytest -q --last-failed --last-failed-no-failures none
STAMP  := $(VENV)/.installed
PYTEST := $(BIN)/pytest

.PHONY: help venv setup demo test test-unit test-vm test-more test-full test-kill test-cluster \
	test-api test-nodes bench bpf protos lint docs clean

help:
	@echo "make demo       the main job on a disposable node (sets everything up)"
	@echo "make test       unit tests, and VM tests on the stock flavours (sets everything up)"
	@echo "make test-more  VM tests of the other kinds on the stock flavours"
	@echo "make test-kill  SIGKILL at every step, on the stock flavours (long)"
	@echo "make test-full  VM tests on the kernel with all error-injection options"
	@echo "make test-cluster  a real Kubernetes, nodes in VMs (needs Go 1.26; the first time it builds)"
	@echo "make test-api   its part without nodes (cert-manager too)"
	@echo "make test-nodes its part that installs, uses, kills and removes the agents on two nodes"
	@echo "make bench      benchmarks: ratios against the shell tools, in one run"
	@echo "make lint       ruff, mypy, generated files are current"
	@echo "make bpf        compile the BPF programs"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) tools/setup.py venv $(VENV)
	@touch $@

venv: $(STAMP)

setup: $(STAMP)
	@$(BIN)/python tools/setup.py packages
	@$(MAKE) --no-print-directory bpf

bpf:
	@$(MAKE) --no-print-directory -C bpf

protos: $(STAMP)
	@PYTHON=$(BIN)/python protos/generate.sh

demo: setup
	@$(BIN)/faultctl demo $(DEMO_ARGS)

test: setup lint test-unit test-vm

test-unit: $(STAMP)
	$(PYTEST) -q -n 4 tests/unit || $(ALONE) tests/unit

# The main job's VM tests, and quick ones of other kinds; `make test-more` has the rest.
VM_CORE := $(addprefix tests/vm/test_,latent_sector.py latent_stacks.py database.py \
	disk_outage.py disk_flaky.py disk_delay.py disk_corrupt.py disk_drop_writes.py \
	bind_block.py dmctl.py bio.py kinds_table.py fd_exhaust.py sysctl.py kill_kind.py)
VM_MORE := $(filter-out $(VM_CORE),$(wildcard tests/vm/test_*.py))
STOCK   := FAULTCTL_VM_FLAVOURS=debian-12,debian-13
SIDE    := -n 2 --dist loadgroup

test-vm: setup
	$(STOCK) $(PYTEST) -q $(SIDE) -m "not slow" $(VM_CORE) || $(STOCK) $(ALONE) -m "not slow" $(VM_CORE)

test-more: setup
	$(STOCK) $(PYTEST) -q $(SIDE) -m "not slow" $(VM_MORE)

test-kill: setup
	$(STOCK) $(PYTEST) -q $(SIDE) -m slow tests/vm

test-full: setup
	FAULTCTL_VM_FLAVOURS=full $(PYTEST) -q -m "not slow" tests/vm

# Kubernetes, etcd and cert-manager are built from Go modules, once. With KUBECONFIG set, the tests
# of the API alone run on that cluster.
test-cluster: setup
	@$(BIN)/python tools/setup.py packages cluster
	$(PYTEST) -q tests/cluster

# Its part without nodes: a control plane on loopback.
API_ALONE := $(addprefix tests/cluster/test_,api.py cert_manager.py kube_api.py \
	object_faults.py object_runs.py deploy_api.py portforward.py manifests.py)

test-api: $(STAMP)
	$(PYTEST) -q $(API_ALONE) || $(ALONE) $(API_ALONE)

# On the kernel with all error-injection options, which is built where there is none.
test-nodes: setup
	@$(BIN)/python tools/setup.py packages cluster
	$(PYTEST) -q -m "not slow" tests/cluster/test_deploy_nodes.py

bench: setup
	$(BIN)/python -m pytest -q -s tests/bench

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/setup.py check-protos

docs: $(STAMP)
	$(BIN)/python -m controller.docs

clean:
	rm -rf $(VENV) nodeagent/bpf_objects .mypy_cache .ruff_cache .pytest_cache
