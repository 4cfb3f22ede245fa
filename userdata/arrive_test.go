package userdata

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/mail"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"pulley/internal/firstboot"
)

// A value that a shell, YAML or MIME reads differently can break a machine, or run a command as root.
func TestValuesArrive(t *testing.T) {
	const alphabet = "a1 /'\"`$(){};&|<>\\!*?#~%:,[]-_=@^äπ\u2028"
	random := rand.New(rand.NewPCG(42, 1))
	draw := func(letters []rune) string {
		out := make([]rune, random.IntN(24))
		for i := range out {
			out[i] = letters[random.IntN(len(letters))]
		}
		return string(out)
	}
	hostile := func() string { return draw([]rune(alphabet)) }
	// all characters of a URL that a shell does not interpret
	path := func() string { return draw([]rune("a1/~:,-_=@+")) }
	rendered := 0
	for i := range 20 {
		o := full(t)
		if i%2 == 1 {
			join(&o)
			o.Token = "plt_" + strings.NewReplacer(",", "", "~", "", "@", "").Replace(path())
			o.Servers = append(o.Servers, "https://pulley.example/"+path())
		}
		o.Prefix = hostile()
		o.AllowedSigners += "carol@" + hostile() + " ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVc " + hostile() + "\n"
		o.Mirrors = []string{"https://mirror.example/" + path()}
		o.PackageRepo = "deb x" + strings.ReplaceAll(hostile(), "@", "")
		o.AgentURLs = []string{"https://downloads.example/" + path(), "https://elsewhere.example/a"}
		o.Steps = map[string]string{"puppet": "/x" + strings.ReplaceAll(hostile(), "\u2028", ""), "pre": "off"}
		o.Pre = []string{"#!/bin/sh\n" + hostile() + "\nPULLEY\n\t" + hostile() + "  \n" + hostile()}
		if valuesArrive(t, o) {
			rendered++
		}
	}
	if rendered < 10 {
		t.Errorf("only %d of 20 sets of values were rendered: this test has lost its grip", rendered)
	}
}

func FuzzRender(f *testing.F) {
	f.Add("controller1", "controller1", "controller", "dev", "http://127.0.0.1:2379", "/pulley", "https://d.example/a", "puppet-agent", "7.34", "deb https://apt.example a b", "http://proxy:3128", "*/5 * * * *", "a@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVc", "https://m.example", "", "", "#!/bin/sh\n")
	f.Add("a'; reboot; '", "a$(reboot)", "`reboot`", "dev@$(id)", "http://h:1/';reboot;'", "'\nPULLEY\nreboot\n", "https://d.example/'$(reboot)`reboot`\\", "--reinstall", "1'", "deb '\"$(reboot)\\", "http://p'q:1", "* * * * *;reboot", "PULLEY\nreboot\n\ta@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVc PULLEY\nPULLEY", "https://m'$(reboot)", "https://s.example/'$(reboot)", "plt_'$(reboot)", "#!/bin/sh\nPULLEY\nPULLEY_\nreboot")
	f.Add("1e3", "", "null", "y", "[::1]:2379", "~", "", "", "", "", "", "", "", "", "https://[::1]:8443", "null", "#!/bin/sh\n: \u2028\ufeff\n\n  \n")
	f.Add("0x1f", "", "true", "no", "h:1", "!!binary x: {y # z", "", "", "", "deb \u0085\u2028\ufeff", "", "", "-----BEGIN", "https://m/\u2028", "https://s/\u2028", "=3D", "#!/bin/sh\n--pulley-\n=3D=\nä\n")
	f.Add("", "node", "compute", "dev", "", "", "", "", "", "", "", "", "", "", "https://s:8443", "plt_1_2", "")
	f.Fuzz(func(t *testing.T, node, host, role, environment, endpoint, prefix, agentURL, pkg, version, repo, proxy, schedule, signers, mirror, server, token, step string) {
		o := firstboot.Plan{
			Node: node, Hostname: host, Role: role, Environment: environment, Prefix: prefix, Token: token,
			Settings: firstboot.Settings{
				PuppetPackage: pkg, PuppetVersion: version, PackageRepo: repo, Proxy: proxy, Schedule: schedule, AllowedSigners: signers,
			},
		}
		if endpoint != "" {
			o.Endpoints = []string{endpoint}
		}
		if mirror != "" {
			o.Mirrors = []string{mirror}
		}
		if server != "" {
			o.Servers, o.CA = []string{server}, joining().CA
		}
		if agentURL != "" {
			o.AgentURLs, o.AgentSHA256 = []string{agentURL}, map[string]string{"any": checksum(nil)}
		}
		if step != "" {
			o.Post = []string{step}
		}
		valuesArrive(t, o)
	})
}

