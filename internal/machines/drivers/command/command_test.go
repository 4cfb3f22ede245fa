package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/clip"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/testbed/conformtest"
)

var testMark = machines.Mark{Owner: "o", Fleet: "dev@t42"}

// script returns a provider that runs a shell script.
func script(t *testing.T, text string, change ...func(*Config)) *Provider {
	t.Helper()
	file := filepath.Join(t.TempDir(), "provider")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := Config{Command: []string{file}, Mark: testMark, Environ: os.Environ()}
	for _, f := range change {
		f(&c)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A command that follows the documented contract must pass the checks of every driver.
func TestCommandConforms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, err := filepath.Abs("../../../../cmd/testdata/providers/files.sh")
	if err != nil {
		t.Fatal(err)
	}
	conformtest.Test(t, conform.Config{
		New: func(mark machines.Mark) (machines.Provider, error) {
			return New(Config{Command: []string{program, dir}, Mark: mark, Environ: os.Environ()})
		},
		Userdata: func(_ context.Context, m machines.Machine) (text []byte, err error) {
			err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Name() == "userdata" && filepath.Base(filepath.Dir(path)) == m.Name {
					text, err = os.ReadFile(path)
				}
				return err
			})
			return text, err
		},
		Boot: 10 * time.Minute, Gone: 10 * time.Minute, Call: 10 * time.Minute, Poll: 10 * time.Millisecond,
	})
}

const good = `"name":"compute1","id":"1","state":"running","mark":{"owner":"o","fleet":"dev@t42"}`

// A broken command must not make Pulley create a fleet twice, or delete foreign machines.
func TestWrongAnswersAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ script, want string }{
		"nothing":         {`:`, "printed no answer"},
		"no JSON":         {`echo hello`, "did not answer with a JSON object"},
		"an array":        {`echo '[]'`, "did not answer with a JSON object"},
		"half":            {`echo '{"machines":['`, "did not answer with a JSON object"},
		"two values":      {`echo '{"machines":[]}{"machines":[]}'`, "something after its JSON object"},
		"text afterwards": {`echo '{"machines":[]} done'`, "something after its JSON object"},
		"no list":         {`echo '{}'`, "answered `list` without `machines`"},
		"null list":       {`echo '{"machines":null}'`, "answered `list` without `machines`"},
		"one for many":    {`echo '{"machine":{` + good + `}}'`, "answered `list` without `machines`"},
		"wrong type":      {`echo '{"machines":[{"name":1}]}'`, "answered with a number as `machines.name`, which is a string"},
		"no name":         {`echo '{"machines":[{"state":"running","mark":{"owner":"o","fleet":"dev@t42"}}]}'`, "whose `name` is \"\""},
		"hostile name":    {`echo '{"machines":[{` + strings.Replace(good, "compute1", `a\u001b[2J`, 1) + `}]}'`, "characters that cannot be shown"},
		"long name":       {`echo '{"machines":[{` + strings.Replace(good, "compute1", strings.Repeat("a", 256), 1) + `}]}'`, "too long"},
		"no state":        {`echo '{"machines":[{"name":"a","mark":{"owner":"o","fleet":"dev@t42"}}]}'`, "whose `state` is \"\""},
		"own state":       {`echo '{"machines":[{` + strings.Replace(good, "running", "ACTIVE", 1) + `}]}'`, "whose `state` is \"ACTIVE\""},
		"bad time":        {`echo '{"machines":[{"created":"today",` + good + `}]}'`, "whose `created` is \"today\""},
		"no mark":         {`echo '{"machines":[{"name":"a","state":"running"}]}'`, "without its `mark`"},
		"other fleet":     {`echo '{"machines":[{` + strings.Replace(good, "@t42", "", 1) + `}]}'`, `whose mark is "o/dev" and not "o/dev@t42"`},
		"other owner":     {`echo '{"machines":[{` + strings.Replace(good, `"o"`, `"x"`, 1) + `}]}'`, `whose mark is "x/dev@t42"`},
		"twice":           {`echo '{"machines":[{` + good + `},{` + good + `}]}'`, "twice"},
		"failed anyhow":   {`echo '{"machines":[]}'; exit 3`, "ended with exit status 3"},
		"died":            {`echo no network >&2; kill -9 $$`, "ended with signal: killed: no network"},
		"endless":         {`yes`, "printed more than 16 MiB"},
		"one good of two": {`echo '{"machines":[{` + good + `},{"name":"b"}]}'`, "number 2"},
	} {
		t.Run(name, func(t *testing.T) {
			p := script(t, test.script)
			machines, err := p.List(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || len(machines) > 0 {
				t.Fatalf("%v, %v, want %q", machines, err, test.want)
			}
			if !strings.Contains(err.Error(), p.config.Command[0]) {
				t.Errorf("%v does not name the command", err)
			}
		})
	}
}

