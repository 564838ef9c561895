# pdrouter: one non-recursive Makefile.  Every folder's *.c by wildcard; each variant builds in
# build/<variant>/.  `make help` lists the targets.
#
# To add
#   a C file in a room, a room, a unit test, a fuzz target: nothing, wildcards find them
#   a program: its file with main() in MAINS, a rule, its name in BINS, a line in `install`
#   objects that one test needs besides: a line like that of $(B)/unit/worker/schedule/threshold
#   a target: a rule, its name in .PHONY, a line in HELP
# the tag of the checkout; a source tarball's own; else this one
RELEASE := 0.1.0
VERSION := $(or $(file <.version),$(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//; s/-\([0-9]*\)-g/+\1.g/'),$(RELEASE))
VARIANT ?= release
B       := build/$(VARIANT)
PREFIX  ?= /usr/local
DESTDIR ?=
ifeq ($(origin CC),default)
CC      := gcc
endif
# V=1 shows whole command lines
Q       := $(if $(V),,@)
say      = $(if $(V),,@echo "  $(1)")

# the folder of the checkout is not in what is built: the same sources make the same bytes anywhere
CSTD    := -std=gnu11 -D_GNU_SOURCE -I. -ffile-prefix-map=$(CURDIR)=.
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
           -Wpointer-arith -Wcast-qual -Wwrite-strings -Wundef -Wvla -Wformat=2 -Wimplicit-fallthrough -Wswitch-enum
# returns and indirect jumps go where the compiler meant them to, where the processor checks that.  tests/lint/binary.py
# looks for these in what was built
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
BRANCH_x86_64  := -fcf-protection=full
BRANCH_aarch64 := -mbranch-protection=standard
MARK_x86_64    := -Wl,-z,shstk
HARDEN  := -fPIE -fstack-protector-strong -fstack-clash-protection $(BRANCH_$(MACHINE)) -fno-omit-frame-pointer
FORTIFY := -D_FORTIFY_SOURCE=3
LINK    := -pie -Wl,-z,relro,-z,now,-z,noexecstack $(MARK_$(MACHINE))
OPT     := -O2 -g
ifdef CI
WARN    += -Werror
endif

# both sanitizers in one build: the end-to-end tests are run under them once
SAN_asan := -fsanitize=address,undefined -fno-sanitize-recover=all
SAN_ubsan := -fsanitize=undefined -fno-sanitize-recover=all
SAN_debug := -DPDROUTER_DEBUG
ifneq ($(filter asan ubsan,$(VARIANT)),)
OPT     := -O1 -g
FORTIFY :=
SAN     := $(SAN_$(VARIANT)) -DPDROUTER_DEBUG
endif
# clang's, for libFuzzer
ifeq ($(VARIANT),fuzz)
CC      := clang
WARN    := -Wall
OPT     := -O1 -g
FORTIFY :=
SAN     := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -DPDROUTER_DEBUG
endif
# for the torture program alone; -Wno-tsan: gcc says that TSan does not know fences, and none of what
# TSan is to check hangs on one (shm/core/atomic.h)
ifeq ($(VARIANT),tsan)
OPT     := -O1 -g
FORTIFY :=
SAN     := -fsanitize=thread -Wno-tsan -DPDROUTER_TSAN
endif
# a program that an upgrade finds a stranger's: tests/e2e/test_upgrade_storm.py
ifeq ($(VARIANT),layout)
SAN     := -DSHM_VERSION=4711
endif
ifeq ($(VARIANT),debug)
OPT     := -O0 -g
FORTIFY :=
SAN     := -DPDROUTER_DEBUG
endif

CFLAGS  ?=
CF      = $(CSTD) $(OPT) $(WARN) $(HARDEN) $(FORTIFY) $(SAN) $(CFLAGS)
LF      := $(LINK) $(SAN) $(LDFLAGS)
LIBS    := -levent_core -levent_extra -lhttp_parser -ljson-c -lzmq -lyaml -lcares -lresolv -lsystemd -lseccomp -lssl -lcrypto -lm

# every room of a folder: one level below it
LIB_SRC    := $(wildcard shm/*.c shm/*/*.c proto/*/*.c)
# these hold a main(), or draw on a terminal; unit tests are linked with all else of the rooms
MAINS      := master/main.c master/pdctl/pdctl.c master/pdfleet/pdfleet.c master/pdtop/pdtop.c \
              master/pdtop/screen.c
PROC_SRC   := $(filter-out $(MAINS),$(wildcard master/*.c master/*/*.c worker/*.c worker/*/*.c))
ENGINE_SRC := $(wildcard tests/engine/*.c)
UNIT_SRC   := $(shell find tests/unit -name '*.c')

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
LIB_OBJ  := $(call obj,$(LIB_SRC))
PROC_OBJ := $(call obj,$(PROC_SRC))
UNIT_BIN := $(patsubst tests/unit/%.c,$(B)/unit/%,$(UNIT_SRC))
BINS     := $(B)/pdrouter $(B)/pdctl $(B)/pdfleet $(B)/pdtop $(B)/pdsim

# as many jobs as there are processors, unless -j was given: a submake shares those
JOBS = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))

.PHONY: all
all: deps-build
	@$(MAKE) --no-print-directory $(JOBS) bins

.SECONDARY:
.PHONY: bins units
bins: $(BINS)
units: $(UNIT_BIN)

$(B)/pdrouter: $(call obj,master/main.c) $(PROC_OBJ) $(LIB_OBJ)
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ $(LIBS)
$(B)/pdctl: $(call obj,$(wildcard master/pdctl/*.c))
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ -lcrypto
$(B)/pdfleet: $(call obj,$(wildcard master/pdfleet/*.c master/topology/*.c master/config/*.c shm/base/*.c proto/http/*.c proto/json/*.c proto/tls/*.c))
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ -lyaml -lhttp_parser -ljson-c -lssl -lcrypto -lm
$(B)/pdtop: $(call obj,$(wildcard master/pdtop/*.c) master/pdctl/ask.c master/pdctl/print.c)
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ -lncursesw -ltinfo -ljson-c
$(B)/pdsim: $(call obj,$(ENGINE_SRC))
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ -levent_core -lhttp_parser -ljson-c -lzmq
# a fuzz target over its corpus, without libFuzzer
REPLAYS := $(patsubst tests/fuzz/fuzz_%.c,$(B)/replay/%,$(wildcard tests/fuzz/fuzz_*.c))
.PHONY: replays
replays: $(REPLAYS)
$(B)/replay/%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/replay.o $(PROC_OBJ) $(LIB_OBJ)
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ $(LIBS)
$(B)/replay/worker: $(call obj,tests/fuzz/fake_os.c tests/fuzz/fleet.c)
# the same under libFuzzer: VARIANT=fuzz, for tests/fuzz/run.sh
$(B)/whole/%: $(B)/obj/tests/fuzz/fuzz_%.o $(call obj,tests/fuzz/fake_os.c tests/fuzz/fleet.c) $(PROC_OBJ) $(LIB_OBJ)
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -fsanitize=fuzzer -o $@ $^ $(LIBS)
# what the parsers say, for tests/fuzz/differential.py
$(B)/tell: $(call obj,tests/fuzz/tell.c $(wildcard proto/http/*.c proto/json/*.c proto/wire/*.c shm/base/*.c))
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ -lhttp_parser -ljson-c -lresolv -lm
# always with the debug checks: freed tables are poisoned; with random bits of its own, that a seed repeats
$(B)/torture: $(wildcard tests/torture/*.[ch]) $(wildcard shm/*.[ch] shm/core/*.[ch]) shm/base/clock.c shm/base/hex.c shm/base/mem.c shm/base/prefix_hash.c shm/base/prefix_key.c shm/base/sip.c
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(CF) -DPDROUTER_DEBUG -pthread $(LF) -o $@ $(filter %.c,$^) -lm
# tests/chaos: a wire that loses and delays
$(B)/pdwire: $(B)/obj/tests/chaos/wire.o
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^
# the learned threshold is held against a simulated fleet
$(B)/unit/worker/schedule/threshold: $(call obj,tests/bench/sched_routes.c tests/bench/sched_trace.c)
$(B)/unit/%: $(B)/obj/tests/unit/%.o $(PROC_OBJ) $(LIB_OBJ)
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ $(LIBS) -lcriterion

# written when these change: then every object is built again
FLAGS := $(CC) $(CSTD) $(OPT) $(HARDEN) $(FORTIFY) $(SAN) $(CFLAGS) $(LF)
ifneq ($(file <$(B)/flags),$(FLAGS))
$(shell mkdir -p $(B))
$(file >$(B)/flags,$(FLAGS))
endif

# written when it changes: then the objects that name it are built again
ifneq ($(file <$(B)/version),$(VERSION))
$(file >$(B)/version,$(VERSION))
endif
VERSIONED := $(call obj,$(shell grep -rl --include='*.c' PDROUTER_VERSION master worker shm proto))
$(VERSIONED): $(B)/version
$(VERSIONED): VERSIONING := -DPDROUTER_VERSION='"$(VERSION)"'

# files in the program
$(call obj,worker/request/status_page.c): $(addprefix worker/request/status,.html .css .js) etc/docs/runbook.md

# a test's own code is not worth a compiler's time
$(B)/obj/tests/unit/%.o: OPT := -O0 -g
$(B)/obj/tests/unit/%.o: FORTIFY :=
$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CF) $(VERSIONING) -MMD -MP -c -o $@ $<
-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

# --- what has to be installed -------------------------------------------------------------------
.PHONY: deps-build deps-test
deps-build:
	@tests/tools/deps.sh build
deps-test:
	@tests/tools/deps.sh build test verify
	@tests/tools/venv.sh

# --- sanitizers ---------------------------------------------------------------------------------
.PHONY: asan ubsan
asan ubsan: deps-build
	@$(MAKE) --no-print-directory $(JOBS) VARIANT=$@ bins

# --- tests, demo, bench -------------------------------------------------------------------------
.PHONY: engine-args proxies fleet-demo fleet-systemd fleet-tutorial chaos clients upgrade-storm misbehave scribble unit check test demo bench bench-sched bench-cache scale lint format docs torture torture-bins torture-mutants fuzz verify
torture-bins: deps-build
	@$(MAKE) --no-print-directory VARIANT=release build/release/torture
	@$(MAKE) --no-print-directory VARIANT=tsan build/tsan/torture
torture: torture-bins
	tests/torture/run.sh $(or $(SECONDS),600)
torture-mutants: deps-test
	@tests/torture/mutants.sh $(MUTANTS)
# the models beside shm's algorithms, searched whole by spin
verify:
	@tests/tools/deps.sh build verify
	@tests/verify/run.sh $(if $(WIDE),--wide)
upgrade-storm: deps-test
	@$(MAKE) --no-print-directory $(JOBS) bins
	@$(MAKE) --no-print-directory $(JOBS) VARIANT=layout build/layout/pdrouter
	@PDR_VARIANT=$(VARIANT) PDR_UPGRADE_S=$(or $(SECONDS),120) build/venv/bin/python -m pytest -c tests/e2e/pytest.ini -q -s \
		--timeout=900 tests/e2e/test_upgrade_storm.py
chaos: deps-test
	@$(MAKE) --no-print-directory $(JOBS) bins $(B)/pdwire
	@PDR_VARIANT=$(VARIANT) tests/chaos/run.sh $(or $(SECONDS),600)
# client libraries of Python and JavaScript, compared with a direct call
clients: deps-test
	@$(MAKE) --no-print-directory $(JOBS) bins
	@PDR_VARIANT=$(VARIANT) tests/clients/run.sh
# nginx, haproxy and Envoy before the router: needs a package index for Envoy
proxies: deps-test
	@$(MAKE) --no-print-directory $(JOBS) bins
	@PDR_VARIANT=$(VARIANT) tests/tools/proxies.sh
# what pdctl fleet renders, against the argument parsers of released engines: needs a package index
engine-args: deps-test
	@$(MAKE) --no-print-directory $(JOBS) bins
	@VARIANT=$(VARIANT) build/venv/bin/python -B tests/engine_args/check.py $(if $(ALL),--all)
# engines that misbehave as real ones do: each row of the table for so many seconds, and the figures
misbehave: deps-test
	@$(MAKE) --no-print-directory $(JOBS) bins
	@PDR_VARIANT=$(VARIANT) PDR_MISBEHAVE_S=$(or $(SECONDS),60) build/venv/bin/python -m pytest -c tests/e2e/pytest.ini \
		-n 2 --tb=short tests/e2e/test_misbehaving.py $(if $(ROW),-k $(ROW))
# random stores into the shared memory of a router under load: it must live, and heal
scribble: deps-test
	@$(MAKE) --no-print-directory $(JOBS) bins
	@PDR_VARIANT=$(VARIANT) PDR_SCRIBBLE_S=$(or $(SECONDS),600) PDR_SCRIBBLE_SEED=$(SEED) build/venv/bin/python -m pytest \
		-c tests/e2e/pytest.ini -s --tb=short tests/e2e/test_scribble.py
unit: deps-test
	@tests/tools/run_tests.sh unit
check: deps-test
	@tests/tools/run_tests.sh check
test: deps-test
	@tests/tools/run_tests.sh
demo: all
	@tests/tools/demo.sh
# a fleet file becomes a fleet of simulated engines, without root; scaled and changed under load
fleet-demo: all
	@tests/tools/fleet_demo.sh
# the same under a real systemd, in a container that is rebooted: needs root and systemd-nspawn
fleet-systemd: all
	@tests/tools/fleet_systemd.sh
# the commands of etc/docs/fleet_tutorial.md, on two hosts: needs root and systemd-nspawn
fleet-tutorial: all
	@tests/tools/fleet_tutorial.sh
$(B)/turns.so: tests/bench/turns.c
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(CF) -shared -fPIC $(LDFLAGS) -o $@ $<
$(B)/pdload: $(call obj,tests/bench/load.c tests/bench/load_tls.c)
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ -lssl -lcrypto
# how well and how fast it chooses: the table, marks and a plot
$(B)/sched: $(call obj,$(wildcard tests/bench/sched*.c worker/schedule/policy*.c shm/*.c shm/*/*.c) worker/schedule/select.c worker/schedule/threshold.c)
	$(call say,LD $@)
	$(Q)$(CC) $(LF) -o $@ $^ -lm
