# `make help` lists the targets. The work is in scripts/, xtask/ and the programs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
OUT ?= out

# scripts/setup links a toolchain here if the one in PATH is too old.
export PATH := $(CURDIR)/target/toolchain:$(PATH)

PROGRAMS := isthmus isthmusd isthmus-bench isthmus-helper
RELEASE := target/release
# The profile of `make run`: optimised, but without the long link-time optimisation of `make build`.
TRIAL := $(or $(CARGO_TARGET_DIR),target)/trial
SOCKETS := --map abi/preload/libisthmus-sockets.map
VERBS := --map abi/ibverbs/libisthmus-rdmav34.map
VERBS_PRELOAD := --map abi/ibverbs-preload/libisthmus-verbs.map

.PHONY: help setup setup-build tools build run test test-long test-guests bench bench-guests guest install uninstall clean

help: ## Lists the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup: ## Installs what is missing to build and test (Debian 12, as root)
	@scripts/setup

setup-build:
	@scripts/setup build

tools: setup-build ## Installs cargo-deny, which `make test` uses if it is there (a few minutes, once)
	@cargo deny --version 2>/dev/null || cargo install --locked cargo-deny

build: setup-build ## Builds the programs, the libraries of capabilities and the C programs of MX in target/release
	@cargo build --release $(addprefix --package ,$(PROGRAMS))
	@cargo xtask mx-programs --release >/dev/null
	@cargo xtask link-abi isthmus-libfabric --release --map abi/libfabric/libisthmus-fi.map --out $(RELEASE)/libisthmus-fi.so >/dev/null
	@cargo xtask link-abi isthmus-preload --release $(SOCKETS) --out $(RELEASE)/libisthmus-sockets.so >/dev/null
	@cargo xtask link-abi isthmus-ibverbs --release $(VERBS) --out $(RELEASE)/libisthmus-rdmav34.so >/dev/null
	@cargo xtask link-abi isthmus-ibverbs-preload --release $(VERBS_PRELOAD) --out $(RELEASE)/libisthmus-verbs.so >/dev/null

run: ## Builds and measures Isthmus beside TCP: tables on the screen, JSON and a plot in out/ (half a minute once built)
	@echo "[1/4] Checking for a compiler, a linker, redis-benchmark, perftest and iperf3" >&2
	@scripts/setup run
	@echo "[2/4] Building Isthmus (a few minutes the first time)" >&2
	@cargo build --profile trial --package isthmus --package isthmusd --package isthmus-helper --package isthmus-myriexpress
	@echo "[3/4] Building the C programs of MX and the libraries of sockets and verbs" >&2
	@for program in mx_measure mx_match; do \
		cc -std=gnu11 -O2 -I abi/myriexpress/include -o "$(TRIAL)/$$program" examples/mx/$$program.c \
			"$(TRIAL)/libisthmus_myriexpress.a" -Wl,--gc-sections -pthread -ldl -lm; \
	done
	@cargo xtask link-abi isthmus-preload --profile trial $(SOCKETS) --out $(TRIAL)/libisthmus-sockets.so >/dev/null
	@cargo xtask link-abi isthmus-ibverbs --profile trial $(VERBS) --out $(TRIAL)/libisthmus-rdmav34.so >/dev/null
	@cargo xtask link-abi isthmus-ibverbs-preload --profile trial $(VERBS_PRELOAD) --out $(TRIAL)/libisthmus-verbs.so >/dev/null
	@echo "[4/4] Measuring" >&2
	@mkdir -p $(OUT)
	@$(TRIAL)/isthmus try --out $(OUT)

test: setup ## Runs every check; ends with the counts
	@cargo xtask ci

test-long: setup ## Runs the long checks: thousands of kills, the whole suite of mpi4py, driver domains, restores, fuzzing
	@cargo xtask ci --long

test-guests: build ## Runs the tests in guests of QEMU and Xen, which it fetches (several minutes)
	@scripts/setup guests
	@ISTHMUS_BIN_DIR=$(CURDIR)/$(RELEASE) cargo test --quiet --package isthmus-guests-tests -- --show-output

bench: build ## Measures every row of docs/performance.md into out/figures.jsonl (some minutes, on a quiet machine)
	@mkdir -p $(OUT)
	@$(RELEASE)/isthmus-bench figures --json - | tee $(OUT)/figures.jsonl

bench-guests: build ## Measures in guests of QEMU and Xen, which it fetches (as root, several minutes, on a quiet machine)
	@scripts/setup guests
	@mkdir -p $(OUT)
	@ISTHMUS_BIN_DIR=$(CURDIR)/$(RELEASE) cargo bench --quiet --package isthmus-guests-tests --bench guests -- --out $(abspath $(OUT))

guest: build ## Writes out/isthmus-guest.tar.gz, the files that a guest needs, to be unpacked at / in the guest
	@RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet --release --package isthmus --package isthmusd \
		--target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir target/static
	@rm -rf target/static/tree && packaging/install --guest target/static/tree "$(PREFIX)"
	@mkdir -p $(OUT) && tar -C target/static/tree -czf $(OUT)/isthmus-guest.tar.gz . && echo "Written: $(OUT)/isthmus-guest.tar.gz"

install: ## Installs the programs, C libraries and systemd units (PREFIX=/usr/local, DESTDIR=); after `make build`
	@packaging/install "$(DESTDIR)" "$(PREFIX)"

uninstall: ## Removes the files that `make install` installed
	@packaging/install --remove "$(DESTDIR)" "$(PREFIX)"

clean: ## Removes target/ and out/
	@rm -rf target $(OUT)