// A machine record must not get the machine of another node.
func TestAnswerMustHaveOrderedName(t *testing.T) {
	t.Parallel()
	p := script(t, `echo '{"machine":{`+good+`}}'`)
	if m, err := p.Create(t.Context(), machines.Order{Name: "compute1"}); err != nil || m.ID != "1" || m.State != machines.Running {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := p.Create(t.Context(), machines.Order{Name: "compute2"}); err == nil || !strings.Contains(err.Error(), `answered with the machine "compute1"`) {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := script(t, `echo '{}'`).Create(t.Context(), machines.Order{Name: "compute1"}); err == nil || !strings.Contains(err.Error(), "without `machine`") {
		t.Errorf("%v", err)
	}
}

// The kind of an error decides whether an apply waits, retries or stops.
func TestErrorsKeepTheirKind(t *testing.T) {
	t.Parallel()
	ask := func(answer string) error {
		_, err := script(t, "echo '"+answer+"'; exit 1").Create(t.Context(), machines.Order{Name: "compute1"})
		if err == nil || !strings.Contains(err.Error(), "reports: ") || !strings.Contains(err.Error(), "why not") {
			t.Errorf("%s: %v", answer, err)
		}
		return err
	}
	if err := ask(`{"error":{"kind":"quota","message":"why not"}}`); !errors.Is(err, machines.ErrQuota) {
		t.Error(err)
	}
	if err := ask(`{"error":{"kind":"refused","message":"why not"}}`); !errors.Is(err, machines.ErrRefused) {
		t.Error(err)
	}
	var taken *machines.TakenError
	if err := ask(`{"error":{"kind":"taken","message":"why not"}}`); !errors.As(err, &taken) || taken.Name != "compute1" {
		t.Error(err)
	}
	for after, want := range map[string]time.Duration{`"30s"`: 30 * time.Second, `""`: 0, `"-5s"`: 0, `"900h"`: longestWait, `"soon"`: 0} {
		var wait *machines.WaitError
		if err := ask(`{"error":{"kind":"throttle","message":"why not","after":` + after + `}}`); !errors.As(err, &wait) || wait.After != want || !errors.Is(err, machines.ErrThrottle) {
			t.Errorf("%s: %v", after, err)
		}
	}
	for _, kind := range []string{"other", "", "new in some later version"} {
		err := ask(`{"error":{"kind":"` + kind + `","message":"why not"}}`)
		if errors.Is(err, machines.ErrRefused) || errors.Is(err, machines.ErrQuota) || errors.Is(err, machines.ErrThrottle) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// A request must contain the complete order.
func TestRequestHasWholeOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := script(t, "cat >"+dir+"/request; echo '{}'")
	o := machines.Order{Name: "compute1-t42", Node: "compute1_t42", Role: "compute", Flavor: "m1", Image: "debian", Networks: []string{"a", "b"},
		Labels: map[string]string{"team": `a "b" <c>`}, Userdata: []byte("#!/bin/sh\x00\xff")}
	_, _ = p.Create(t.Context(), o)
	want := `{"v":1,"do":"create","mark":{"owner":"o","fleet":"dev@t42"},"machine":{"name":"compute1-t42","node":"compute1_t42","role":"compute",` +
		`"flavor":"m1","image":"debian","networks":["a","b"],"labels":{"team":"a \"b\" \u003cc\u003e"},"userdata":"IyEvYmluL3NoAP8="}}` + "\n"
	if got, err := os.ReadFile(dir + "/request"); err != nil || string(got) != want {
		t.Errorf("%v\n%s\n%s", err, got, want)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: "7"}); err != nil {
		t.Error(err)
	}
	want = `{"v":1,"do":"delete","mark":{"owner":"o","fleet":"dev@t42"},"machine":{"name":"compute1","id":"7"}}` + "\n"
	if got, err := os.ReadFile(dir + "/request"); err != nil || string(got) != want {
		t.Errorf("%v\n%s\n%s", err, got, want)
	}
}

// A command must get the settings of its cloud, and must not get keys of etcd.
func TestEnvironmentIsFiltered(t *testing.T) {
	t.Parallel()
	environ := []string{"PATH=" + os.Getenv("PATH"), "HOME=/h", "OS_CLOUD=west", "AWS_PROFILE=p", "HTTPS_PROXY=http://p", "PULLEY_KEY=secret", "ETCDCTL_PASSWORD=secret", "PATHS=x"}
	p := script(t, `printf '{"error":{"message":"%s"}}' "$(env | cut -d = -f 1 | sort | tr '\n' ' ')"`, func(c *Config) { c.Environ = environ })
	_, err := p.List(t.Context())
	for _, name := range []string{" HOME ", "OS_CLOUD", "AWS_PROFILE", "HTTPS_PROXY", " PATH "} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not in %v", name, err)
		}
	}
	for _, name := range []string{"PULLEY_KEY", "ETCDCTL_PASSWORD", "PATHS"} {
		if strings.Contains(err.Error(), name) {
			t.Errorf("%s is in %v", name, err)
		}
	}
}

