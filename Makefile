# Every target makes its own environment first: `make generate` and `make test` work in a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
SERVING := .venv/.serving
INSTALLED := .venv/.installed
BACKEND := .venv-wheel/.installed
BUILDER := .venv-wheel/bin/python
TOPOLOGY ?= local
CORES := $(shell $(PYTHON) -c "import os; print(min(7, os.cpu_count()))")
# One test more at once than there are cores, for many wait for servers (quick ones do not, and a worker takes seconds to begin);
# whoever is done takes from the others' ends.
WORKERS := $(shell expr $(CORES) + 1)
PYTEST := $(BIN)/python -m pytest --dist worksteal
# Tests start dozens of Pythons, and each worker rewrites every test: what one has compiled, the next ones read.
test quick: export PYTHONDONTWRITEBYTECODE =

.PHONY: serve generate test quick test-oldest test-newest mutants soak check format wheel gpu-constraints docs course course-test clean

serve: $(SERVING)  ## live streams on http://127.0.0.1:8000; TOPOLOGY=front+tp2 for several processes
	$(BIN)/millstream serve --topology $(TOPOLOGY)

generate: $(SERVING)  ## write out/clip.mp4
	$(BIN)/millstream generate --out out/clip.mp4 --overwrite

test: $(INSTALLED) check  ## lint, types and all tests
	$(PYTEST) -n $(WORKERS)

quick: $(INSTALLED)  ## tests that start no process, compile and train nothing: a minute
	$(PYTEST) -n $(CORES) tests/unit benchmarks/checks -m "not slow"

# What serves, with other packages than the tested set: each in a fresh environment of its own.
SERVING_TESTS := $(addprefix tests/, server/dialects server/test_client.py server/test_library_internals.py \
	server/test_listener.py server/test_outputs.py server/test_rest.py server/test_serve.py server/test_sources.py \
	server/test_videos.py server/test_webrtc.py unit/video \
	unit/commands/test_cli.py unit/commands/test_compile_option.py unit/commands/test_config_file.py \
	unit/commands/test_doctor.py unit/commands/test_events.py unit/commands/test_helps.py \
	unit/commands/test_log_once.py unit/commands/test_options.py unit/commands/test_usage.py \
	unit/commands/test_versions.py)

test-oldest: OTHERS = .venv-oldest
test-oldest:  ## serving tests and every --help with the oldest packages that pyproject.toml allows; PYTHON= chooses a Python
	$(FRESH)
	$(OTHERS)/bin/python -m tests.oldest_versions serve srt > $(OTHERS)/oldest.txt
	$(OTHERS)/bin/pip install --quiet --disable-pip-version-check -c $(OTHERS)/oldest.txt -e ".[serve,srt,test]"
	$(TEST_SERVING)

test-newest: OTHERS = .venv-newest
test-newest:  ## the same with the newest packages that pip finds
	$(FRESH)
	$(OTHERS)/bin/pip install --quiet --disable-pip-version-check -e ".[serve,srt,test]"
	$(TEST_SERVING)

# torch alone is the tested one, without what it asks for: those versions are the oldest or the newest as well.
define FRESH
	rm -rf $(OTHERS)
	$(PYTHON) -m venv $(OTHERS)
	$(OTHERS)/bin/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt torch "tomli; python_version < '3.11'"
endef

define TEST_SERVING
	$(OTHERS)/bin/pip list --format freeze --disable-pip-version-check
	$(OTHERS)/bin/python -m pytest --dist worksteal -n $(WORKERS) $(SERVING_TESTS)
endef

mutants: $(INSTALLED)  ## break the code in a hundred places, each of which a named test must notice; WORDS= names some of them
	$(BIN)/python -m tests.run_mutants $(WORDS)

soak: $(INSTALLED)  ## attacks, kills, random input and long runs, one after the other: many hours; WORDS= names some of them
	$(BIN)/python -m tests.soak $(WORDS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(BACKEND)  ## dist/millstream-VERSION-py3-none-any.whl: all that serves Brook
	rm -rf build dist  # what an earlier build left there would go into this one
	$(BUILDER) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

gpu-constraints: $(INSTALLED)  ## constraints-gpu.txt: what the CUDA image installs, by the versions of constraints.txt
	$(BIN)/python -m tests.gpu_constraints

docs: .venv/.course  ## out/docs/index.html: the documentation as a site, with the public API from docstrings
	$(BIN)/python -m docs.site out/docs

course: .venv/.course  ## out/course/index.html: the course's pages, to be opened in a browser
	$(BIN)/python -m course.site out/course

course-test: $(INSTALLED) .venv/.course  ## every script and exercise of the course, and its site in a browser
	$(BIN)/python -m pytest -m "" tests/course

clean:
	rm -rf .venv .venv-wheel .venv-oldest .venv-newest out build dist *.egg-info

# torch comes first and alone, pinned: otherwise the other packages may choose another build of it.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

$(SERVING): pyproject.toml constraints.txt  # what serving needs, and nothing else
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e ".[serve]"
	touch $@

# The build backend and nothing else: a wheel needs no torch.
$(BACKEND): constraints.txt
	test -x .venv-wheel/bin/python || $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	touch $@

.venv/.course: $(SERVING)
	$(PIP) -e ".[course]"
	touch $@

$(INSTALLED): $(SERVING)
	$(PIP) -e ".[dev]"
	touch $@
