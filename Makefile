# make lab      open your copies of the lessons, lessons/, in JupyterLab      make test     everything
# make size     statements of each wing
# make lint     format, ruff's rules, and which way imports point
# make quick    the tests that answer within minutes    make bench    benchmarks side by side with other libraries
# make notebooks  run all lessons again and keep their outputs; write the assignments anew
# make grading-proof   every right and wrong answer of every exercise, on 20 seeds
# make setup    only make .venv ready                   make clean    back to a fresh clone (run directories stay)
#
# PYTHON=python3.12     which Python .venv is made from (3.11 or newer)
# TORCH=auto|cpu|cuda   which build of torch (auto: CUDA where an NVIDIA GPU is found, else CPU)
# ARGS="..."            more words for pytest, JupyterLab or the benchmarks

PYTHON ?=
TORCH ?= auto
ARGS ?=

empty :=
space := $(empty) $(empty)
PY := .venv/bin/python

# No install, a student's `%pip install` in a lesson or a nested build included, may bring in another torch.
# pip splits this variable at blanks, hence a URL.
export PIP_CONSTRAINT := file://$(subst $(space),%20,$(CURDIR))/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Two test files at a time, in the order they are found: the browser and the lessons take longest and come first.
# nbval is for the runs of lessons, which start it: to load it takes seconds.
TWO := -n 2 --dist loadfile --no-loadscope-reorder -p no:nbval

# A hundred processes of the tests load the library, and each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup browser lab lint size test quick bench notebooks grading-proof clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup:
	@command -v $(or $(PYTHON),python3) >/dev/null || { echo "There is no $(or $(PYTHON),python3) here: install Python 3.11 or newer, or name one with PYTHON=."; exit 1; }
	@$(or $(PYTHON),python3) tools/setup.py --python "$(PYTHON)" --torch "$(TORCH)"

browser: setup
	@$(PY) tools/setup.py browser

lab: setup
	@$(PY) -m bigtrain_lab lab $(ARGS)

lint: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/lint-imports

size:
	@$(or $(PYTHON),python3) tools/size.py

test: browser lint
	$(PY) -m pytest tests $(TWO) $(ARGS)

quick: setup
	$(PY) -m pytest -m "not slow" $(wildcard tests/parity tests/unit) $(TWO) $(ARGS)

bench: setup
	$(PY) -m benchmarks $(ARGS)

notebooks: setup
	$(PY) tools/build_notebooks.py $(ARGS)
	$(PY) -c "from pathlib import Path; from bigtrain_lab.course.build import hand_out; hand_out(Path('notebooks/assignments'))"

grading-proof: setup
	$(PY) -m benchmarks grading

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