// The author of a command needs its standard error.
func TestStandardErrorIsLogged(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	p := script(t, `printf 'one\ntwo \033[2J\nthree' >&2; echo '{"machines":[]}'`, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"line=one", `line="two  [2J"`, "line=three", "do=list", "command=" + p.config.Command[0]} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in\n%s", want, &log)
		}
	}
}

// dies waits for the end of the process whose number is in a file.
func dies(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the process still runs: %s", stat)
		}
	}
}

// A command that hangs must not hang an apply, or create machines after its request ended.
func TestCommandEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script string
		want   string
	}{
		"hangs":          {`sleep 1000 & echo $! >$1/pid; wait`, "was ended at its deadline of 300ms"},
		"leaves a child": {`sleep 1000 >&- 2>&- & echo $! >$1/pid; echo '{"machines":[]}'`, ""},
		"whose output":   {`sleep 1000 & echo $! >$1/pid; echo '{"machines":[]}'`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := script(t, test.script, func(c *Config) { c.Command = append(c.Command, dir); c.Timeout = 300 * time.Millisecond })
			start := time.Now()
			_, err := p.List(t.Context())
			if fmt.Sprint(err) != "<nil>" && test.want == "" || test.want != "" && !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("List took %v", took)
			}
			dies(t, dir+"/pid")
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	p := script(t, `echo $$ >$1/new; mv $1/new $1/pid; exec sleep 1000`, func(c *Config) { c.Command = append(c.Command, dir) })
	go func() {
		for _, err := os.Stat(dir + "/pid"); err != nil; _, err = os.Stat(dir + "/pid") {
			<-time.After(time.Millisecond)
		}
		cancel()
	}()
	if _, err := p.List(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	dies(t, dir+"/pid")
}

// A command that ignores SIGTERM must be killed before another program can take the fleet's lock.
func TestCommandThatIgnoresSIGTERMIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := script(t, `trap '' TERM; echo $$ >$1/pid; while :; do sleep 0.1; done`, func(c *Config) { c.Command = append(c.Command, dir); c.Timeout = 300 * time.Millisecond })
	start := time.Now()
	if _, err := p.List(t.Context()); err == nil {
		t.Error("List succeeded")
	}
	if took := time.Since(start); took > 300*time.Millisecond+5*time.Second+2*time.Second {
		t.Errorf("it took %v", took)
	}
	dies(t, dir+"/pid")
}

// A shell script must not get "*" as the name of a machine.
func TestOnlyHostnamesReachCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := script(t, "touch "+dir+"/started; echo '{}'")
	for _, name := range []string{"", "*", "-rf", "a b", "../x", "$(id)", "A"} {
		if _, err := p.Create(t.Context(), machines.Order{Name: name}); !errors.Is(err, machines.ErrRefused) {
			t.Errorf("%q: %v", name, err)
		}
		if err := p.Delete(t.Context(), machines.Ref{Name: name}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := os.Stat(dir + "/started"); err == nil {
		t.Error("the command was started")
	}
}

// An apply must not retry a command that is not installed.
func TestMissingCommandIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{Command: []string{"/no/such"}, Mark: testMark}); !errors.Is(err, machines.ErrRefused) || !strings.Contains(err.Error(), "/no/such") {
		t.Error(err)
	}
}

func FuzzAnswersNeverPanic(f *testing.F) {
	f.Add([]byte(`{"machines":[{` + good + `}]}`))
	f.Add([]byte(`{"error":{"kind":"throttle","after":"1s"}}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		for _, do := range []string{doList, doCreate, doDelete} {
			r := request{Do: do, Mark: mark(testMark), Machine: &ordered{Order: machines.Order{Name: "compute1"}}}
			a, err := r.read(out)
			for _, m := range a.machines {
				if err != nil || m.Name == "" || clip.Line(m.Name, maxWord) != m.Name || do == doCreate && m.Name != "compute1" {
					t.Errorf("%+v, %v", m, err)
				}
			}
		}
	})
}
