# The tasks of the project. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: demo docs test test-long check check-deep fix bench packages install install-program install-library install-blob-library install-java install-preload install-ompi fuzz simulate clean help build

SHELL := /bin/bash
PREFIX ?= /usr/local
MPICC ?= mpicc
CARGO_TARGET_DIR ?= target
# The profile of Cargo.toml with which the installed files are compiled.
PROFILE ?= dist
# cargo gives the profile `dev` the directory `debug`.
compiled := $(CARGO_TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
quell := $(compiled)/quell
libquell := $(compiled)/libquell
libquellblob := $(compiled)/libquellblob
scripts := $(shell grep -slE '^\#!.*bash' scripts/* testbed/* .ci/run frontends/java/build examples/*/*)
# The native library of Java finds libquellblob.so relative to itself.
build_java = frontends/java/build "$(dir $(libquellblob))" "$(DESTDIR)$(PREFIX)/share/quell/java" '$$ORIGIN/../../../lib'
# Duration of `make fuzz` for each decoder, in seconds.
FUZZ_SECONDS ?= 60

demo: ## run a real Python program directly, covered and with a boot image, and print the requests that reached the file system, and the times with a delay of each request (PFS=moosefs: on a real MooseFS, as root)
	@PFS="$(PFS)" scripts/demo

test: ## run all tests; as root also those that need root
	@scripts/test

test-long: ## run 1,000 random histories of a log mount and of a pool with each kind of failure
	@scripts/test-long

check: ## check without changing any file: format, clippy, dependency map, scripts, prose, dependencies, aarch64
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --quiet --package xtask
	@if command -v shellcheck >/dev/null; then echo shellcheck $(scripts); shellcheck $(scripts); \
	else echo "shellcheck: SKIPPED: not installed; run scripts/install-deps check"; fi
	scripts/check-prose
	scripts/check-deny
	scripts/check-aarch64

check-deep: ## run the tests of the decoders under miri; needs a nightly toolchain with miri
	@scripts/check-deep

fix: ## format, apply clippy's fixes, and regenerate files (quell.h, the list in deny.toml)
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all
	BLESS=1 cargo test --quiet --package xtask

bench: ## measure direct against covered on a MooseFS and a CephFS with 4 nodes (root); results in docs/benchmarks
	@scripts/bench $(if $(VIEW),--view $(VIEW))

build: ## compile the program and the library as they are installed (PROFILE=dist, a profile of Cargo.toml)
	cargo build --profile $(PROFILE) --bin quell --bin quelld
	cargo build --profile $(PROFILE) --package quell-capi
	cargo build --profile $(PROFILE) --package quell-blob-capi
	cargo build --profile $(PROFILE) --package quell-preload

install: ## install the binary, man pages, completions, and the libraries with their headers, Python package and (with a JDK) Java package under PREFIX (default /usr/local; DESTDIR is honoured)
	@if command -v cargo >/dev/null; then $(MAKE) --no-print-directory build; fi
	@test -x $(quell) -a -x $(quell)d && test -e $(libquell).so -a -e $(libquell)_preload.so -a -e $(libquellblob).so || { echo "install: there is no $(quell), or a library is missing beside it; run 'make build' first" >&2; exit 3; }
	@$(MAKE) --no-print-directory install-program install-library install-blob-library install-preload
	@$(build_java) || { test $$? = 3 && echo "install: installed without the Java package of blobs; 'make install-java' installs it later"; }
	@echo "installed in $(DESTDIR)$(PREFIX)"

install-program:
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 755 $(quell) $(quell)d "$(DESTDIR)$(PREFIX)/bin"
	@set -e; pages=$$(mktemp -d); trap 'rm -rf "$$pages"' EXIT; \
	$(quell) generate man "$$pages/man"; $(quell) generate completions "$$pages/completions"; \
	install -d "$(DESTDIR)$(PREFIX)/share/man/man1"; \
	install -m 644 "$$pages"/man/*.1 "$(DESTDIR)$(PREFIX)/share/man/man1"; \
	for file in "$$pages"/completions/*; do case $${file##*/} in \
	  _*) to=share/zsh/site-functions/$${file##*/} ;; \
	  *.fish) to=share/fish/vendor_completions.d/$${file##*/} ;; \
	  *.bash) to=share/bash-completion/completions/quell ;; \
	  *) continue ;; esac; \
	  install -D -m 644 "$$file" "$(DESTDIR)$(PREFIX)/$$to"; done

install-preload:
	install -D -m 755 $(libquell)_preload.so "$(DESTDIR)$(PREFIX)/lib/libquell_preload.so"

