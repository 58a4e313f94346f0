# Two commands: `make book` and `make test`. A machine needs Python 3.11 or newer and make; `make install` gets the rest.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
WORKERS ?= 2
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
VENDOR := book/_static/vendor/.complete
BROWSER := $(VENV)/.browser
# Run a stage, say how long it took, and pass its exit status on.
stage = @start=$$(date +%s); ($(1)); status=$$?; \
  echo "== $@: $$(($$(date +%s) - start)) s, exit status $$status"; exit $$status

help: ## Show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(INSTALLED) $(VENDOR) ## Execute every chapter and write the pages to _build/html
	$(call stage,$(PY) tools/build.py .)

install: $(INSTALLED) $(VENDOR) $(BROWSER) ## Everything that the other commands need: environment, JavaScript, Chromium

test: ## Everything: format, library, chapters, ledgers, pages in a browser; a failure does not hide the next
	@$(MAKE) --no-print-directory --keep-going install check test-unit test-pages

check: $(INSTALLED) ## Lint, format and types: seconds, the first time a minute
	$(call stage,$(PY) -m ruff check -q . \
	  && $(PY) -m ruff format --check -q . \
	  && $(PY) -m mypy --no-error-summary)

test-unit: $(INSTALLED) ## The library, its docstrings' examples and the chapters' machinery, without the pages
	$(call stage,OMP_NUM_THREADS=1 $(PY) -m pytest tests natcompanion \
	  --doctest-modules --ignore=tests/book -q -n $(WORKERS))

test-notebooks: $(INSTALLED) ## Every chapter run again and compared with its stored outputs, without the pages
	$(call stage,$(PY) -m pytest --nbval book/ -q -n $(WORKERS) --dist loadfile)

test-pages: book $(BROWSER) ## The book: stored outputs, ledgers, and the rendered pages in Chromium without a network
	$(call stage,$(PY) -m pytest tests/book -q -n $(WORKERS) --dist loadfile)

test-anywhere: $(INSTALLED) ## Unit tests and notebooks with the instructions of other processors
	$(call stage,$(PY) tools/anywhere.py)

coverage: $(INSTALLED) ## Which lines of the library and of the chapters' machinery the unit tests run
	$(call stage,$(PY) tools/mutation.py --coverage)

mutation: $(INSTALLED) ## Change the code in 98 places and see which test notices (an hour)
	$(call stage,$(PY) tools/mutation.py --count 90 --seed 1 -n $(WORKERS))

nightly: $(INSTALLED) ## What is slow: marked tests, every instruction set, comparisons near their bounds (hours)
	$(call stage,status=0; \
	  $(PY) -m pytest tests -q -m nightly || status=1; \
	  $(PY) tools/anywhere.py --all || status=1; \
	  $(PY) tools/margins.py || status=1; \
	  $(PY) tools/mutation.py --fresh -n $(WORKERS) || status=1; \
	  $(PY) -m natcompanion.chapters.cli verify --sample 20 --seed 1 || status=1; exit $$status)

serve: ## Show the built pages on a local port (PORT=8000)
	@test -f _build/html/index.html || { echo "no pages yet: run 'make book' first"; exit 1; }
	$(PYTHON) -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

notebooks: $(INSTALLED) ## Execute every chapter and store its outputs in canonical form
	$(PY) tools/notebooks.py

lab: $(INSTALLED) ## Open the chapters in JupyterLab
	$(PY) -m jupyter lab book --LabApp.app_settings_dir=$(CURDIR)/binder

clean: ## Remove everything that these commands made
	rm -rf _build $(VENV) node_modules book/_static/vendor *.egg-info .pytest_cache .mypy_cache

$(INSTALLED): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt -e ".[book]"
	touch $@

$(BROWSER): tools/browser.py $(INSTALLED)
	@$(PY) tools/browser.py && touch $@

$(VENDOR): package.json package-lock.json tools/vendor.py $(INSTALLED)
	$(PY) tools/vendor.py

.PHONY: help install book test check test-unit test-notebooks test-pages test-anywhere coverage mutation nightly serve notebooks lab clean
