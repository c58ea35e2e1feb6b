# Builds, installs, tests and shows pg_cyclone.
#
#   make install PG_CONFIG=/path/to/pg_config    build and install into a PostgreSQL 17, 18 or 19
#   make installcheck PG_CONFIG=...              regression and isolation tests on a running server with pg_cyclone preloaded
#   make image-volume IMAGE_VOLUME=/folder PG_CONFIG=...   the files apart from a server's, as CloudNativePG mounts them
#   make dist                                    build/pg_cyclone-VERSION.zip for PGXN, of the last commit
#   make demo  [DEMO_ARGS="--rows 500000"]       a full disk, a big table, an adaptive delay: three parts, each with its figure; a picture into build
#   make try                                     psql on a server with pg_cyclone, which is gone when psql ends
#   make figures                                 the pictures and tables of README and docs/, of the results in bench/saved
#   make check [PG_VERSIONS=18] [PYTEST_ARGS=-v] the tests on embedded PostgreSQL 18, and on 17 and 19 what can differ there, after make tidy
#   make check-all [PG_VERSIONS=18] [PYTEST_ARGS=-v] [PGSRC=/path/to/postgresql-18]   every test on each version, long ones, too; coverage; check-minors; check-builds with PGSRC
#   make check-fast                              those tests on PostgreSQL 18 that take two minutes together
#   make check-units                             what needs no server, in seconds, with gcc's sanitizers
#   make coverage                                which lines that those tests are for they don't reach, by gcov
#   make tidy [PGSRC=/path/to/postgresql-18]     the rules of the source tree; C has pgindent's shape if PostgreSQL's source is there
#   make measure-versions [FILES="test_smoke.py"]   test/versions.tsv: which tests come by what differs between versions, by gcov
#   make check-ubsan [PG_VERSIONS=18] [PYTEST_ARGS=-v]   the same with gcc's -fsanitize=undefined in pg_cyclone
#   make check-junk [CYCLONE_PG18=/with/assertions] [JEMALLOC=/path/to/libjemalloc.so.2]   freed memory is filled by jemalloc, caches are forgotten: some tests, once a release
#   make check-minors [PG_VERSIONS=17] [PGSRC=/path/to/postgresql-18]   compiled for each minor version that can be had, and what differs there
#   make check-debs [DEBS_ARGS="--keep sid"]   the packages built, tested, used and removed in bare systems of Debian, the pages' and the Dockerfiles' steps, too; as root
#   make check-builds PGSRC=/path/to/postgresql-18   the smoke tests on servers with segments of 6 blocks, and with blocks of 32 kB
#   make check-bytes BEFORE=COMMIT [BASE=/dev/shm]   VACUUM in one process writes the WAL and the pages that it wrote at that commit
#   make check-mutants [MUTANTS="name"]          small faults put into the engine on purpose, and what finds each
#   make monitoring                              the files of monitoring/ for exporters and Grafana, of its metrics.toml
#   make check-core PGSRC=/path/to/postgresql-18 [SUITES="regress recovery/02*"]   PostgreSQL's own tests with pg_cyclone engaged
#   make check-valgrind PGSRC=/path/to/postgresql-18   a server under valgrind, built as scripts/check_valgrind.py says
#   make crash-test [ROUNDS=500] [SEED=1]        crashes under load, each followed by every check; VERSION=17 for PostgreSQL 17
#   make fault-test [FAULTS=200] [SEED=1]        a disk that fails in the midst of VACUUM, likewise
#   make damage-test [DAMAGES=500] [SEED=1]      files damaged at random, each under every VACUUM beside PostgreSQL's
#   make power-test [ROUNDS=300] [SEED=1] [FILESYSTEM=xfs]   power cuts under load, likewise; as root
#   make soak [MINUTES=60] [WRITERS=8] [SEED=1]  load and VACUUM with a physical standby and a logical subscriber, likewise
#   make twins [MINUTES=10] [WRITERS=8] [SEED=1] the same work on two equal tables, one of them compacted all the time
#     AUTOVACUUM=1: all of these but the damage test with autovacuum on the engine as a driver, with low thresholds, teams and forced ones
#   make prove-large [SIZE=6] [BASE=/on/a/disk]  a table of SIZE GB after each kind of VACUUM, by every check
#   make prove-far [BASE=/dev/shm] [INPLACE=1]   a table and an index of 17 TB, of sparse files, with rows at both ends and in the middle
#   make bench [BENCH_ARGS="--base /dev/shm"]    the benchmarks, into bench/results; BENCH_ARGS=--help lists their options
#   make bench-compare BEFORE=COMMIT [COMPARE_ARGS="--base /dev/shm"]   which phase of VACUUM is slower than at that commit
#   make bench-audit                             what audits cost
#   make bench-vectors [VECTORS_ARGS="--rows 20000"]  an HNSW index of pgvector, whose source CYCLONE_PGVECTOR names
#   make bench-recall [RECALL_ARGS="--rows 5000"]  what searches of such an index find after many rounds of VACUUM
#   make bench-tables [TABLES_ARGS="--rounds 5"] a database of many small tables
#   make bench-large [SIZE=4] [BASE=/on/a/disk] [LARGE_ARGS="--rounds 1"]  a table of SIZE GB, larger than memory at best, into bench/results/large
#   make bench-pace                              how exact budgets are, and what the adaptive delay makes of loads
#   make bench-guards [BENCH_ARGS="--base /dev/shm"]   the lag of a slow standby while VACUUM runs, with and without a bound
#   make bench-compaction [COMPACTION_ARGS="--minutes 3"]  a week in an hour: sizes with autovacuum alone, and with compaction
#   make bench-views [VIEWS_ARGS="--tables 1000"]  how long the views about all tables take
#   make bench-online [ONLINE_ARGS="--rows 5000000"]  making a table small while others use it, beside other programs
#   make bench-tpcc [TPCC_ARGS="--warehouses 4"] VACUUM as those who use the database see it, into bench/results/tpcc
#   make bench-autovacuum [AUTOVACUUM_ARGS="--minutes 1"] autovacuum by PostgreSQL and by pg_cyclone, into bench/results/autovacuum
#
# DEBUG_POINTS=1 compiles in the wait and error points that tests use, WERROR=1 turns warnings into errors.
#
# Objects never land in the source tree. Called there, this file passes the PGXS targets on to itself in a build folder,
# one for each major version; called with -f from any other folder it builds in that folder (a VPATH build).

