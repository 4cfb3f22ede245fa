# `make` lists the targets. Everything that they need beyond Go, make and git is installed by them, from Debian's packages
# and by go's own tools.

GO      ?= go
# Without a tag, the number of commits orders builds: any build can be published as a version of the agent.
VERSION := $(shell git describe --tags --dirty 2>/dev/null || echo 0.0.0-dev.$$(git rev-list --count HEAD 2>/dev/null || echo 0)+$$(git describe --always --dirty 2>/dev/null || echo none))
BUILD   := $(GO) build -ldflags '-s -w -X main.version=$(VERSION)'
TOOLS   := $(CURDIR)/.tools

# All targets, the linter and the tests' own builds compile with the same options: each package is compiled once.
export CGO_ENABLED := 0
export GOFLAGS     := $(shell $(GO) env GOFLAGS) -trimpath

GOLANGCI_LINT := v2.15.0
ARGS    ?=

# The packages with the longest tests. They start first, and the short ones fill the second processor.
LONG := ./e2e/nspawn ./e2e/cluster ./cmd ./internal/puppetserver ./e2e/providers ./e2e ./internal/demo ./internal/testbed/puppettest ./internal/access ./internal/machines/records ./puppet ./internal/join/server

# A test's program without a debugger's tables links in half the time.
SMALL := -ldflags='-s -w'

# What the tests need beyond Go, make and git: Puppet and what it works with, whole machines, and the clouds' own tools.
# Without dbconfig-no-thanks, puppetdb asks for a database of its own. Without augeas-tools, Facter takes a quarter of each run for the
# version of Augeas.
PUPPETDB := puppetdb dbconfig-no-thanks postgresql
CLOUDS := python3-openstackclient awscli libvirt-daemon libvirt-clients libvirt-daemon-driver-qemu qemu-system-x86 qemu-utils
TESTED := puppet-agent augeas-tools puppetserver $(PUPPETDB) hiera-eyaml etcd-client cron shellcheck openssh-client openssl git g10k r10k curl cloud-init debootstrap logrotate systemd systemd-container iproute2 genisoimage $(CLOUDS)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: build
build: ## build bin/pulley and bin/pulley-agent, static; pulley alone on macOS and FreeBSD, or for them, as with GOOS=darwin
	$(BUILD) -o bin/ ./cmd/pulley $(if $(filter linux,$(or $(GOOS),$(shell $(GO) env GOOS))),./cmd/pulley-agent)

.PHONY: demo
demo: build ## play a fleet's story on this machine: make demo, or make demo ARGS=--once
	@e2e/packages puppet-agent cron openssh-client
	bin/pulley demo $(ARGS)

.PHONY: test
test: ## run all tests: unit tests, etcd, crash points, real Puppet, and machines that boot
	@e2e/packages $(TESTED)
	$(GO) test -count=1 -timeout 80m -p 3 -vet=off $(SMALL) -tags 'e2e failpoint' $(LONG) ./...

.PHONY: unit
unit: ## run the tests of packages: no Puppet, no scripts of whole programs, fewer random cases
	$(GO) test -short -vet=off -p 4 $(SMALL) ./...

.PHONY: e2e
e2e: ## run only what needs real Puppet, cloud-init and machines that boot
	@e2e/packages $(TESTED)
	$(GO) test -count=1 -timeout 40m -tags e2e ./internal/puppet ./internal/release/content ./internal/puppetserver/... ./internal/testbed/puppettest ./internal/machines/... ./internal/publish/source ./internal/release/trust ./puppet ./hieradata ./userdata ./internal/publish/controlrepo ./cmd/... ./e2e/...

