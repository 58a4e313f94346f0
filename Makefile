# Two commands: `make book` and `make test`. A machine needs Python 3.11 or newer, make, and Chromium for the tests.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
WORKERS ?= 2
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
VENDOR := book/_static/vendor/.complete

help: ## Show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(INSTALLED) $(VENDOR) ## Execute every chapter and write the pages to _build/html
	$(PY) tools/build.py .

test: ## Everything: library, chapters, ledgers, pages in a browser; a failure does not hide the next
	@$(MAKE) --no-print-directory --keep-going test-unit test-notebooks test-pages

test-unit: $(INSTALLED) ## The library alone (seconds)
	OMP_NUM_THREADS=1 $(PY) -m pytest tests --ignore=tests/book -q -n $(WORKERS)

test-notebooks: $(INSTALLED) ## Every chapter run again and compared with its stored outputs
	$(PY) -m pytest --nbval book/ -q -n $(WORKERS) --dist loadfile

test-pages: book ## Ledgers, the build, and the rendered pages in Chromium without a network
	$(PY) -m pytest tests/book -q -n $(WORKERS) --dist loadfile

serve: ## Show the built pages on a local port (PORT=8000)
	@test -f _build/html/index.html || { echo "no pages yet: run 'make book' first"; exit 1; }
	$(PYTHON) -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

notebooks: $(INSTALLED) ## Execute every chapter and store its outputs in canonical form
	$(PY) tools/notebooks.py

lab: $(INSTALLED) ## Open the chapters in JupyterLab
	$(PY) -m jupyter lab book

clean: ## Remove everything that these commands made
	rm -rf _build $(VENV) node_modules book/_static/vendor *.egg-info .pytest_cache

$(INSTALLED): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt -e ".[book]"
	touch $@

$(VENDOR): package.json package-lock.json tools/vendor.py $(INSTALLED)
	$(PY) tools/vendor.py

.PHONY: help book test test-unit test-notebooks test-pages serve notebooks lab clean