TOP := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
PG_CONFIG ?= pg_config
EXTENSION_VERSION := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(TOP)/pg_cyclone.control)

ifeq ($(CURDIR),$(TOP))

PG_VERSIONS ?= 17 18 19
PYTHON ?= python3
PG_MAJOR = $(or $(shell $(PG_CONFIG) --version | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p'),$(error no pg_config found: set PG_CONFIG=/path/to/pg_config))
BUILD_DIR = build/$(PG_MAJOR)$(if $(DEBUG_POINTS),-debug)
VENV_PYTHON = PYTHONPATH=test .venv/bin/python
JUNK_TESTS = smoke inplace index_shrink rewrite compaction faults
FAST_TESTS = units smoke options regress dead_tids parallel progress checks btree_splits hash_splits tree_rules
COMMON_RUN = $(if $(SEED),--seed $(SEED)) $(if $(BASE),--base $(BASE)) $(if $(AUTOVACUUM),--autovacuum)
# what is told relative to this folder, for the make in BUILD_DIR
ABSOLUTE = $(if $(findstring /,$(PG_CONFIG)),PG_CONFIG=$(abspath $(PG_CONFIG))) $(if $(DESTDIR),DESTDIR=$(abspath $(DESTDIR)))
LONG_RUN = $(COMMON_RUN) $(if $(FIRST),--first $(FIRST))

.PHONY: all install uninstall installcheck clean dist distclean image-volume demo try say-demo say-try measure-versions monitoring check check-all check-builds check-bytes check-core check-debs check-fast check-junk check-minors check-mutants check-units coverage tidy check-ubsan check-valgrind crash-test fault-test damage-test power-test soak twins prove-large prove-far figures bench bench-audit bench-autovacuum bench-compaction bench-compare bench-guards bench-large bench-online bench-pace bench-recall bench-tables bench-tpcc bench-vectors bench-views
.DEFAULT_GOAL := all

all install uninstall installcheck:
	@mkdir -p $(BUILD_DIR)
	+@$(MAKE) --no-print-directory -C $(BUILD_DIR) -f $(TOP)/Makefile $@ $(ABSOLUTE)

clean:
	rm -rf build

# Folders lib and share/extension, for dynamic_library_path and, since PostgreSQL 18, extension_control_path.
image-volume:
	$(if $(IMAGE_VOLUME),,$(error name a folder: make image-volume IMAGE_VOLUME=/folder))
	+@$(MAKE) --no-print-directory install DESTDIR= pkglibdir=$(abspath $(IMAGE_VOLUME))/lib datadir=$(abspath $(IMAGE_VOLUME))/share

dist:
	@mkdir -p build
	git archive --format=zip --prefix=pg_cyclone-$(EXTENSION_VERSION)/ --output=build/pg_cyclone-$(EXTENSION_VERSION).zip HEAD
	@echo build/pg_cyclone-$(EXTENSION_VERSION).zip
	@! grep -q 'pg-cyclone\.invalid' META.json || echo 'Not to be uploaded yet: the addresses in META.json are placeholders' >&2

distclean: clean
	rm -rf .venv .postgres

# said before the wait for the first files that are fetched
say-try:
	@echo 'make try: psql on a server of its own with pg_cyclone. Nothing that is installed is touched.'

say-demo:
	@echo 'make demo: what pg_cyclone does, in three parts, on servers of their own. Nothing that is installed is touched.'

demo: $(if $(wildcard .venv/stamp),,say-demo) .venv/stamp
	PYTHONPATH=test:bench .venv/bin/python scripts/demo.py $(DEMO_ARGS)

try: $(if $(wildcard .venv/stamp),,say-try) .venv/stamp
	$(VENV_PYTHON) scripts/try_server.py

monitoring: .venv/stamp
	$(VENV_PYTHON) scripts/make_monitoring.py

check: tidy
	$(VENV_PYTHON) -m cyclone_lab.build $(PG_VERSIONS)
	PG_VERSIONS="$(PG_VERSIONS)" $(VENV_PYTHON) -m pytest $(PYTEST_ARGS)

check-all: coverage check-minors $(if $(PGSRC),check-builds)
	$(MAKE) check PYTEST_ARGS="--whole $(PYTEST_ARGS)"

measure-versions: .venv/stamp
	CYCLONE_COVERAGE=1 $(VENV_PYTHON) scripts/measure_versions.py $(FILES)

check-fast: tidy
	PG_VERSIONS=18 $(VENV_PYTHON) -m pytest $(addprefix test/pytest/test_,$(FAST_TESTS:=.py)) $(PYTEST_ARGS)

check-units: .venv/stamp
	PG_VERSIONS=18 $(VENV_PYTHON) -m pytest -n 0 test/pytest/test_units.py $(PYTEST_ARGS)

coverage: .venv/stamp
	$(VENV_PYTHON) scripts/coverage.py

tidy: .venv/stamp
	PGSRC="$(PGSRC)" scripts/tidy

check-ubsan: .venv/stamp
	CYCLONE_UBSAN=1 PG_VERSIONS="$(PG_VERSIONS)" $(VENV_PYTHON) -m pytest $(PYTEST_ARGS)

check-junk: .venv/stamp
	CYCLONE_JUNK=$(or $(JEMALLOC),$(firstword $(wildcard /usr/lib/*/libjemalloc.so.2)),$(error install jemalloc: libjemalloc2)) PG_VERSIONS=18 $(VENV_PYTHON) -m pytest $(addprefix test/pytest/test_,$(JUNK_TESTS:=.py)) $(PYTEST_ARGS)

check-minors: .venv/stamp
	$(VENV_PYTHON) scripts/check_minors.py $(PG_VERSIONS) $(if $(PGSRC),--pgsrc $(PGSRC))

check-builds: .venv/stamp
	$(VENV_PYTHON) scripts/check_builds.py $(or $(PGSRC),$(error name a source tree of PostgreSQL: make check-builds PGSRC=/path/to/postgresql-18))

check-bytes: .venv/stamp
	$(VENV_PYTHON) scripts/check_bytes.py $(or $(BEFORE),$(error name a commit: make check-bytes BEFORE=COMMIT)) $(if $(BASE),--base $(BASE))

check-mutants: .venv/stamp
	$(VENV_PYTHON) scripts/check_mutants.py $(MUTANTS)

check-debs: .venv/stamp
	$(VENV_PYTHON) scripts/check_packages.py $(DEBS_ARGS)

check-core: .venv/stamp
	$(VENV_PYTHON) scripts/check_core.py $(or $(PGSRC),$(error name a source tree of PostgreSQL: make check-core PGSRC=/path/to/postgresql-18)) $(foreach suite,$(SUITES),'$(suite)')

check-valgrind: .venv/stamp
	$(VENV_PYTHON) scripts/check_valgrind.py $(or $(PGSRC),$(error name a source tree of PostgreSQL: make check-valgrind PGSRC=/path/to/postgresql-18))

crash-test: .venv/stamp
	$(VENV_PYTHON) -m long_runs.crash_test --rounds $(or $(ROUNDS),500) --version $(or $(VERSION),18) $(LONG_RUN)

fault-test: .venv/stamp
	$(VENV_PYTHON) -m long_runs.fault_test --faults $(or $(FAULTS),200) --version $(or $(VERSION),18) $(LONG_RUN)

power-test: .venv/stamp
	$(VENV_PYTHON) -m long_runs.power_test --rounds $(or $(ROUNDS),300) --version $(or $(VERSION),18) $(LONG_RUN) $(if $(FILESYSTEM),--filesystem $(FILESYSTEM))

damage-test: .venv/stamp
	$(VENV_PYTHON) -m long_runs.damage_test --damages $(or $(DAMAGES),500) --version $(or $(VERSION),18) $(LONG_RUN)

soak: .venv/stamp
	$(VENV_PYTHON) -m long_runs.soak --minutes $(or $(MINUTES),60) --writers $(or $(WRITERS),8) --version $(or $(VERSION),18) $(COMMON_RUN)

twins: .venv/stamp
	$(VENV_PYTHON) -m long_runs.twins --minutes $(or $(MINUTES),10) --writers $(or $(WRITERS),8) --version $(or $(VERSION),18) $(COMMON_RUN)

prove-large: .venv/stamp
	$(VENV_PYTHON) -m long_runs.large_proof --version $(or $(VERSION),18) $(if $(SIZE),--size $(SIZE)) $(if $(BASE),--base $(BASE))

prove-far: .venv/stamp
	$(VENV_PYTHON) -m long_runs.far_proof --version $(or $(VERSION),18) $(if $(BASE),--base $(BASE)) $(if $(INPLACE),--inplace)

bench: .venv/stamp
	$(VENV_PYTHON) bench/run.py $(BENCH_ARGS)

figures: .venv/stamp
	$(VENV_PYTHON) bench/figures.py $(FIGURES_ARGS)

bench-large: .venv/stamp
	$(VENV_PYTHON) bench/large.py $(if $(SIZE),--size $(SIZE)) $(if $(BASE),--base $(BASE)) $(LARGE_ARGS)

bench-pace: .venv/stamp
	$(VENV_PYTHON) bench/pace.py $(BENCH_ARGS)

bench-guards: .venv/stamp
	$(VENV_PYTHON) bench/guards.py $(BENCH_ARGS)

bench-compaction: .venv/stamp
	$(VENV_PYTHON) bench/compaction.py $(COMPACTION_ARGS)

bench-compare: .venv/stamp
	$(VENV_PYTHON) bench/compare.py $(or $(BEFORE),$(error name a commit: make bench-compare BEFORE=COMMIT)) $(COMPARE_ARGS)

bench-views: .venv/stamp
	$(VENV_PYTHON) bench/views.py $(VIEWS_ARGS)

bench-tables: .venv/stamp
	$(VENV_PYTHON) bench/tables.py $(TABLES_ARGS)

bench-audit: .venv/stamp
	$(VENV_PYTHON) bench/audit.py $(AUDIT_ARGS)

bench-vectors: .venv/stamp
	$(VENV_PYTHON) bench/vectors.py $(VECTORS_ARGS)

bench-recall: .venv/stamp
	$(VENV_PYTHON) bench/recall.py $(RECALL_ARGS)

bench-online: .venv/stamp
	$(VENV_PYTHON) bench/online.py $(ONLINE_ARGS)

bench-tpcc: .venv/stamp
	PYTHONPATH=test:bench .venv/bin/python -m tpcc $(TPCC_ARGS)

bench-autovacuum: .venv/stamp
	$(VENV_PYTHON) bench/autovacuum.py $(AUTOVACUUM_ARGS)

.venv/stamp: requirements.txt
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo 'Python cannot make virtual environments: on Debian run "apt install python3-venv"' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --retries 5 -r requirements.txt
	touch $@

else

VPATH = $(TOP)
below_top = $(patsubst $(TOP)/%,%,$(wildcard $(addprefix $(TOP)/,$(1))))

MODULE_big = pg_cyclone
EXTENSION = pg_cyclone
PGFILEDESC = "pg_cyclone - VACUUM by blocks, in parallel"
DATA = $(call below_top,sql/pg_cyclone--*.sql)
OBJS = $(patsubst %.c,%.o,$(call below_top,src/*.c src/*/*.c src/*/*/*.c))
PG_CPPFLAGS = -I$(TOP)/src -DCYCLONE_VERSION=$(EXTENSION_VERSION) $(if $(DEBUG_POINTS),-DCYCLONE_DEBUG_POINTS)
PG_CFLAGS = $(if $(WERROR),-Werror)
EXTRA_CLEAN = build-settings server_features.h

REGRESS = $(notdir $(basename $(call below_top,test/sql/*.sql)))
REGRESS_OPTS = --inputdir=$(TOP)/test --expecteddir=$(TOP)/test --load-extension=$(EXTENSION)
ISOLATION = $(notdir $(basename $(call below_top,test/specs/*.spec)))
ISOLATION_OPTS = $(REGRESS_OPTS)

PGXS := $(shell $(PG_CONFIG) --pgxs)

# A server with LLVM wants bitcode, too, by the clang that it was built with. Nobody misses it: no query is made of our functions alone.
server_clang := $(or $(CLANG),$(shell sed -n 's/^CLANG *= *//p' '$(dir $(PGXS))../Makefile.global' 2>/dev/null))
ifeq ($(shell command -v $(server_clang) 2>/dev/null),)
override with_llvm := no
endif
include $(PGXS)

# The tests are of the engine, also where the server's files leave it off, as docs/rollout.md has it at first.
installcheck: export PGOPTIONS += -c cyclone.enabled=on

# PGXS makes no folders for nested objects and knows neither their headers nor the flags and server they were built for.
$(OBJS): $(wildcard $(addprefix $(TOP)/src/,*.h */*.h */*/*.h)) build-settings
$(OBJS) $(OBJS:.o=.bc): server_features.h

build_settings := $(shell $(PG_CONFIG) --version --bindir --configure --cflags) $(PG_CPPFLAGS) $(PG_CFLAGS) $(COPT)
build-settings: FORCE
	@mkdir -p $(dir $(OBJS))
	@printf '%s\n' "$(build_settings)" | cmp -s - $@ || printf '%s\n' "$(build_settings)" > $@

# What differs between minor versions, as this server has it: asked at each build, as that takes a tenth of a second.
server_features.h: FORCE
	@features=$$($(TOP)/scripts/probe-server $(CC) $(CPPFLAGS) $(CFLAGS)) || exit 1; \
		printf '%s\n' "$$features" | cmp -s - $@ || printf '%s\n' "$$features" > $@
.PHONY: FORCE

endif
