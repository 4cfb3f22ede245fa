package puppet

import (
	"os"
	"path/filepath"
	"testing"
)

// Monitoring that reads another file than the one that Pulley writes shows the result of the former agent for ever.
func TestLastRunFollowsOwnConf(t *testing.T) {
	cases := []struct {
		name, conf string
		aio        bool
		want       LastRun
	}{
		{"Debian", "", false, LastRun{"/var/cache/puppet/public/last_run_summary.yaml", "/var/cache/puppet/state/last_run_report.yaml"}},
		{"Puppet's packages", "", true, LastRun{"/opt/puppetlabs/puppet/public/last_run_summary.yaml", "/opt/puppetlabs/puppet/cache/state/last_run_report.yaml"}},
		{
			"settings of the machine", "[main]\nvardir = /srv/p\n[agent]\n  lastrunfile='$statedir/${vardir}.yaml' \n[server]\nvardir=/other\n", false,
			LastRun{"/srv/p/state/srv/p.yaml", "/srv/p/state/last_run_report.yaml"},
		},
		{"no value", "lastrunfile = $lastrunfile\nstatedir = $nothing/x\n", false, LastRun{"", "/x/last_run_report.yaml"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for path, made := range map[string]bool{"etc/puppet": true, "opt/puppetlabs/puppet": c.aio} {
				if made {
					if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := os.WriteFile(filepath.Join(root, "etc/puppet/puppet.conf"), []byte(c.conf), 0o644); err != nil {
				t.Fatal(err)
			}
			own, err := ReadConf(root)
			if err != nil {
				t.Fatal(err)
			}
			for i, path := range []string{c.want.Summary, c.want.Report} {
				got := []string{own.LastRun(root).Summary, own.LastRun(root).Report}[i]
				if path != "" {
					path = filepath.Join(root, path)
				}
				if got != path {
					t.Errorf("got %q, want %q", got, path)
				}
			}
		})
	}
}
