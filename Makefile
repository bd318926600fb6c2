# The front door. `make help` lists the targets; what they do is in scripts/, xtask/ and the programs themselves.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
OUT ?= out

# scripts/setup puts links to a toolchain here when the one in PATH is too old.
export PATH := $(CURDIR)/target/toolchain:$(PATH)

PROGRAMS := isthmus isthmusd isthmus-bench
RELEASE := target/release

.PHONY: help setup setup-run tools build run test test-long test-guests bench bench-guests guest install uninstall clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup: ## Installs what is missing to build and test (Debian 12; as root)
	@scripts/setup

setup-run:
	@scripts/setup run

tools: setup-run ## cargo-deny, which `make test` uses where it is installed (some minutes, once)
	@cargo deny --version 2>/dev/null || cargo install --locked cargo-deny

build: setup-run ## The programs, libmyriexpress, the libfabric provider and the C programs of MX, with optimisations, in target/release
	@[ -e $(RELEASE)/isthmus ] || echo "building: the first time takes some minutes" >&2
	@cargo build --quiet --release $(addprefix --package ,$(PROGRAMS))
	@cargo xtask mx-programs --release >/dev/null
	@cargo xtask link-abi isthmus-libfabric --release --map abi/libfabric/libisthmus-fi.map --out $(RELEASE)/libisthmus-fi.so >/dev/null

run: build ## Builds and shows what it does: a table on the screen, JSON and a plot in out/ (two minutes, leaves nothing)
	@mkdir -p $(OUT)
	@$(RELEASE)/isthmus try --out $(OUT)

test: setup ## Every check; ends with the counts
	@cargo xtask ci

test-long: setup ## What is long by nature: thousands of kills, the whole suite of mpi4py, driver domains, restores, long fuzzing; ends with the counts
	@cargo xtask ci --long

test-guests: build ## Guests of QEMU (fetched): MX between two, a window between one and its host, domains of Xen (some minutes)
	@scripts/setup guests
	@ISTHMUS_BIN_DIR=$(CURDIR)/$(RELEASE) cargo test --quiet --package isthmus-guests -- --show-output

bench: build ## Measures every row of docs/performance.md into out/figures.jsonl (some minutes, on a quiet machine)
	@mkdir -p $(OUT)
	@$(RELEASE)/isthmus-bench figures --json - | tee $(OUT)/figures.jsonl

bench-guests: build ## Guests of QEMU and Xen (fetched; as root): by their windows and bridged, rows and plots in out/ (some minutes, on a quiet machine)
	@scripts/setup guests
	@mkdir -p $(OUT)
	@ISTHMUS_BIN_DIR=$(CURDIR)/$(RELEASE) cargo bench --quiet --package isthmus-guests --bench guests -- --out $(abspath $(OUT))

guest: build ## What guests need in out/isthmus-guest.tar.gz, to be unpacked at /: programs that need no library, the unit, the driver's source, MX
	@RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet --release --package isthmus --package isthmusd \
		--target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir target/static
	@rm -rf target/static/tree && packaging/install --guest target/static/tree "$(PREFIX)"
	@mkdir -p $(OUT) && tar -C target/static/tree -czf $(OUT)/isthmus-guest.tar.gz . && echo "Written: $(OUT)/isthmus-guest.tar.gz"

install: ## Copies programs, the C libraries and systemd units (PREFIX=/usr/local, DESTDIR=); after `make build`
	@packaging/install "$(DESTDIR)" "$(PREFIX)"

uninstall: ## Takes away what `make install` copied
	@packaging/install --remove "$(DESTDIR)" "$(PREFIX)"

clean: ## Takes away everything made
	@rm -rf target $(OUT)
