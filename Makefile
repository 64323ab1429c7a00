# `make` lists what there is. `make demo` and `make test` do all the set-up themselves.

.DEFAULT_GOAL := help
# Recipes and tests look for programs in `target`. A CARGO_TARGET_DIR or a `build.target-dir` of the
# user would put them elsewhere.
export CARGO_TARGET_DIR := $(CURDIR)/target
.PHONY: help tools setup build demo check check-all programs test fake-gpu gpu-seeds gpu new-project oracle zoo bench build-times chaos mutants lint fmt doc fuzz millions dist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

tools:
	@sh tools/check_tools.sh

setup: tools ## Fetch libtorch once, 0.55 GB (kept in your cache folder), and link it as .libtorch
	@python3 tools/setup_libtorch.py

build: setup ## Build the programs: target/release/bossman and target/release/worker
	cargo build --release --package bossman --package worker --bins
	@touch target/release/.all-formats

# Parquet, pictures, tokenizers and object stores take a third of the time of building. The demo
# needs none of them.
demo: setup ## Train digits across two workers on this machine
	cargo build --release --package bossman --package worker --bins $(if $(wildcard target/release/.all-formats),,--no-default-features)
	target/release/bossman train examples/digits/run.yaml --local 2

check: setup ## The quick tier, for every edit: format, lints, unit tests, golden texts, few seeds, law 1 on one cut each
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- --deny warnings
	sh tools/check_layers.sh
	BOSSMAN_SIM_SEEDS=20 BOSSMAN_FUZZ_SECONDS=1 cargo test --quiet --package layerspec --package pipeline --package simulator --package shm --package link --package runtime --tests
	BOSSMAN_FUZZ_SECONDS=1 cargo test --quiet --package tensor --package data --package worker --package bossman --lib
	BOSSMAN_LAW_1_CUTS=1 cargo test --quiet --package tests --test it -- writing:: law_1::in_memory::

check-all: check ## Also the default seeds and times of fuzz, examples in documentation, and law 1 on one model in every way
	cargo build --workspace --bins
	cargo test --quiet --package layerspec --package pipeline --package simulator --package shm --package link --package runtime
	cargo test --quiet --package tensor --package data --package worker --package bossman --lib
	cargo test --quiet --package tests --test it -- $(foreach way,in_memory over_sockets in_processes,law_1::$(way)::narrow_residual)

programs: setup ## Build the programs that tests start
	cargo build --workspace --bins

test: programs ## Run all tests, the simulator with a tenth of its seeds (check-all plays all)
	python3 -m unittest discover --start-directory tools --quiet
	python3 -m unittest discover --start-directory bench --quiet
	BOSSMAN_SIM_SEEDS=$${BOSSMAN_SIM_SEEDS:-100} python3 tools/run_tests.py
	@python3 tools/oracle.py --where-possible

fake-gpu: setup ## Open a shell in which every command sees two GPUs that are not there
	cargo build --workspace --bins
	target/debug/fake_gpu "$${SHELL:-sh}"

gpu-seeds: setup ## Run the tests of the fake GPU with 60 orders of its work, and all cuts (hours; SEEDS="1-5 --gpu-cuts 2": a part)
	cargo build --workspace --bins
	python3 tools/run_tests.py --gpu-seeds $(or $(SEEDS),60)

gpu: build ## Check whole runs on a device of this machine and write target/gpu/gpu.md (GPU_FLAGS="--preset tiny": on any device)
	python3 tools/gpu_page.py $(GPU_FLAGS)

# The sources and the manifest of such a project have tests of their own in `make test`.
new-project: setup ## Make a project with `bossman new` outside the workspace, then run, test and lint it (five minutes)
	cargo build --package bossman --bin bossman
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && target/debug/bossman new "$$folder/hello" --path . && cd "$$folder/hello" \
		&& unset LIBTORCH LD_LIBRARY_PATH BOSSMAN_WORKER && export CARGO_TARGET_DIR="$(CURDIR)/target/new-project" \
		&& cargo run && cargo test && cargo clippy --all-targets -- --deny warnings && cargo fmt --check

oracle: setup ## Compare with PyTorch and transformers, which are fetched once, 0.8 GB (kept in your cache folder)
	cargo build --workspace --bins
	"$$(python3 tools/pytorch.py)" tools/oracle.py
	"$$(python3 tools/pytorch.py)" tools/layer_oracle.py
	"$$(python3 tools/pytorch.py)" -m unittest discover --start-directory tools --pattern "test_*torch*.py"
	"$$(python3 tools/pytorch.py --transformers)" tools/huggingface_oracle.py
	"$$(python3 tools/pytorch.py --transformers)" tools/smollm2_oracle.py

zoo: build ## Import 238 models of torchvision, timm and transformers, compare each with PyTorch, and write docs/reference/zoo.md (hours; goes on where it stopped; ZOO_FLAGS="--only resnet18": one model)
	"$$(python3 tools/pytorch.py --zoo)" tools/zoo.py $(ZOO_FLAGS)

bench: setup ## Measure beside PyTorch and write docs/performance.md (half an hour on an idle machine)
	cargo build --release --workspace --bins
	cargo build --release --package link --example transport_bench
	"$$(python3 tools/pytorch.py --zoo)" bench/run.py

build-times: setup ## Time `make demo` and `make test` from nothing and `make check` from warm, for docs/performance.md
	python3 bench/build_times.py

chaos: build ## Kill, stop, cut off and slow down boss and workers 200 times, and compare all weights with quiet runs' (40 minutes)
	cargo build --release -p bench --bin delay
	target/release/bossman data fetch mnist --to examples/mnist-resnet/data
	target/release/bossman data fetch sotu --to examples/gpt-sotu/data
	python3 bench/chaos.py --keep

mutants: ## Change pipeline and layerspec in 200 places, one at a time, and list those that no test notices (three hours; goes on where it stopped)
	python3 tools/mutants.py

lint: setup ## Check format, lints, documentation and the dependencies between crates
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- --deny warnings
	@# As `make demo` builds them.
	cargo clippy --package bossman --package worker --lib --bins --no-default-features -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps
	sh tools/check_layers.sh

fmt: ## Format the Rust code
	cargo fmt --all

doc: setup target/tools/bin/mdbook ## Build the book (target/book) and the documentation of the code (target/doc)
	target/tools/bin/mdbook build docs
	cargo doc --workspace --no-deps

target/tools/bin/mdbook:
	unset CARGO_TARGET_DIR && cargo install --locked mdbook --version 0.4.52 --no-default-features --features search --root target/tools

fuzz: tools ## Fuzz frames, model files and join tickets for a minute each, guided by coverage (needs cargo-fuzz)
	unset CARGO_TARGET_DIR && cd fuzz && for target in $$(cargo fuzz list); do mkdir -p corpus/$$target && cargo fuzz run --sanitizer none $$target corpus/$$target kept/$$target -- -max_total_time=60 -timeout=10 -rss_limit_mb=150 || exit 1; done

millions: setup ## Give each reader of outside data 10 million broken inputs, and check time and memory
	for test in "pipeline --test it fuzz_frame" "layerspec --test models mutated_files" "link --lib a_text_of_any" "bossman --lib a_run_file_of_any" "bossman --lib a_manifest_of_any"; do BOSSMAN_FUZZ_INPUTS=10000000 cargo test --release --quiet --package $$test -- --nocapture || exit 1; done

dist: build ## Pack the programs for other machines: target/dist/bossman-VERSION-MACHINE.tar.gz
	python3 tools/make_dist.py target/release target/dist

clean: ## Delete what was built; libtorch stays in your cache folder
	cargo clean
