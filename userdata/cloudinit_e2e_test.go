//go:build e2e && linux

package userdata

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pulley/internal/firstboot"
)

// cloudSettings are cloud-init's settings with the modules that userdata needs, and without access to the network.
const cloudSettings = `datasource_list: [NoCloud]
network: {config: disabled}
users: []
cloud_init_modules: [bootcmd, write-files]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
system_info: {distro: debian}
`

// cloudStages are the parts of cloud-init that systemd starts at each boot, in this order.
var cloudStages = [][]string{
	{"init", "--local"}, {"init"}, {"modules", "--mode=config"}, {"modules", "--mode=final"},
}

// cloudMachine returns a machine with the agent in its image, and with the files of a seed.
func cloudMachine(t *testing.T, seed map[string][]byte) machine {
	t.Helper()
	needCloudInit(t)
	m := newMachine(t)
	m.program(t, "../bin/pulley-agent", recorder)
	m.remove(t, "/var/lib/cloud", "/etc/cloud/cloud.cfg.d", "/run/cloud-init", "/var/log/cloud-init.log")
	write := func(path string, text []byte) {
		if err := os.MkdirAll(filepath.Dir(m.root+path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(m.root+path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/etc/cloud/cloud.cfg", []byte(cloudSettings))
	for name, text := range seed {
		write("/var/lib/cloud/seed/nocloud/"+name, text)
	}
	return m
}

func needCloudInit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("cloud-init"); err != nil {
		t.Fatal("cloud-init is missing: apt-get install cloud-init")
	}
}

// cloudBoot runs the real cloud-init for one boot, and returns its output.
func (m machine) cloudBoot(t *testing.T, code int) string {
	t.Helper()
	m.remove(t, "/run/cloud-init")
	var out strings.Builder
	for i, stage := range cloudStages {
		want := 0
		if i == len(cloudStages)-1 {
			want = code
		}
		out.WriteString(m.cloudInit(t, want, stage...))
	}
	return out.String()
}

func (m machine) cloudInit(t *testing.T, code int, words ...string) string {
	t.Helper()
	path := "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // as in systemd
	return m.run(t, code, append([]string{"/usr/bin/env", path, "cloud-init"}, words...)...)
}

// left returns the files of the first boot on the machine, without the script, which contains the others in some forms.
func (m machine) left(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, line := range strings.Split(m.state(t), "\n") {
		path, rest, _ := strings.Cut(line, " ")
		if strings.HasPrefix(path, "/etc/pulley/") || path == "/etc/cron.d/pulley-first-boot" {
			files[path] = rest
		}
	}
	return files
}

func seedOf(t *testing.T, text []byte) map[string][]byte {
	t.Helper()
	return map[string][]byte{"user-data": text, "meta-data": []byte("instance-id: first\nlocal-hostname: bare\n")}
}

// inImage removes the download of the agent from a plan.
func inImage(o firstboot.Plan) firstboot.Plan {
	o.AgentSHA256, o.AgentURLs, o.Proxy = nil, nil, ""
	return o
}

// A form that cloud-init reads differently would leave a machine that is no node, or the wrong one.
func TestCloudInitRunsEveryForm(t *testing.T) {
	for name, o := range map[string]firstboot.Plan{"full": inImage(full(t)), "joining": inImage(joining())} {
		o.AllowedSigners += "zoë@dev ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl Zoë's\n"
		var before map[string]string
		for _, form := range Forms {
			t.Run(name+" "+string(form), func(t *testing.T) {
				m := cloudMachine(t, seedOf(t, mustRender(t, o, form)))
				out := m.cloudBoot(t, 0)
				const call = "bootstrap|umask 0022 HOME /root LC_ALL C.UTF-8\n"
				if !m.exists("/calls") || m.read(t, "/calls") != call {
					t.Fatalf("the agent was not started once:\n%s\n%s", out, m.log(t))
				}
				files := m.left(t)
				if before != nil && !maps.Equal(files, before) {
					t.Errorf("the machine holds %q, by another form %q", files, before)
				}
				before = files
				if want := 3 + len(o.Pre) + len(o.Post); len(files) < want {
					t.Errorf("there are only %q", slices.Sorted(maps.Keys(files)))
				}

				// With the agent's own state on the disk, the script leaves the rest to the agent.
				if err := os.WriteFile(m.root+"/var/lib/pulley/first-boot.json", []byte("{}"), 0o600); err != nil {
					t.Fatal(err)
				}
				m.cloudBoot(t, 0)
				if m.read(t, "/calls") != call {
					t.Error("a later boot starts the agent once more")
				}
				if problem := regexp.MustCompile(`(?m)^.*(WARNING|ERROR|Traceback|schema).*$`).FindString(m.log(t)); problem != "" {
					t.Errorf("cloud-init says %s", problem)
				}
			})
		}
	}
}

func (m machine) log(t *testing.T) string {
	t.Helper()
	if !m.exists("/var/log/cloud-init.log") {
		return ""
	}
	return m.read(t, "/var/log/cloud-init.log")
}

// The power fails just after the script began, and unsynced data is lost. cloud-init does not write the files or start
// the script a second time.
func TestCloudInitResumesAfterPowerCut(t *testing.T) {
	for _, form := range []Form{CloudConfig, Multipart} {
		t.Run(string(form), func(t *testing.T) {
			m := cloudMachine(t, seedOf(t, mustRender(t, inImage(full(t)), form)))
			m.program(t, "flock", "#!/bin/sh\nkill -KILL $PPID\n")
			m.cloudBoot(t, 1)
			if m.exists("/calls") {
				t.Fatal("the agent was started")
			}
			m.remove(t, "/usr/local/sbin/flock", "/etc/cron.d/pulley-first-boot")
			for _, path := range []string{"/var/lib/pulley/first-boot.sh", "/etc/pulley/first-boot.yaml"} {
				if m.exists(path) {
					if err := os.Truncate(m.root+path, 0); err != nil {
						t.Fatal(err)
					}
				}
			}
			out := m.cloudBoot(t, 0)
			if !m.exists("/calls") {
				t.Fatalf("the agent was not started:\n%s\n%s", out, m.log(t))
			}
			parts, err := newParts(inImage(full(t)))
			if err != nil {
				t.Fatal(err)
			}
			if got := m.read(t, "/etc/pulley/first-boot.yaml"); got != parts.files[0].Text {
				t.Errorf("the plan is %q", got)
			}
		})
	}
}

// If cloud-init ignored the seed, the machine would stay unconfigured.
func TestCloudInitReadsSeed(t *testing.T) {
	o := inImage(joining())
	o.Node, o.Hostname = "compute7", "compute7"
	seed := func(network string) map[string][]byte {
		files, err := Seed(o, []byte(network))
		if err != nil {
			t.Fatal(err)
		}
		all := map[string][]byte{}
		for _, f := range files {
			all[f.Name] = f.Text
		}
		return all
	}
	m := cloudMachine(t, seed("version: 2\nethernets: {}\n"))
	m.cloudBoot(t, 0)
	if !m.exists("/calls") {
		t.Fatalf("the agent was not started:\n%s", m.log(t))
	}
	id := strings.TrimSpace(m.read(t, "/var/lib/cloud/data/instance-id"))
	if !regexp.MustCompile(`^compute7-[0-9a-f]{8}$`).MatchString(id) {
		t.Errorf("the instance is %q", id)
	}

	// Another seed, as for a machine that was retired and joins again, is another first boot.
	o.Token = strings.ReplaceAll(o.Token, "ef", "fe")
	if err := os.WriteFile(m.root+"/var/lib/pulley/first-boot.json", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range seed("") {
		if err := os.WriteFile(m.root+"/var/lib/cloud/seed/nocloud/"+name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.cloudBoot(t, 0)
	if n := strings.Count(m.read(t, "/calls"), "bootstrap"); n != 2 || !strings.Contains(m.read(t, "/etc/pulley/first-boot.yaml"), o.Token) {
		t.Errorf("the agent was started %d times, with %s", n, m.read(t, "/etc/pulley/first-boot.yaml"))
	}
}

// A company adds this part to its own: without a rule of merging, cloud-init drops the lists of one of them.
func TestCloudInitMergesWithOtherParts(t *testing.T) {
	needCloudInit(t)
	const company = "#cloud-config\nruncmd: [echo company]\nbootcmd: [echo boot]\nwrite_files: [{path: /etc/company, content: x}]\n"
	const merge = `
import sys
from cloudinit import mergers, util
from cloudinit.handlers import cloud_config
base = {}
for text in sys.argv[1:]:
    part = util.load_yaml(text)
    base = mergers.construct(mergers.dict_extract_mergers(part) or list(cloud_config.DEF_MERGERS)).merge(base, part)
print([len(base[k]) for k in ("runcmd", "bootcmd", "write_files")], [f["path"] for f in base["write_files"]][-1])`
	ours := string(mustRender(t, inImage(joining()), CloudConfig))
	for name, parts := range map[string][2]string{"company first": {company, ours}, "company last": {ours, company + "merge_how: dict(recurse_list)+list(append)\n"}} {
		out, err := exec.Command("/usr/bin/python3", "-c", merge, parts[0], parts[1]).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "[2, 2, 4]") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// A reviewer would not approve userdata that `cloud-init schema` refuses.
func TestCloudInitSchema(t *testing.T) {
	needCloudInit(t)
	for name, o := range samples(t) {
		file := filepath.Join(t.TempDir(), "user-data")
		if err := os.WriteFile(file, mustRender(t, o, CloudConfig), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cloud-init", "schema", "--config-file", file).CombinedOutput(); err != nil || !strings.Contains(string(out), "Valid") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