// seams replaces the commands of a script that would change the machine by commands that record their arguments. The
// flow and the quoting of the script remain.
const seams = `
resume_after_reboot() { :; }
one_at_a_time() { :; }
uname() { echo x86_64; }
mkdir() { :; }
put() { command mkdir -p "$out/root${1%/*}"; cat >"$out/root$1"; chmod "$2" "$out/root$1"; }
finish() { :; }
sleep() { :; }
timeout() {
	for last; do [ "$last" = --noproxy ] || [ "$last" = --no-proxy ] && no_proxy=all; done
	printf '%s\0' "$last" >>"$out/fetch"
	printf '%s\0' "${http_proxy-}" "${https_proxy-}" "${no_proxy-}" >"$out/proxy"
}
genuine() { [ "$(tr -cd '\0' 2>/dev/null <"$out/fetch" | wc -c)" = "$sources" ]; }
agent=$out/agent
main
`

// fakeAgent records its arguments. It must see no proxy but the plan's: it would reach etcd through another one.
const fakeAgent = `#!/bin/sh
printf '%s\0' "$@" ${http_proxy-} ${https_proxy-} >"$out/args"
`

// valuesArrive renders o in every form. Where a form accepts o, it compares the files on the machine with o. It reports
// whether o was accepted.
func valuesArrive(t *testing.T, o firstboot.Plan) bool {
	t.Helper()
	var before map[string]string
	for _, form := range Forms {
		text, err := Render(o, form)
		if err != nil && strings.Contains(err.Error(), "clouds take at most") {
			continue // this form is larger than another
		}
		if err != nil {
			if before != nil {
				t.Fatalf("%s is refused, and another form is not: %v", form, err)
			}
			return false
		}
		if len(text) > maxSizeBytes {
			t.Fatalf("%d bytes were rendered", len(text))
		}
		files := arrives(t, o, form, text)
		if before != nil && !maps.Equal(files, before) {
			t.Errorf("%s leaves\n%q\non the machine, another form\n%q", form, files, before)
		}
		before = files
	}
	if before == nil {
		return false
	}
	filesSay(t, o, before)
	return true
}