.PHONY: full
full: ## run the tests of which `make test` runs a part: all lookups, each crash point of runs, applies and first boots, 1,000 edits at once, 100 interrupted rotations of secrets, long rollouts, 1,000 hostile requests, a Puppet server that is away for an hour
	@e2e/packages $(TESTED)
	PULLEY_TEST_LOOKUPS=all $(GO) test -count=1 -timeout 40m -tags e2e -run '^TestLookupIsThatOfTheNode$$' ./e2e
	PULLEY_TEST_TRACES=all PULLEY_TEST_CRASHES=all $(GO) test -count=1 -timeout 40m -tags 'e2e failpoint' -run '^(TestSecretsLeaveNoTrace|TestCrashes|TestEnvApplyCrashes|TestServerFirstBootCrashes)$$' ./cmd
	PULLEY_TEST_CONTRACT=all $(GO) test -count=1 -timeout 40m -tags e2e -run '^(TestReal|TestRealServed)$$' ./internal/testbed/puppettest
	PULLEY_TEST_MACHINES=all $(GO) test -count=1 -timeout 40m -tags e2e -run '^(TestFirstBootSurvivesPowerCut|TestTakeoverFromSystemd|TestKilledCreateLeavesMachineOrNone)$$' ./e2e/nspawn
	PULLEY_TEST_AWAY=1h $(GO) test -count=1 -timeout 100m -tags e2e -run '^TestPuppetServerScenarios$$' ./cmd
	PULLEY_TEST_HOSTILE=1000 $(GO) test -count=1 -timeout 20m -run '^TestScenarios$$/^serve_survives_hostile_requests$$' ./cmd
	PULLEY_TEST_FILES=10000 $(GO) test -count=1 -timeout 60m -tags e2e -run '^TestFilesAreReadAsPuppetDoes$$' ./internal/publish/controlrepo
	PULLEY_TEST_EDITORS=1000 $(GO) test -count=1 -run '^TestEditorsLoseNoUpdate$$' ./internal/data
	PULLEY_TEST_STARTS=500 $(GO) test -count=1 -timeout 40m -run '^TestStartsAtTheSameTime$$' ./internal/serve/control
	PULLEY_TEST_ROTATIONS=100 $(GO) test -count=1 -run '^TestUnfinishedRotationsLoseNoSecret$$' ./internal/join/server
	PULLEY_TEST_ABORTS=10000 $(GO) test -count=1 -timeout 40m -run '^TestNothingStartsAfterAnAbort$$' ./internal/serve/control
	$(GO) test -count=1 -timeout 40m ./internal/testbed/sim -sim.seeds 300
	PULLEY_CLUSTER_ROLLOUTS=5 $(GO) test -count=1 -timeout 40m -tags e2e -run '^TestRolloutSurvivesKills$$' ./e2e/cluster

.PHONY: lint
lint: $(TOOLS)/golangci-lint-$(GOLANGCI_LINT) ## check format, layering, Go code (vet and others) and shell scripts
	@e2e/packages shellcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'these files are not formatted: gofmt -w .'; exit 1; }
	$(GO) test . # import rules, and the types of the command on other systems
	$< run --build-tags 'e2e failpoint bench' ./...
	shellcheck .ci/run e2e/packages e2e/providers/libvirtd.sh internal/machines/drivers/nspawn/image.sh cmd/testdata/providers/*.sh

$(TOOLS)/golangci-lint-$(GOLANGCI_LINT):
	GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)
	mv $(TOOLS)/golangci-lint $@

.PHONY: bench
bench: ## print measurements (REPO=PATH: of that git repository); docs/performance.md says how to read them
	@e2e/packages g10k r10k casync rsync git openssh-client util-linux
	REPO='$(if $(REPO),$(abspath $(REPO)))' $(GO) test -count=1 -timeout 40m -tags bench -run '^TestBench' -v ./e2e/bench

.PHONY: fuzz
fuzz: ## fuzz every parser for FUZZTIME each (default 10s)
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	  echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-10s} -fuzzminimizetime 10x $$p || exit 1; done; done

.PHONY: clean
clean: ## remove what was built
	rm -rf bin $(TOOLS)

.PHONY: man
man: ## write the man pages of both programs to bin/man
	$(GO) run -tags man ./cmd/pulley man bin/man
	$(GO) run -tags man ./cmd/pulley-agent man bin/man
