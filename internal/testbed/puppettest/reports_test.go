package puppettest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pulley/internal/model"
)

// listener receives reports by HTTP, and answers with a status.
type listener struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	bodies []string
}

func (l *listener) start(t *testing.T) {
	l.status = http.StatusOK
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.status == http.StatusOK {
			l.bodies = append(l.bodies, string(b))
		}
		w.WriteHeader(l.status)
	}))
	t.Cleanup(l.Close)
}

func (l *listener) answer(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status = status
}

func (l *listener) received() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bodies
}

// waiting counts the reports that wait in the state folder of a run's Puppet.
func (r *ran) waiting(t *testing.T) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.Puppet.Dir, "runs", "*", "unsent.json"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// reportCases are the runs whose reports Puppet's own processors receive.
func reportCases() []testCase {
	return []testCase{
		{
			Name: "a report by http", Manifest: motd, Listener: &listener{}, Reports: []string{"http"},
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				l := r.Listener
				l.answer(http.StatusInternalServerError)
				r.Puppet.SendReports(t.Context())
				if r.waiting(t) != 1 {
					t.Fatalf("%d reports wait after a refusal, want 1", r.waiting(t))
				}
				l.answer(http.StatusOK)
				second := r.Job
				second.ID = "20260101T000001Z-2"
				if _, err := r.Puppet.Apply(t.Context(), second); err != nil {
					t.Fatal(err)
				}
				if err := os.RemoveAll(second.Tree); err != nil { // collected meanwhile
					t.Fatal(err)
				}
				r.Puppet.SendReports(t.Context())
				got := l.received()
				if r.waiting(t) != 0 || len(got) != 2 || !strings.Contains(got[0], "status: changed\n") || !strings.Contains(got[1], "status: unchanged\n") ||
					!strings.Contains(got[0], "host: web1\n") || !strings.HasPrefix(got[0], "--- !ruby/object:Puppet::Transaction::Report\n") {
					t.Errorf("%d reports wait, and arrived: %q", r.waiting(t), got)
				}
			},
		},
		{
			Name: "a report processor that is missing", Manifest: motd, Listener: &listener{}, Reports: []string{"http", "no_such_one"},
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				r.Puppet.SendReports(t.Context())
				r.Puppet.SendReports(t.Context())
				if got := r.Listener.received(); len(got) != 1 || r.waiting(t) != 1 {
					t.Errorf("%d reports arrived, %d wait, want 1 and 1", len(got), r.waiting(t))
				}
			},
		},
		{
			Name: "no report of a noop run", Manifest: motd, Listener: &listener{}, Reports: []string{"http"}, Noop: true,
			Kind: model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *ran) {
				if r.waiting(t) != 0 {
					t.Error("a report of a noop run waits")
				}
			},
		},
		{
			Name: "report processors of the release", Manifest: motd, Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Files: map[string]string{"environments/dev.yaml": "puppet: {reports: [http], reporturl: 'http://127.0.0.1:1/'}\nroles: {web: {cardinality: 1}}\n"},
			Check: func(t *testing.T, r *ran) {
				r.Puppet.SendReports(t.Context())
				if r.waiting(t) != 1 {
					t.Errorf("%d reports wait, want 1", r.waiting(t))
				}
			},
		},
		{
			Name: "wrong report processors of the release", Manifest: motd, Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Files: map[string]string{"environments/dev.yaml": "puppet: {reports: [store]}\nroles: {web: {cardinality: 1}}\n"},
			Check: func(t *testing.T, r *ran) {
				if r.waiting(t) != 0 {
					t.Error("a report waits")
				}
			},
		},
	}
}