// arrives does the work of cloud-init and the shell, and returns the files that they leave: mode and content by path.
func arrives(t *testing.T, o firstboot.Plan, form Form, text []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	script := text
	switch form {
	case CloudConfig:
		var config struct {
			Files []struct{ Path, Permissions, Content string } `yaml:"write_files"`
			Boot  []string                                      `yaml:"bootcmd"`
			Run   []string                                      `yaml:"runcmd"`
			How   string                                        `yaml:"merge_how"`
		}
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err := decoder.Decode(&config); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for _, f := range config.Files {
			files[f.Path] = f.Permissions[1:] + " " + f.Content
		}
		script = []byte(strings.TrimPrefix(files[scriptPath], "700 "))
		delete(files, scriptPath)
		if len(config.Run) != 1 || config.Run[0] != "sh "+scriptPath || len(config.Boot) != 1 {
			t.Fatalf("nothing starts the script: %+v", config)
		}
	case Multipart:
		script = scriptPart(t, text)
		if whole := mustRender(t, o, Script); !bytes.Equal(script, whole) {
			t.Fatalf("the part is\n%s\nthe script\n%s", script, whole)
		}
	}
	functions, ok := bytes.CutSuffix(script, []byte("\nmain \"$@\"\n"))
	if !ok {
		t.Fatalf("the script does not end by calling main:\n%s", script)
	}
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "agent"), []byte(fakeAgent), 0o755); err != nil {
		t.Fatal(err)
	}
	sources := addresses(o)
	cmd := exec.Command("sh")
	cmd.Stdin = strings.NewReader(string(functions) + seams)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "out=" + out, "sources=" + strconv.Itoa(len(sources))}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, text, script)
	}
	if got := words(t, out, "args"); !slices.Equal(got, []string{"bootstrap"}) {
		t.Errorf("pulley-agent would get %q", got)
	}
	if len(sources) > 0 {
		if got := words(t, out, "fetch"); !slices.Equal(got, sources) {
			t.Errorf("the downloads would be of %q, should be of %q", got, sources)
		}
		proxy := words(t, out, "proxy")
		if proxy[0] != o.Proxy || proxy[1] != o.Proxy {
			t.Errorf("the proxy would be %q, should be %q", proxy, o.Proxy)
		}
		for _, server := range slices.Concat(o.Servers, o.Mirrors) {
			if u, err := url.Parse(server); err == nil && proxy[2] != "all" && !slices.Contains(strings.Split(proxy[2], ","), u.Hostname()) {
				t.Errorf("%s would be reached through the proxy: no_proxy is %q", server, proxy[2])
			}
		}
	}
	root := filepath.Join(out, "root")
	if form == CloudConfig {
		if _, err := os.Stat(root); err == nil {
			t.Error("cloud-init writes the files, and the script too")
		}
		return files
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files[strings.TrimPrefix(path, root)] = fmt.Sprintf("%o %s", info.Mode().Perm(), read(t, filepath.Dir(path), d.Name()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// addresses are the sources of the agent, in order; empty if the image contains it.
func addresses(o firstboot.Plan) []string {
	var all []string
	sum := cmp.Or(o.AgentSHA256["amd64"], o.AgentSHA256["any"])
	if sum == "" {
		return nil
	}
	all = append(all, o.AgentURLs...)
	for _, base := range slices.Concat(o.Servers, o.Mirrors) {
		if address := strings.TrimRight(base, "/") + "/agent/" + sum; !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all
}

// scriptPart reads a multipart as a mail program does.
func scriptPart(t *testing.T, text []byte) []byte {
	t.Helper()
	message, err := mail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	_, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	var script []byte
	for r := multipart.NewReader(message.Body, params["boundary"]); ; {
		part, err := r.NextPart() // decodes quoted-printable
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, part.Header.Get("Content-Type")+" "+part.FileName())
		if script, err = io.ReadAll(part); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"text/cloud-boothook pulley-later.sh", "text/x-shellscript pulley-first-boot.sh"}; !slices.Equal(kinds, want) {
		t.Fatalf("the parts are %q, should be %q", kinds, want)
	}
	return script
}

// filesSay compares the files with o. The agent itself reads the plan.
func filesSay(t *testing.T, o firstboot.Plan, files map[string]string) {
	t.Helper()
	take := func(path, mode string) string {
		text, ok := strings.CutPrefix(files[path], mode+" ")
		if !ok {
			t.Errorf("%s is not of mode %s: %q", path, mode, files[path])
		}
		delete(files, path)
		return text
	}
	text := take(planPath, "600")
	got, err := firstboot.ParsePlan(planPath, []byte(text))
	if err != nil {
		t.Fatalf("the agent can't read its plan: %v\n%s", err, text)
	}
	want := o
	want.CACert, want.AllowedSigners = "", ""
	want.Pre, want.Post, want.AgentURLs, want.AgentSHA256 = nil, nil, nil, nil
	want.Tidy()
	if roleInName(o.Role, o.Node, o.Environment) {
		want.Role = ""
	}
	if len(o.CACert) > 0 {
		want.CACert = caPath
		if got := take(caPath, "644"); got != o.CACert {
			t.Errorf("ca.pem is %s", got)
		}
	}
	if len(o.AllowedSigners) > 0 {
		want.AllowedSigners = signersPath // a node without its signers would accept unsigned releases
		if got, want := take(signersPath, "644"), signerLines(o.AllowedSigners); got != want {
			t.Errorf("allowed_signers is %q, should be %q", got, want)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the plan is %+v, should be %+v", got, want)
	}
	for folder, scripts := range map[string][]string{"/pre.d/": o.Pre, "/post.d/": o.Post} {
		for i, text := range scripts {
			path := fmt.Sprintf("%s%s%03d", stepsPath, folder, i+1)
			if got, want := take(path, "755"), strings.TrimRight(text, "\n")+"\n"; got != want {
				t.Errorf("%s is %q, should be %q", path, got, want)
			}
		}
	}
	if len(files) > 0 {
		t.Errorf("there are other files: %q", files)
	}
}

// signerLines returns the lines of an allowed_signers file without comments and blank lines.
func signerLines(text string) string {
	var kept string
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			kept += line + "\n"
		}
	}
	return kept
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// words reads the output of printf '%s\0'.
func words(t *testing.T, dir, name string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(read(t, dir, name), "\x00"), "\x00")
}
