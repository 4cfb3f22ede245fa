package gates

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/child"
	"pulley/internal/model"
	"pulley/internal/rollout"
)

// A gate that lets a bad release through, or cannot be asked and does not say so, is worse than none.
func TestGatesAnswer(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := func(kind, of string) {
			of = strings.NewReplacer("NOW", fmt.Sprintf("%d.25", at.Unix()-50), "OLD", fmt.Sprint(at.Unix()-90)).Replace(of)
			fmt.Fprintf(w, `{"status":"success","data":{"resultType":%q,"result":%s}}`, kind, of)
		}
		switch r.URL.Path + " " + r.URL.Query().Get("query") {
		case "/login/api/v1/query x":
			w.WriteHeader(http.StatusNotFound)
		case "/down ":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/login ":
			http.Redirect(w, r, "/up", http.StatusFound)
		case "/slow ":
			<-r.Context().Done()
		case "/api/v1/query few < 5":
			result("vector", `[{"metric":{},"value":[NOW,"3"]}]`)
		case "/api/v1/query many < 5":
			result("vector", `[]`)
		case "/api/v1/query many < bool 5":
			result("vector", `[{"metric":{},"value":[NOW,"1"]},{"metric":{},"value":[NOW,"0"]}]`)
		case "/api/v1/query minus zero", "/api/v1/query NaN", "/api/v1/query words", "/api/v1/query +Inf", "/api/v1/query 0e5":
			value := strings.Replace(r.URL.Query().Get("query"), "minus zero", "-0", 1)
			result("vector", `[{"metric":{},"value":[NOW,"`+value+`"]}]`)
		case "/api/v1/query failed":
			w.WriteHeader(http.StatusBadGateway)
			result("scalar", `[NOW,"1"]`)
		case "/api/v1/query cached":
			result("vector", `[{"metric":{},"value":[NOW,"1"]},{"metric":{},"value":[OLD,"1"]}]`)
		case "/api/v1/query timeless":
			result("vector", `[{"metric":{},"value":[null,"1"]}]`)
		case "/api/v1/query long":
			result("vector", `[{"metric":{"long":"`+strings.Repeat("x", 1<<20)+`"},"value":[NOW,"1"]}]`)
		case "/api/v1/query scalar":
			result("scalar", `[NOW,"1"]`)
		case "/api/v1/query few[5m]":
			result("matrix", `[]`)
		case "/api/v1/query (":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"status":"error","error":"parse error"}`)
		}
	}))
	t.Cleanup(server.Close)
	closed := strings.Replace(server.URL, "http://", "http://user:secret@", 1)
	closed = closed[:strings.LastIndex(closed, ":")] + ":1"
	file := filepath.Join(t.TempDir(), "gates.yaml")
	text := "gates:\n"
	var names []string
	want := map[string]string{}
	for i, c := range []struct{ definition, want string }{
		{`{http: URL/up}`, "passed "},
		{`{http: URL/down}`, "refused HTTP status 503"},
		{`{http: URL/login}`, "refused HTTP status 302"},
		{`{prometheus: URL/login, query: x}`, "unanswered HTTP status 404: no answer of Prometheus"},
		{`{http: URL/slow, timeout: 1s}`, "unanswered it did not answer in time"},
		{`{http: CLOSED/x}`, "unanswered dial tcp 127.0.0.1:1: connect: connection refused"},
		{`{prometheus: URL, query: "few < 5"}`, "passed "},
		{`{prometheus: URL, query: "many < 5"}`, "refused the query has no samples"},
		{`{prometheus: URL, query: "many < bool 5"}`, "refused the query has the value 0"},
		{`{prometheus: URL, query: minus zero}`, "refused the query has the value -0"},
		{`{prometheus: URL, query: 0e5}`, "refused the query has the value 0e5"},
		{`{prometheus: URL, query: NaN}`, "refused the query has the value NaN"},
		{`{prometheus: URL, query: +Inf}`, "passed "},
		{`{prometheus: URL, query: words}`, `unanswered a sample of the query is no number: "words"`},
		{`{prometheus: URL, query: cached}`, "unanswered the answer is 1m30s old: it is that of a cache, or clocks differ"},
		{`{prometheus: URL, query: timeless}`, "unanswered a sample of the query has no value or no time"},
		{`{prometheus: URL, query: failed}`, "unanswered HTTP status 502: no answer of Prometheus"},
		{`{prometheus: URL, query: long}`, "unanswered the answer is longer than 1 MiB: make a query with one sample"},
		{`{prometheus: URL/, query: scalar}`, "passed "},
		{`{prometheus: URL, query: "few[5m]"}`, "unanswered the result of the query is a matrix, not a vector or a scalar"},
		{`{prometheus: URL, query: (}`, "unanswered HTTP status 400: parse error"},
		{`{prometheus: CLOSED, query: x}`, "unanswered dial tcp 127.0.0.1:1: connect: connection refused"},
		{`{command: ["true"]}`, "passed "},
		{`{command: [sh, -c, 'echo "$PULLEY_ENVIRONMENT $PULLEY_ROLLOUT $PULLEY_RELEASE $PULLEY_DATA"; exit 3']}`, "refused dev r2 1.5.0 12"},
		{`{command: [sh, -c, 'setsid sleep 1000 &']}`, "passed "},
		{`{command: ["false"]}`, "refused exit code 1"},
		{`{command: [/nowhere/program]}`, "unanswered fork/exec /nowhere/program: no such file or directory"},
		{`{command: [sh, -c, 'sleep 60 & sleep 60'], timeout: 1s}`, "unanswered it did not answer in time"},
	} {
		name := fmt.Sprintf("g%d", i)
		definition := strings.NewReplacer("URL", server.URL, "CLOSED", closed).Replace(c.definition)
		text += "  " + name + ": " + definition + "\n"
		names, want[name] = append(names, name), c.want
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	names, want["other"] = append(names, "other"), "undefined "
	answers := Ask(t.Context(), file, names, About{"dev", "r2", model.Target{Release: "1.5.0", Data: 12}}, func() time.Time { return at })
	for name, text := range want {
		if got := string(answers[name].Code) + " " + string(answers[name].Text); got != text || !answers[name].At.Equal(at) {
			t.Errorf("gate %s: %s, want %s", name, got, text)
		}
	}
	if err := os.WriteFile(file, []byte("gates: {x: {}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := Ask(t.Context(), file, []string{"x"}, About{}, time.Now)["x"]; a.Code != rollout.GateUnanswered || !strings.Contains(string(a.Text), "it needs one of command, http and prometheus") {
		t.Errorf("a wrong file: %+v", a)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for definition, want := range map[string]string{
		"{}": "it needs one of command, http and prometheus", "{command: [a], http: 'https://x'}": "it needs one of",
		"{prometheus: 'https://x'}": "prometheus and query belong together", "{http: 'https://x', query: x}": "belong together",
		"{http: x}": "its URL is not like", "{http: 'https://x', timeout: 2h}": "its timeout is not from 1s to 1h", "{http: 'https://x', timeout: 20ms}": "its timeout is not from 1s to 1h", "{htp: x}": "field htp not found",
	} {
		file := filepath.Join(t.TempDir(), "gates.yaml")
		if err := os.WriteFile(file, []byte("gates: {x: "+definition+"}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", definition, err)
		}
	}
}

// A gate that hangs while serve is killed would run for ever, once for each serve.
func TestGatesEndWithServe(t *testing.T) {
	const variable = "PULLEY_TEST_GATE"
	if file := os.Getenv(variable); file != "" { // a serve that the test kills
		Gate{Command: []string{"sh", "-c", `echo $$ > "$0"; exec sleep 1000`, file}}.run(t.Context(), About{})
		return
	}
	file := filepath.Join(t.TempDir(), "pid")
	serve := exec.Command(os.Args[0], "-test.run=^TestGatesEndWithServe$")
	serve.Env = append(os.Environ(), variable+"="+file)
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	var gate child.Process
	await := func(condition func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the gate is %+v", gate)
			}
		}
	}
	await(func() bool {
		text, _ := os.ReadFile(file)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		gate, _ = child.Read(pid)
		return err == nil && gate.Alive()
	})
	defer child.Tree{gate}.Signal(syscall.SIGKILL)
	_ = serve.Process.Kill()
	_ = serve.Wait()
	await(func() bool { return !gate.Alive() })
}

// Keys of etcd, credentials of clouds and proxies in the environment of serve do not reach a gate, and no process of it is left.
func TestGatesGetNothingOfServe(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	t.Cleanup(proxy.Close)
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	for _, name := range []string{"PULLEY_PASSWORD", "ETCDCTL_USER", "AWS_SECRET_ACCESS_KEY", "OS_PASSWORD"} {
		t.Setenv(name, "secret")
	}
	left := filepath.Join(t.TempDir(), "left")
	about := About{"dev", "r2", model.Target{Release: "1.5.0", Data: 12}}
	answer := Gate{Command: []string{"sh", "-c", `setsid sh -c 'echo $$ > "$0"; exec sleep 1000' "$0" & while ! [ -s "$0" ]; do sleep 0.01; done; env | cut -d= -f1 | tr '\n' ' '; exit 1`, left}}.run(t.Context(), about)
	for name := range strings.FieldsSeq(string(answer.Text)) {
		if !slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PWD", "SHLVL", "OLDPWD", "_", "PULLEY_ENVIRONMENT", "PULLEY_ROLLOUT", "PULLEY_RELEASE", "PULLEY_DATA", "PULLEY_CHILD"}, name) {
			t.Errorf("the gate has %s", name)
		}
	}
	pid, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if p, ok := child.Read(number); err != nil || ok && !p.Zombie && p.Comm == "sleep" {
		t.Errorf("%v: the gate left %+v", err, p)
	}
	// The proxy would answer. It is asked for this address, unlike for loopback ones, and nothing listens there.
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	if answer := (Gate{HTTP: fmt.Sprintf("http://0.0.0.0:%d/up", closed.Addr().(*net.TCPAddr).Port)}).ask(t.Context(), about, time.Now()); answer.Code != rollout.GateUnanswered {
		t.Errorf("through a proxy: %+v", answer)
	}
}