bench-sched: deps-build
	@tests/tools/deps.sh bench
	@$(MAKE) --no-print-directory $(B)/sched
	@$(B)/sched --plot $(B)/sched.dat
	@gnuplot -c tests/bench/sched_plot.gp $(B)/sched.dat $(B)/sched.png
# prefix caches over HTTP, beside other routers from PyPI
bench-cache: all
	@python3 tests/bench/cache.py
scale: all
	@python3 tests/bench/scale.py
bench: all
	@tests/tools/deps.sh bench
	@$(MAKE) --no-print-directory $(B)/pdload
	@python3 tests/bench/run.py --plot $(B)/bench.dat $(if $(PEERS),--peers); costs=$$?; \
		gnuplot -c tests/bench/run_plot.gp $(B)/bench.dat $(B)/bench.png; $(MAKE) --no-print-directory bench-sched && exit $$costs
fuzz: deps-test
	@tests/fuzz/run.sh $(or $(SECONDS),60)
lint:
	@tests/lint/run.sh
format:
	@tests/tools/format.sh
# the manual pages and completions that are made from tables of the source
docs:
	@tests/tools/man.py

# what names a place below /usr/local is installed with PREFIX in its place
DOC     := $(DESTDIR)$(PREFIX)/share/doc/pdrouter
UNITDIR ?= /lib/systemd
ZSHDIR  ?= $(PREFIX)/share/zsh/site-functions
BASHDIR  = $(PREFIX)/share/bash-completion/completions
UNITS   := $(DESTDIR)$(UNITDIR)
place    = sed 's,/usr/local/\(bin/pd\|libexec/\|share/\),$(PREFIX)/\1,g' $(1) >$(2) && chmod 644 $(2)
places   = set -e; for f in $(1); do $(call place,$$f,$(2)/$$(basename $$f)); done
.PHONY: install
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/pdrouter/fleet $(DESTDIR)/etc/pdrouter $(UNITS)/system $(UNITS)/user
	install -d $(DOC)/examples $(DOC)/monitoring $(DOC)/proxies
	install -m 755 $(B)/pdrouter $(B)/pdctl $(B)/pdfleet $(B)/pdtop $(DESTDIR)$(PREFIX)/bin/
	install -D -m 755 $(B)/pdsim $(DESTDIR)$(PREFIX)/libexec/pdrouter/pdsim
	install -m 644 etc/fleet/*.yaml $(DESTDIR)$(PREFIX)/share/pdrouter/fleet/
	install -m 644 etc/pdrouter.yaml etc/pdrouter-minimal.yaml $(DOC)/
	install -m 644 etc/examples/*.yaml $(DOC)/examples/
	install -m 644 etc/proxies/* $(DOC)/proxies/
	$(call places,etc/docs/*.md,$(DOC))
	$(call places,etc/monitoring/*,$(DOC)/monitoring)
	sed 's,\.\./etc/docs/,,g' systemd/README.md >$(DOC)/systemd.md && chmod 644 $(DOC)/systemd.md
	for s in 5 7 8; do install -d $(DESTDIR)$(PREFIX)/share/man/man$$s && $(call places,etc/man/*.$$s,$(DESTDIR)$(PREFIX)/share/man/man$$s); done
	for p in pdfleet pdtop; do ln -sf pdctl.8 $(DESTDIR)$(PREFIX)/share/man/man8/$$p.8; done
	test -e $(DESTDIR)/etc/pdrouter/pdrouter.yaml || install -m 644 etc/pdrouter-minimal.yaml $(DESTDIR)/etc/pdrouter/pdrouter.yaml
	$(if $(wildcard etc/completion),install -D -m 644 etc/completion/pdctl.bash $(DESTDIR)$(BASHDIR)/pdctl)
	$(if $(wildcard etc/completion),install -D -m 644 etc/completion/_pdctl $(DESTDIR)$(ZSHDIR)/_pdctl)
	$(call places,systemd/*.service systemd/*.slice,$(UNITS)/system)
	$(call places,systemd/user/*.service systemd/*.slice,$(UNITS)/user)

# --- packages: etc/packages/README.md ---------------------------------------------------------
# the time of all files in a package: that of the commit, or of the source tarball
SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),$(shell stat -c %Y Makefile))
.PHONY: deb
deb: all
	@tests/tools/deps.sh deb
	@VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) MAINTAINER="$(MAINTAINER)" etc/packages/deb.sh
# the package in a container; needs podman and a registry that has debian:12-slim
.PHONY: container
container: deb
	podman build -t pdrouter:$(subst +,-,$(VERSION)) -f etc/packages/Containerfile build/deb
# the same image serves a request of simulated engines; skipped where podman or root is missing
.PHONY: container-test
container-test: deb
	@tests/tools/container_test.sh
# sources, programs, bill of materials, checksums
.PHONY: dist dist-test
dist: all
	@VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) etc/packages/dist.sh
# two checkouts and the source tarball make the same bytes
dist-test: deps-build
	@tests/tools/deps.sh deb
	@tests/tools/dist_test.sh
# the package in a fresh Debian or, with SUITE=noble MIRROR=URL, Ubuntu; upgraded and taken back below streams: needs
# root, a mirror, debootstrap and systemd-nspawn
.PHONY: deb-test
deb-test: all
	@tests/tools/deps.sh deb
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) tests/tools/deb_test.sh

.PHONY: clean help
clean:
	rm -rf build
define HELP
make                     pdrouter and its tools, in build/release; VARIANT=debug, asan, ubsan: in build/VARIANT
make CI=1                the same, a warning is an error; V=1 shows whole command lines
make demo                a router and simulated engines: [CONNECTOR=nixl] [HOLD=1]
make fleet-demo          a fleet file becomes a fleet of simulated engines
make fleet-systemd       the same under a real systemd; fleet-tutorial: on two hosts.  As root

make check               two minutes: lint, unit tests, an end-to-end test of each file
make test                everything that must pass, 20 minutes
make unit                unit tests; one alone: make build/release/unit/shm/notes
make lint                checks of the source; format: its form; docs: manual pages from its tables
make asan, ubsan         the programs with sanitizers
make fuzz                fuzzers: [SECONDS=60]
make verify              models of shared memory: [WIDE=1]
make torture             shared memory under kill -9, and as threads: [SECONDS=600]
make torture-mutants     the torture notices a missing barrier: [MUTANTS=NAME]
make scribble            random stores into shared memory: [SECONDS=600] [SEED=N]
make chaos               random faults under load: [SECONDS=600] [SEED=N] [KILL_WORKERS=5]
                         [CONNECTOR=nixl] [ONLY=STEP,...] [WITHOUT=STEP,...]
make misbehave           engines that misbehave: [SECONDS=60] [ROW=test_busy]
make upgrade-storm       upgrades under load: [SECONDS=120]
make clients             client libraries; proxies: nginx, haproxy, Envoy
make engine-args         command lines of fleets, against the parsers of engines: [ALL=1]

make bench               what a request costs, beside nginx and haproxy: [PEERS=1]
make bench-sched         the scheduler; bench-cache: prefix caches; scale: a large fleet

make install             [DESTDIR=] [PREFIX=/usr/local] [UNITDIR=/lib/systemd]
make deb, dist           the Debian package; tarballs.  deb-test [SUITE=noble MIRROR=URL], dist-test try them
make container           an image with the package; container-test tries it
make clean               removes build/
endef
help:
	$(info $(HELP))
	@:
