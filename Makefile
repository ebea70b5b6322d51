# What you can run in this checkout. Each target installs what it needs.

PYTHON ?= python3
INTERPRETER := $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON))# `make wheelhouse PYTHON=3.12` means the host's
VENV := .venv
SUITE := $(VENV)/.complete
KERNELS := .venv-kernels/.complete
PEERS := .venv-peers/.complete

# A part of the playbook on one host: pyinfra with the module that does it
define part
@test -n "$(HOST)" || { echo 'make $@ HOST=NAME: a host of $(or $(INVENTORY),inventory.py)' >&2; exit 2; }
@$(VENV)/bin/pyinfra -y --limit '$(HOST)' $(or $(INVENTORY),inventory.py) $(1) $(foreach setting,$(DATA),--data '$(setting)')
endef

.PHONY: help rehearse record test test-without-servers test-units test-hosts test-install test-servers test-release test-faults test-fleet test-kernels lint bench bench-peers bench-serving verify stop start restart reboot rollback logs bundle remove status drift lock wheelhouse node-down clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

rehearse: $(SUITE) packages ## play the whole job on a simulated host, twice; HOSTS=2: on several; KEEP=1, REBUILD=1, MONITORING=1; your host: HARDWARE=NAME SETTINGS=NAME
	@$(VENV)/bin/python -m tests.node.rehearse $(if $(HOSTS),--hosts '$(HOSTS)') $(if $(HARDWARE),--hardware '$(HARDWARE)') $(if $(SETTINGS),--settings '$(SETTINGS)')

record: $(SUITE) ## record a host's hardware for rehearsals and reports of faults: HOST=NAME; INVENTORY. Changes nothing on it
	@test -n "$(HOST)" || { echo 'make record HOST=NAME: a host of $(or $(INVENTORY),inventory.py)' >&2; exit 2; }
	@$(VENV)/bin/pyinfra -y --limit '$(HOST)' $(or $(INVENTORY),inventory.py) tasks.record.hardware

test: ## run every test: first those without servers, side by side, then those that ask servers
	@$(MAKE) --no-print-directory -j3 --output-sync=target test-without-servers
	@$(MAKE) --no-print-directory test-servers

test-without-servers: test-units test-hosts test-install test-kernels

test-units: $(SUITE) browser gpg promtool ## run the tests that need no simulated host
	@$(VENV)/bin/python -m pytest --ignore tests/node

test-hosts: $(SUITE) packages ## run the tests on simulated hosts that serve nothing
	@$(VENV)/bin/python -m pytest tests/node -m 'not serving' --ignore tests/node/test_release.py

test-install: $(SUITE) packages ## install the default GPU release for real on a simulated host; 10 GB
	@$(VENV)/bin/python -m pytest tests/node/test_release.py

test-servers: $(SUITE) packages ## run the tests that ask servers on a simulated host; the machine should have no other load
	@$(VENV)/bin/python -m pytest tests/node -m serving

test-release: $(SUITE) packages ## as test-install, with 0.5.17 beside it, and both ways without an index (docs/package-sources.md); 20 GB
	@EVERY_RELEASE=1 $(VENV)/bin/python -m pytest tests/node/test_release.py tests/node/test_air_gap.py

test-faults: $(SUITE) packages ## CRASHES=1, ALARMS=1: write the tables of what crashes cost, and of which alert fires when; PART=1/40: end a first run at every operation, that part of it (docs/reliability.md); else break releases at FAULTS=20 points; SEED=N
ifdef CRASHES
	@$(VENV)/bin/python -m tests.node.crashes --write
else ifdef ALARMS
	@$(VENV)/bin/python -m tests.node.alarms --write
else ifdef PART
	@$(VENV)/bin/python -m tests.node.broken_runs --part $(PART) --seed $(or $(SEED),1) --together $(or $(TOGETHER),1)
else
	@FAULTS=$(or $(FAULTS),20) SEED=$(or $(SEED),$(shell date +%s)) $(VENV)/bin/python -m pytest tests/node/test_faults.py tests/node/test_panels.py tests/node/test_parts.py tests/node/test_revisions.py tests/node/test_take_back.py tests/node/test_upgrade.py tests/node/test_watchdog.py tests/node/test_model_of_ones_own.py
endif

test-fleet: $(SUITE) packages ## several hosts that serve together, and what happens to them with people on it; HOSTS=2, 3 or 4
	@FLEET=1 HOSTS=$(or $(HOSTS),4) $(VENV)/bin/python -m pytest -s tests/node/test_fleet.py tests/node/test_fleet_members.py

test-kernels: $(KERNELS) ## test the GPU kernels alone, in Triton's interpreter and compiled for sm_120; no GPU needed
	@.venv-kernels/bin/python -m pytest tests/kernels -W ignore::DeprecationWarning

lint: $(SUITE) shellcheck ## check the code: ruff, mypy --strict on tasks/, tools/ and files/bin, shellcheck
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@./tests/shell-scripts | xargs shellcheck

bench: $(SUITE) packages ## measure a run on a simulated host: seconds and commands; ROUNDS=N
	@$(VENV)/bin/python -m tests.node.bench

bench-peers: $(SUITE) $(PEERS) packages ## measure a run with nothing to change beside an Ansible playbook of the same state; ROUNDS=N
	@$(VENV)/bin/python -m tests.node.bench_peers .venv-peers/bin/ansible-playbook

