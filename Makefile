# What a person or CI does with this repository. `make` alone builds.

# A missing server program or browser, or a client library that npm can't fetch, fails tests instead of skipping them.
export REQUIRE_SERVERS ?= 1
# The race detector has a process sleep for a second before it exits, in which other threads could still report.
export GORACE ?= atexit_sleep_ms=10
# How long `make fuzz` spends on each target.
FUZZTIME ?= 20s
# Flags of the bench program, for example BENCHFLAGS=-short; `.run/bench -h` lists them.
BENCHFLAGS ?=
# Flags of the program that starts the daemons for `make load`, such as -delay 100ms.
LOADFLAGS ?=

daemons := $(patsubst %/main.go,%,$(wildcard auth/main.go ratelimit/main.go))
# The packages of their settings, which docs/settings.md is made from.
configs := $(foreach d,$(daemons),$(firstword $(wildcard ./$(d)/internal/config) ./$(d)))
# Without net/trace the linker drops 6 MB of templates that nobody looks at.
tags := -tags grpcnotrace
# git may refuse to answer (no git, a checkout of another user): then the build info has no commit.
buildvcs := $(shell git status >/dev/null 2>&1 && echo auto || echo false)
# What builds images: docker, podman, …
DOCKER ?= docker
# Modules linked into a daemon, one a line, without our own.
linked = CGO_ENABLED=0 go list $(tags) -deps -f '{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}' ./$(1) | LC_ALL=C sort -u

# The tests that count what a call costs, those of random cases, which under race are fewer, and the packages that have
# tests of such names, in reverse order, since ratelimit/internal/server takes longest.
counting := Alloc|Statements|Commands|Random
having = $$(grep -rlE --include='*_test.go' '^func Test[A-Za-z0-9_]*($(1))' auth bench ratelimit shared | xargs -n1 dirname | sort -ru | sed 's|^|./|')
# Under the race detector bcrypt and scrypt take ten times as long, and no two goroutines share what they compute with.
uninstrumented := $(foreach p,blowfish scrypt,-gcflags=golang.org/x/crypto/$(p)=-race=false)
# Tests wait for servers and processes more than they compute: twice as many packages at once as there are cores.
crowded := -p $$((2 * $$(nproc)))

.PHONY: build help run test fetch test-race test-counts test-short check deps docs bench load load-late fuzz image upgrade release lint

build: # static and stripped bin/<daemon>, with version and commit; minutes the first time, then seconds
	CGO_ENABLED=0 go build -buildvcs=$(buildvcs) $(tags) -trimpath -ldflags='-s -w' -o bin/ $(addprefix ./,$(daemons))

help: # this list; less than a second
	@awk -F ':[^#]*# ' '/^[a-z-]+:.*# / { printf "%-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: build # everything from nothing, until Ctrl-C; ready some seconds after it is built
	@.ci/need initdb
	@go build -o .run/devstack ./shared/devstack
	@exec .run/devstack

test: build # exactly what CI runs, check included; some 12 minutes on two cores
	@.ci/need redis-server memcached initdb pgbouncer curl npm promtool gcc libc bwrap chromium systemd-analyze
	@$(MAKE) --no-print-directory -j2 check fetch
	@$(MAKE) --no-print-directory test-race
	@$(MAKE) --no-print-directory test-counts

fetch: # what tests run and Debian has no package of: Envoy, gRPC clients, schemas of Kubernetes; a minute the first time
	@.ci/envoy
	@.ci/clients
	@.ci/schemas

test-race: # the tests alone, with the race detector; some minutes. PACKAGES and RUN name fewer
	CGO_ENABLED=1 go test -race $(uninstrumented) -shuffle=on -vet=off $(crowded) -timeout 25m -run '$(RUN)' $(or $(PACKAGES),./...)

test-counts: # the tests of what a call costs, without race, where sync.Pool drops items on purpose, and of random cases; two minutes
	go test -vet=off $(crowded) -run '$(or $(RUN),$(counting))' $(or $(PACKAGES),$(call having,$(counting)))

test-short: # whatever needs no server; some minutes
	REQUIRE_SERVERS= go test -short -shuffle=on ./...

upgrade: # the former release replaced by today's and back, under load on one database and one Redis; two minutes
	@.ci/need redis-server initdb
	UPGRADE_TIME=100s go test -count 1 -run '^TestUpgrade$$' ./auth/test ./ratelimit/test

release: # builds the commit twice into .run/release, compares, and says what is missing; some ten minutes
	@.ci/need dpkg-deb buildah
	@.ci/release

lint: # staticcheck alone, in the version that .ci/lint pins; minutes the first time, then seconds
	@.ci/lint

check: # format, vet, staticcheck, linked modules, settings tables; minutes the first time, then half a minute
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change:" $$unformatted; exit 1; }
	go vet ./...
	@.ci/lint
	@for d in $(daemons); do \
		$(call linked,$$d) | diff $$d/deps.txt - || { echo "$$d links other modules than $$d/deps.txt says; make deps writes it anew"; exit 1; }; \
	done
	go test $(configs) -run '^TestDocs_settingsTables$$'
	go test ./auth/internal/httpapi -run '^TestOpenAPI_isCompressed$$'

deps: # rewrites the lists of modules that check compares; seconds
	@for d in $(daemons); do $(call linked,$$d) > $$d/deps.txt; done

docs: # writes the tables of the daemons' docs/settings.md and openapi.json.gz, which check compares; seconds once compiled
	@go test $(configs) -count 1 -run '^TestDocs_settingsTables$$' -update
	@go test ./auth/internal/httpapi -count 1 -run '^TestOpenAPI_isCompressed$$' -update

bench: build # Go benchmarks, then whole daemons against their budgets; some 25 minutes
	@.ci/need redis-server memcached redis-benchmark initdb
	@go build -o .run/bench ./bench
	@exec .run/bench $(BENCHFLAGS)

load: build # k6 scripts against daemons of their own; under two minutes once k6 is compiled
	@.ci/need initdb redis-server
	@go build -o .run/bench ./bench
	@.run/bench with-auth $(LOADFLAGS) loadtest/run auth
	@exec .run/bench with-ratelimit $(LOADFLAGS) loadtest/run ratelimit

load-late: # the same scripts against daemons that answer 100 ms late: each must find its limits crossed; under two minutes
	@EXPECT=99 $(MAKE) load LOADFLAGS='-delay 100ms'

fuzz: # each of some 60 fuzz targets for FUZZTIME, 20 seconds
	@.ci/fuzz $(FUZZTIME)

image: # each daemon as an image of one static binary, for this machine's architecture; some minutes
	@command -v $(firstword $(DOCKER)) >/dev/null || { \
		echo "there is no $(firstword $(DOCKER)): DOCKER=podman or the like names another program that builds images" >&2; exit 1; }
	@for d in $(daemons); do \
		args=$$(.ci/root $$d $$(go env GOARCH) .run/root/$$d) || exit 1; \
		$(DOCKER) build -f $$d/Dockerfile $$args -t gatehouse/$$d .run/root/$$d || exit 1; \
	done
