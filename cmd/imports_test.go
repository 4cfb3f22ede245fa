package cmd_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
	Doc        string
}

func list(t *testing.T, patterns ...string) []listed {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps,Doc"}, patterns...)...).Output()
	if err != nil {
		t.Fatalf("cannot list packages: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

const (
	etcdServer = "go.etcd.io/etcd/server/"
	clientv3   = "go.etcd.io/etcd/client/v3"
	yaml       = "gopkg.in/yaml.v3"
)

// leaves may be imported by every package.
var leaves = []string{"pulley/internal/atomicfile", "pulley/internal/bounded", "pulley/internal/clip"}

// allowed are the imports beyond the standard library that each package may have (DESIGN, "Layout").
var allowed = map[string][]string{
	"pulley/agent":                {"pulley/internal/failpoint", "pulley/internal/stablehash"},
	"pulley/agent/puppet":         {"pulley/agent", yaml, "golang.org/x/sys/unix"},
	"pulley/environments":         {yaml},
	"pulley/hieradata":            {yaml},
	"pulley/userdata":             {yaml},
	"pulley/puppet":               {},
	"pulley/internal/failpoint":   {},
	"pulley/internal/stablehash":  {},
	"pulley/internal/content":     {"github.com/klauspost/compress/zstd", "golang.org/x/sys/unix", "golang.org/x/text/", "pulley/internal/failpoint"},
	"pulley/internal/mirror":      {"pulley/internal/stablehash"},
	"pulley/internal/pki":         {"pulley/internal/stablehash"},
	"pulley/internal/join":        {"pulley/internal/pki"},
	"pulley/internal/join/server": {"github.com/prometheus/client_golang/prometheus", "pulley/agent", "pulley/environments", "pulley/internal/join", "pulley/internal/pki", "pulley/internal/store", "pulley/internal/stablehash"},
	"pulley/internal/firstboot":   {"pulley/internal/failpoint", yaml},
	"pulley/internal/nodeconfig":  {"pulley/agent", "pulley/environments", "pulley/internal/cli", "pulley/internal/join", "pulley/internal/mirror", "pulley/internal/pki", "pulley/internal/store", "pulley/internal/upgrade", yaml},
	"pulley/internal/upgrade":     {"pulley/agent", "pulley/internal/failpoint"},
	"pulley/internal/source":      {"pulley/internal/content", "github.com/moby/patternmatcher", "github.com/moby/patternmatcher/ignorefile"},
	"pulley/internal/trust":       {"github.com/hashicorp/go-version", "github.com/hiddeco/sshsig", "golang.org/x/crypto/ssh"},
	"pulley/internal/controlrepo": {"pulley/agent/puppet", "pulley/environments", "pulley/hieradata", "pulley/puppet", yaml},

	"pulley/internal/takeover":          {"pulley/internal/firstboot"},
	"pulley/internal/machines":          {"pulley/agent", "pulley/environments", "pulley/internal/clip", "pulley/userdata"},
	"pulley/internal/machines/plan":     {"pulley/agent", "pulley/environments", "pulley/internal/machines"},
	"pulley/internal/machines/apply":    {"pulley/agent", "pulley/environments", "pulley/internal/failpoint", "pulley/internal/machines", "pulley/internal/machines/plan", "pulley/internal/stablehash", "pulley/userdata"},
	"pulley/internal/machines/watch":    {"pulley/agent", "pulley/environments", "pulley/internal/machines", "pulley/internal/machines/apply", "pulley/internal/machines/plan"},
	"pulley/internal/drivers/conform":   {"pulley/internal/machines"},
	"pulley/internal/drivers/command":   {"golang.org/x/sys/unix", "pulley/internal/machines"},
	"pulley/internal/drivers/local":     {"golang.org/x/sys/unix", "pulley/environments", "pulley/internal/machines", "pulley/userdata"},
	"pulley/internal/drivers/nspawn":    {"golang.org/x/sys/unix", "pulley/environments", "pulley/internal/machines", "pulley/userdata"},
	"pulley/internal/drivers/openstack": {"github.com/gophercloud/gophercloud/v2", "github.com/gophercloud/gophercloud/v2/", "pulley/environments", "pulley/internal/machines"},
}

// Layers that leak into each other can't be understood, tested or replaced one by one.
func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "pulley/...") {
		seen[p.ImportPath] = true
		rules, ruled := allowed[p.ImportPath]
		for _, imported := range p.Imports {
			if ruled && strings.Contains(imported, ".") || ruled && strings.HasPrefix(imported, "pulley/") {
				if !slices.ContainsFunc(append(rules, leaves...), func(r string) bool {
					return imported == r || strings.HasSuffix(r, "/") && strings.HasPrefix(imported, r)
				}) {
					t.Errorf("%s imports %s, and may not", p.ImportPath, imported)
				}
			}
			test := strings.HasSuffix(p.ImportPath, "test") || strings.HasPrefix(p.ImportPath, "pulley/e2e/")
			if strings.HasPrefix(imported, clientv3) && p.ImportPath != "pulley/internal/store" && !test {
				t.Errorf("%s imports %s: only internal/store may", p.ImportPath, imported)
			}
			if strings.HasPrefix(imported, etcdServer) && p.ImportPath != "pulley/internal/serve" {
				t.Errorf("%s imports %s: only internal/serve may", p.ImportPath, imported)
			}
			if strings.HasPrefix(imported, "github.com/spf13/cobra") && !strings.HasPrefix(p.ImportPath, "pulley/cmd/") {
				t.Errorf("%s imports %s: commands are made in cmd", p.ImportPath, imported)
			}
		}
	}
	for p := range allowed {
		if !seen[p] {
			t.Errorf("there is a rule for %s, and no such package", p)
		}
	}
}

// An agent that carried a server, a listener or test code would be larger, slower to start, and a target.
func TestAgentLinksNoServer(t *testing.T) {
	for _, p := range list(t, "pulley/cmd/pulley-agent") {
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, etcdServer) || dep == "testing" || dep == "pulley/internal/serve" || dep == "pulley/internal/join/server" || dep == "pulley/internal/drivers/local" {
				t.Errorf("pulley-agent links %s", dep)
			}
		}
	}
}

// A package that does not say what it owns and what it must never do gets everything.
func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range list(t, "pulley/...") {
		if p.Doc == "" && !strings.HasPrefix(p.ImportPath, "pulley/e2e") && p.ImportPath != "pulley/cmd" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