bench-serving: $(SUITE) ## measure the running service under load: HOST=NAME; LAYOUT, LOADS=256/128, CONCURRENCY=1,16, RATES=1,2,4, LIMITS=450/40, REPEATS=3, INVENTORY, DATA="A=1 B=2" as deployed
	@test -n "$(HOST)" || { echo 'make bench-serving HOST=NAME: a host of $(or $(INVENTORY),inventory.py)' >&2; exit 2; }
	@$(VENV)/bin/pyinfra -y --limit '$(HOST)' $(or $(INVENTORY),inventory.py) tasks.bench.serving \
	  $(if $(LOADS),--data 'bench_loads=$(LOADS)') $(if $(CONCURRENCY),--data 'bench_concurrency=$(CONCURRENCY)') \
	  $(if $(RATES),--data 'bench_rates=$(RATES)') $(if $(LIMITS),--data 'bench_limits=$(LIMITS)') \
	  $(if $(REPEATS),--data 'bench_repeats=$(REPEATS)') $(if $(LAYOUT),--data 'layout=$(LAYOUT)') $(foreach setting,$(DATA),--data '$(setting)')

verify: $(SUITE) ## ask a host's service every question with a known answer: HOST=NAME; INVENTORY, DATA="A=1 B=2" as deployed
	$(call part,tasks.upkeep.verify)

stop: $(SUITE) ## stop a host's service until `make start` or the next run, also over a reboot: HOST=NAME
	$(call part,tasks.upkeep.stop)

start: $(SUITE) ## start a host's service as it lies there, and ask it: HOST=NAME
	$(call part,tasks.upkeep.start)

restart: $(SUITE) ## restart every server of a host, and ask it: HOST=NAME
	$(call part,tasks.upkeep.restart)

reboot: $(SUITE) ## reboot a host in order, and ask it: HOST=NAME; of several hosts the others serve meanwhile
	$(call part,tasks.upkeep.reboot)

rollback: $(SUITE) ## go back to the release before, and stay there: HOST=NAME WHY="TPOT doubled"
	@test -n "$$WHY" || { echo 'make rollback HOST=NAME WHY="TPOT doubled": the reason is kept with the pin' >&2; exit 2; }
	$(call part,deploy.py) --data rollback=True --data "rollback_reason=$$WHY"

logs: $(SUITE) ## what each server of a host logged last that tells of a failure, and what to do: HOST=NAME
	$(call part,tasks.upkeep.logs)

bundle: $(SUITE) ## one archive for whoever helps, without secrets and prompts: HOST=NAME; changes nothing
	$(call part,tasks.bundle.write)

remove: $(SUITE) ## take everything of ours off a host, models stay: HOST=gpu-1 NAME=gpu-1
	$(call part,tasks.remove.everything) --data 'remove=$(NAME)'

status: $(SUITE) ## a page with every panel of the dashboards, from a host's Prometheus: HOST=NAME; HOURS=3; changes nothing
	$(call part,tasks.status.write) $(if $(HOURS),--data 'status_hours=$(HOURS)')

drift: $(SUITE) ## does a host, or a service, differ from what is wanted? HOST=NAME or SERVICE=NAME; JSON=1, INVENTORY; changes nothing
	@test -n "$(HOST)$(SERVICE)" || { echo 'make drift HOST=NAME: a host of $(or $(INVENTORY),inventory.py); or SERVICE=NAME: all hosts of a service' >&2; exit 2; }
	@$(VENV)/bin/python -m tasks.support.drift $(if $(SERVICE),--service '$(SERVICE)') $(if $(HOST),'$(HOST)') $(if $(INVENTORY),--inventory '$(INVENTORY)') $(if $(JSON),--json)

lock: $(SUITE) ## make a release's locks anew and show what moved: RELEASE=NAME; UPGRADE=1 takes newer packages
	@$(VENV)/bin/python -m tools.lock $(or $(RELEASE),--help) $(if $(UPGRADE),--upgrade) $(LOCK_ARGUMENTS)

wheelhouse: $(SUITE) ## fill a folder with every wheel of a release, for hosts without an index: RELEASE=NAME PYTHON=3.11 DEST=FOLDER
	@$(VENV)/bin/python -m tools.wheelhouse $(or $(RELEASE),--help) $(PYTHON) $(if $(DEST),--dest $(DEST)) \
		$(if $(ROUTER),--router $(ROUTER)) $(if $(TORCH_WHEEL),--torch-wheel $(TORCH_WHEEL))

node-down: ## remove every simulated host
	@$(VENV)/bin/python -m tests.node down-all

$(SUITE): pyproject.toml
	@$(INTERPRETER) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@$(INTERPRETER) -m venv $(VENV)
	@$(VENV)/bin/pip install -q --disable-pip-version-check '.[dev]'
	@touch $@

$(KERNELS): tests/kernels/requirements.txt
	@$(INTERPRETER) -m venv .venv-kernels
	@.venv-kernels/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

$(PEERS): tests/node/peers.txt
	@$(INTERPRETER) -m venv .venv-peers
	@.venv-peers/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

.PHONY: packages browser gpg promtool shellcheck
packages: # Debian packages that a simulated host needs; said before they are installed
	@./tests/node/install-packages

browser: # what opens the report in tests
	@command -v chromium >/dev/null || ./tests/node/install-packages chromium fonts-dejavu-core

gpg: # what signs the package repository of a test
	@{ command -v gpg && command -v gpg-agent; } >/dev/null || ./tests/node/install-packages gpg gpg-agent

promtool: $(SUITE) # what checks the alert rules
	@test -x $(VENV)/bin/promtool || ./tests/unpack-promtool $(VENV)/bin

shellcheck:
	@command -v shellcheck >/dev/null || ./tests/node/install-packages shellcheck
