# make help            what there is
# make PYTHON=python3.12 test      with another interpreter (3.11 or newer)
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
WANTED := --constraint constraints.txt --editable '.[dev]'
READY := $(VENV)/.ready
PACKAGES := 200
# pip is silent while it unpacks: every 5 seconds how many packages are there, and once a fifth is, how long the others
# take: a guess is told where more is there than before, and does not grow
COUNTED = (now=0; begun=0; before=0; left=$$((1 << 30)); while sleep 5 && kill -0 $$$$ 2>/dev/null; do now=$$((now + 5)); \
  there=$$(ls $(VENV)/lib/python3*/site-packages 2>/dev/null | grep -c 'dist-info$$'); \
  if [ ! -x $(BIN)/pip ]; then echo "  after $$now s: the environment is made"; continue; fi; \
  if [ $$there -lt 5 ]; then begun=$$now; [ $$((now % 10)) -ne 0 ] || echo "  after $$now s: packages are fetched"; \
  continue; fi; rest=; \
  if [ $$there -ge $(PACKAGES) ]; then rest=", the last files are written"; \
  elif [ $$there -gt $$before ] && [ $$there -ge $$(($(PACKAGES) / 5)) ]; then \
    guess=$$((($(PACKAGES) - there) * (now - begun) / there)); left=$$((guess < left ? guess : left)); \
    [ $$left -eq 0 ] || rest=", about $$left s left"; fi; before=$$there; \
  echo "  after $$now s: $$there of about $(PACKAGES) packages are unpacked$$rest"; done)

# pip without its two lines that name every package
PIP := import logging, runpy, sys; [logging.getLogger("pip._internal." + part).addFilter(lambda line: \
  not str(line.msg).startswith(("Installing collected", "Successfully installed"))) for part in ("req", "utils.misc")]; \
  sys.argv[0] = "pip"; runpy.run_module("pip", run_name="__main__")

.DEFAULT_GOAL := help
.PHONY: help install report docs lab test check style format picture clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, e.g. make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "Installing into $(VENV): torch and some $(PACKAGES) packages, a few minutes the first time$(if $(UV),, (uv takes a third))."
	@$(if $(UV),test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(UV) pip install --python $(BIN)/python $(WANTED) || {) \
	  $(COUNTED) & counter=$$!; \
	  test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -c '$(PIP)' install --disable-pip-version-check --no-compile $(WANTED); \
	  code=$$?; kill $$counter 2>/dev/null; exit $$code $(if $(UV),; })
	@touch $@

install: $(READY) ## create .venv and install into it (every other target does so when needed)
	@echo "Next: . $(BIN)/activate, then workbench trial --model lab-full --mode block --samples 40"

report: $(READY) ## run every notebook on the shipped model, some on a real one, write runs/report/index.html
	$(BIN)/workbench report --jobs $(JOBS)

docs: $(READY) ## build the documentation, for file:// and without a network: runs/docs/index.html
	$(BIN)/python -m workbench.app.docs.site

lab: $(READY) ## open the notebooks in JupyterLab, on this machine alone: it asks no server for news or updates, and saves what explorers show
	@mkdir -p $(VENV)/share/jupyter/lab/settings
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false},' \
	  '"@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": true}}' \
	  > $(VENV)/share/jupyter/lab/settings/overrides.json
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --ServerApp.ip=127.0.0.1 --ServerApp.answer_yes=True \
	  --ServerApp.allow_remote_access=False --LabApp.news_url= \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate notebooks

test: style ## style, types (tests/test_types.py) and all tests
	PYTHONDONTWRITEBYTECODE= PYTHONUTF8=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

check: style ## style and types only
	$(BIN)/mypy workbench kernels data/benchmarks

style: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/nbstripout --verify --keep-id notebooks/*.ipynb

format: $(READY) ## repair style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

picture: $(READY) ## renew the picture in the README (needs Chromium, and the model smollm2)
	$(BIN)/python docs/picture.py

clean: ## remove the environment, caches and runs/
	rm -rf $(VENV) runs build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