install-library:
	install -D -m 755 $(libquell).so "$(DESTDIR)$(PREFIX)/lib/libquell.so"
	install -D -m 644 $(libquell).a "$(DESTDIR)$(PREFIX)/lib/libquell.a"
	strip --strip-debug "$(DESTDIR)$(PREFIX)/lib/libquell.a"
	install -D -m 644 frontends/capi/include/quell.h "$(DESTDIR)$(PREFIX)/include/quell.h"
	install -d "$(DESTDIR)$(PREFIX)/lib/pkgconfig" "$(DESTDIR)$(PREFIX)/share/quell/python/quell"
	@# With the rpath a program finds the library in a prefix that ld.so does not search.
	printf '%s\n' 'Name: quell' 'Description: Files of log stores without a mount' 'Version: 0.1.0' \
	'Cflags: -I$(PREFIX)/include' 'Libs: -L$(PREFIX)/lib -Wl,-rpath,$(PREFIX)/lib -lquell' 'Libs.private: -lpthread -ldl -lm' \
	>"$(DESTDIR)$(PREFIX)/lib/pkgconfig/quell.pc"
	install -m 644 frontends/python/quell/*.py "$(DESTDIR)$(PREFIX)/share/quell/python/quell"
	ln -sf ../../../../lib/libquell.so "$(DESTDIR)$(PREFIX)/share/quell/python/quell/libquell.so"

install-blob-library:
	install -D -m 755 $(libquellblob).so "$(DESTDIR)$(PREFIX)/lib/libquellblob.so"
	install -D -m 644 $(libquellblob).a "$(DESTDIR)$(PREFIX)/lib/libquellblob.a"
	strip --strip-debug "$(DESTDIR)$(PREFIX)/lib/libquellblob.a"
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/include" frontends/blob-capi/include/*
	install -d "$(DESTDIR)$(PREFIX)/lib/pkgconfig"
	printf '%s\n' 'Name: quell_blob' 'Description: Transactional blobs for programs that share state' 'Version: 0.1.0' \
	'Cflags: -I$(PREFIX)/include' 'Libs: -L$(PREFIX)/lib -Wl,-rpath,$(PREFIX)/lib -lquellblob' 'Libs.private: -lpthread -ldl -lm' \
	>"$(DESTDIR)$(PREFIX)/lib/pkgconfig/quell_blob.pc"
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/quell/python/quell" frontends/python/quell/*.py
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/quell/python/quell/blob" frontends/python/quell/blob/*.py
	ln -sf ../../../../lib/libquellblob.so "$(DESTDIR)$(PREFIX)/share/quell/python/quell/libquellblob.so"

install-java: ## compile and install the Java package of blobs under PREFIX; needs a JDK (Debian: default-jdk-headless), and libquellblob.so of `make build`
	@$(build_java)

install-ompi: ## compile and install the MPI-IO components for the Open MPI of MPICC (default mpicc) under PREFIX, after `make install`
	@test -z "$(DESTDIR)" || { echo "install-ompi: the components contain the path of the library; run it without DESTDIR" >&2; exit 2; }
	@test -x "$(PREFIX)/bin/quell" || { echo "install-ompi: there is no $(PREFIX)/bin/quell; run 'make install' first" >&2; exit 3; }
	@version=$$("$(MPICC)" --showme:version 2>/dev/null | sed -n 's/.*Open MPI \([0-9][^ ]*\).*/\1/p'); \
	test "$$version" || { echo "install-ompi: $(MPICC) is not the compiler of an Open MPI; name it with MPICC=..." >&2; exit 3; }; \
	"$(PREFIX)/bin/quell" mpi build --compiler "$(MPICC)" --output "$(PREFIX)/lib/quell/openmpi-$$version"

simulate: ## simulate the start of a program on up to 100,000 nodes; result in docs/benchmarks/scale.md
	@scripts/simulate

packages: ## build an archive, a .deb, an .rpm, a wheel and static programs in target/packages, and try each in a new Debian (root); PROFILE=dist
	@PROFILE=$(PROFILE) scripts/packages

docs: ## build the documents as a site with search in target/docs/site, and check its links; needs mdbook
	@scripts/docs --output "$(CARGO_TARGET_DIR)/docs"

fuzz: ## fuzz every decoder for FUZZ_SECONDS (default 60 s) each; needs cargo-fuzz
	@cargo fuzz --version >/dev/null 2>&1 || { echo "fuzz: cargo-fuzz is missing; run: cargo install cargo-fuzz --locked" >&2; exit 3; }
	@# RUSTC_BOOTSTRAP makes stable Rust accept the sanitizer's flags; fuzz/README.md explains detect_leaks.
	@set -e; for target in $$(RUSTC_BOOTSTRAP=1 cargo fuzz list); do echo "== $$target"; mkdir -p fuzz/corpus/$$target; \
	ASAN_OPTIONS=detect_leaks=0 RUSTC_BOOTSTRAP=1 cargo fuzz run "$$target" fuzz/corpus/$$target fuzz/seeds/$$target -- \
	-max_total_time=$(FUZZ_SECONDS); done

clean: ## delete all build results
	cargo clean
	rm -rf fuzz/target fuzz/artifacts

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
