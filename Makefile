# Every target makes its own virtual environment; nothing outside this directory is changed.
.PHONY: install demo test test-all lint mutants rows lab benchmark benchmark-erase docs clean

PYTHON ?= python3
TEST_WORKERS ?= 4
MUTANTS ?=
MUTANT_WORKERS ?= 1
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

install: $(STAMP)

# Modules are compiled once: each worker of the tests, and each program that they start, would compile them again
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

# --group needs pip 25.1, which Debian 12 does not have
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --editable . --group test --group check
	-$(PYTEST) -qq --collect-only >/dev/null
	touch $@

demo: $(STAMP)
	$(BIN)/python demo/demo.py

# Many tests wait for a disk or a clock: more workers than processors, and each file by one of them
test: $(STAMP)
	AUTOCLAVE_HISTORIES=$${AUTOCLAVE_HISTORIES:-10} $(PYTEST) --quick --numprocesses $(TEST_WORKERS) --dist loadfile

# With every case of each matrix, long histories, other processes, and the servers that this machine has
test-all: $(STAMP)
	$(PYTEST) --numprocesses $(TEST_WORKERS) --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy contrib/*.py
	$(BIN)/mypy tools/*.py
	$(BIN)/lint-imports
	$(BIN)/python tools/prose.py

# Hours for all of them; MUTANTS='autoclave.lifecycle.transitions*' chooses. Progress goes to mutants/run.log
mutants: $(STAMP)
	$(BIN)/pip install --quiet --group mutants
	mkdir -p mutants
	$(BIN)/mutmut run --max-children $(MUTANT_WORKERS) $(foreach each,$(MUTANTS),'$(each)') >mutants/run.log 2>&1 \
	    || { tail -n 40 mutants/run.log; exit 1; }
	$(BIN)/mutmut results >mutants/results.txt
	@grep -v ': not checked$$' mutants/results.txt || echo 'Every mutant that was run made a test fail'

# Rows of the tables that mutmut leaves alone, and rows of the table of the specifications; see CONTRIBUTING.md
rows: $(STAMP)
	$(BIN)/python tests/rows/tables.py
	$(BIN)/python tests/rows/run.py

# Needs root, apt and QEMU's packages; see lab/README.md
lab:
	lab/run

# What lists, binds and reports cost at the size of a cloud; see benchmarks/README.md
benchmark: $(STAMP)
	$(BIN)/python benchmarks/api.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/translate.py
	$(BIN)/python benchmarks/schedule.py
	$(BIN)/python benchmarks/provider_config.py

# Erasing against the quickest tools, on four drives of 1 GiB; see benchmarks/README.md
benchmark-erase:
	LAB_JOB=lab/erase.py LAB_HARDWARE=lab/erase-hardware lab/run

docs: $(STAMP)
# reno walks the history, which a shallow clone has not; the documentation goes without release notes there
	if [ "$$(git rev-parse --is-shallow-repository)" = false ]; then $(BIN)/reno --quiet lint; fi
	$(BIN)/sphinx-build -W --keep-going -b html docs/source docs/build/html

clean:
	rm -rf $(VENV) build dist docs/build mutants .lab
