# Every target makes its own environment first: `make generate` and `make test` work in a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
SERVING := .venv/.serving
INSTALLED := .venv/.installed
TOPOLOGY ?= local
CORES := $(shell $(PYTHON) -c "import os; print(min(7, os.cpu_count()))")
# One test more at once than there are cores, for many wait for servers (quick ones do not, and a worker takes seconds to begin);
# whoever is done takes from the others' ends.
WORKERS := $(shell expr $(CORES) + 1)
PYTEST := $(BIN)/python -m pytest --dist worksteal
# Tests start dozens of Pythons, and each worker rewrites every test: what one has compiled, the next ones read.
test quick: export PYTHONDONTWRITEBYTECODE =

.PHONY: serve generate test quick check format wheel course course-test clean

serve: $(SERVING)  ## live streams on http://127.0.0.1:8000; TOPOLOGY=front+tp2 for several processes
	$(BIN)/millstream serve --topology $(TOPOLOGY)

generate: $(SERVING)  ## write out/clip.mp4
	$(BIN)/millstream generate --out out/clip.mp4 --overwrite

test: $(INSTALLED) check  ## lint, types and all tests
	$(PYTEST) -n $(WORKERS)

quick: $(INSTALLED)  ## tests that start no process, compile and train nothing: a minute
	$(PYTEST) -n $(CORES) tests/unit -m "not slow"

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(INSTALLED)  ## dist/millstream-VERSION-py3-none-any.whl: all that serves Brook
	rm -rf build dist  # what an earlier build left there would go into this one
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

course: .venv/.course  ## out/course/index.html: the course's pages, to be opened in a browser
	$(BIN)/python -m millstream.course.site out/course

course-test: $(INSTALLED) .venv/.course  ## every script and exercise of the course, and its site in a browser
	$(BIN)/python -m pytest -m "" tests/course

clean:
	rm -rf .venv out build dist *.egg-info

# torch comes first and alone, pinned: otherwise the other packages may choose another build of it.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

$(SERVING): pyproject.toml constraints.txt  # what serving needs, and nothing else
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e ".[serve]"
	touch $@

.venv/.course: $(SERVING)
	$(PIP) -e ".[course]"
	touch $@

$(INSTALLED): $(SERVING)
	$(PIP) -e ".[dev]"
	touch $@
