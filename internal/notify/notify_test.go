package notify

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// receiver is a receiver of notices.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	got   map[string]int // by message
	fails int            // how many requests it refuses first
	tries int
}

var dev = model.Ref{Environment: "dev"}

func open(t *testing.T) *etcd.DB {
	t.Helper()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func newReceiver(t *testing.T, fails int) *receiver {
	r := &receiver{got: map[string]int{}, fails: fails}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tries++
		if err != nil || r.fails > 0 {
			r.fails--
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		r.got[string(body)]++
	}))
	t.Cleanup(r.Close)
	return r
}

// url returns the receiver's URL for shoutrrr. Its path is a secret, like that of a webhook.
func (r *receiver) url() string { return "generic+" + r.URL + "/hooks/T0PSECRET?disabletls=yes" }

func (r *receiver) messages() (all []string, twice []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m, n := range r.got {
		all = append(all, m)
		if n > 1 {
			twice = append(twice, m)
		}
	}
	return all, twice
}

func notices(t *testing.T, st *etcd.DB) map[NoticeState]int {
	t.Helper()
	all, damaged, err := NoticesIn(st).List(t.Context())
	if err != nil || len(damaged) > 0 {
		t.Fatal(err, damaged)
	}
	states := map[NoticeState]int{}
	for _, n := range all {
		states[n.State]++
	}
	return states
}

func finished(machine string) access.FirstBoot {
	begun := time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)
	return access.FirstBoot{Machine: machine, Node: "compute" + machine, Started: begun, Finished: begun.Add(90 * time.Second)}
}

// run starts a notifier like one serve. stop ends it.
func run(t *testing.T, st *etcd.DB, urls ...string) (n *Notifier, log *observe.Log, stop func()) {
	t.Helper()
	log = &observe.Log{}
	n, err := New(Config{Notices: NoticesIn(st), URLs: urls, Now: time.Now, Log: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	n.firstRetry = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return n, log, stop
}

// A second message about the same event teaches people to ignore messages.
func TestEachNoticeArrivesOnceFromSeveralServes(t *testing.T) {
	t.Parallel()
	st := open(t)
	r := newReceiver(t, 0)
	one, log, _ := run(t, st, r.url())
	two, other, _ := run(t, st, r.url())
	for i := range 20 {
		b := finished(string(rune('a' + i)))
		one.FirstBoot(dev, b)
		two.FirstBoot(dev, b)
	}
	failed := access.FirstBoot{Machine: "z", Step: "puppet", State: access.BootFailed, Error: "no package", Started: time.Unix(1, 0)}
	one.FirstBoot(dev, failed)
	two.FirstBoot(dev, failed)
	one.FirstBoot(dev, access.FirstBoot{Machine: "y", Step: "puppet", State: access.BootStarted}) // no event
	observe.Eventually(t, "all are sent", func() bool { return notices(t, st)[NoticeSent] == 21 })
	all, twice := r.messages()
	if len(all) != 21 || len(twice) > 0 {
		t.Errorf("%d of 21 messages arrived; more than once: %q", len(all), twice)
	}
	if text := strings.Join(all, "\n"); !strings.Contains(text, "computea in dev is ready") || !strings.Contains(text, "failed at step puppet") || !strings.Contains(text, "no package") {
		t.Errorf("the messages are %s", text)
	}
	if text := log.String() + other.String(); strings.Contains(text, "T0PSECRET") {
		t.Errorf("the log contains a secret: %s", text)
	}
}

// A receiver that is down for a minute must not lose a notice. One that stays down must be reported. Neither may put
// the secret of its URL into etcd or the log.
func TestNoticesAreRetriedAndThenFail(t *testing.T) {
	t.Parallel()
	st := open(t)
	good, soon, never := newReceiver(t, 0), newReceiver(t, 2), newReceiver(t, 1000)
	n, log, stop := run(t, st, good.url(), soon.url())
	n.FirstBoot(dev, finished("a"))
	observe.Eventually(t, "the second receiver accepts the third attempt", func() bool { return notices(t, st)[NoticeSent] == 1 })
	if all, twice := good.messages(); len(all) != 1 || len(twice) > 0 {
		t.Errorf("the first receiver got %d messages, more than once: %q", len(all), twice)
	}
	stop()
	n, other, _ := run(t, st, never.url())
	n.FirstBoot(dev, finished("b"))
	observe.Eventually(t, "the notice fails", func() bool { return notices(t, st)[NoticeFailed] == 1 })
	never.mu.Lock()
	defer never.mu.Unlock()
	if never.tries != sendAttempts {
		t.Errorf("it was tried %d times", never.tries)
	}
	all, _, err := NoticesIn(st).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		if n.State == NoticeFailed && n.Error == "" || strings.Contains(string(n.Error), "T0PSECRET") {
			t.Errorf("etcd has the error %q", n.Error)
		}
	}
	if text := log.String() + other.String(); strings.Contains(text, "T0PSECRET") || !strings.Contains(text, "cannot send a notice") {
		t.Errorf("the log: %s", text)
	}
}

// A serve that stops before a retry must leave a record, and no other serve may send the notice a second time.
func TestNoticeOfStoppedServeIsNotSentAgain(t *testing.T) {
	t.Parallel()
	st := open(t)
	down := newReceiver(t, 1000)
	n, log, stop := run(t, st, down.url())
	n.firstRetry = time.Hour
	n.FirstBoot(dev, finished("a"))
	observe.Eventually(t, "the first attempt fails", func() bool { return strings.Contains(log.String(), "cannot send a notice") })
	stop()
	if got := notices(t, st); got[NoticeFailed] != 1 {
		t.Errorf("the notices are %v", got)
	}
	up := newReceiver(t, 0)
	n, _, stop = run(t, st, up.url())
	n.FirstBoot(dev, finished("a"))
	n.FirstBoot(dev, finished("b"))
	observe.Eventually(t, "the other notice is sent", func() bool { return notices(t, st)[NoticeSent] == 1 })
	stop()
	if all, _ := up.messages(); len(all) != 1 || !strings.Contains(all[0], "computeb") {
		t.Errorf("the messages are %q", all)
	}
}

// Each kind needs a text, or people receive codes.
func TestEachKindHasAText(t *testing.T) {
	t.Parallel()
	for _, kind := range []NoticeKind{FirstBootFinished, FirstBootFailed, FirstBootStalled, DuplicateRefused, DuplicateRuns, NodeFloods, SecretsGiven} {
		title, _ := render(Notice{Kind: kind, Environment: "dev", Node: "web1", Boots: []string{"a", "b"}})
		if !strings.Contains(title, "web1 in dev") || strings.Contains(title, string(kind)) {
			t.Errorf("%s has the title %q", kind, title)
		}
	}
	for _, n := range []Notice{
		{Kind: ConnectionsRefused, Listener: "https", From: "192.0.2.7", Connections: 300}, {Kind: ConnectionsRefused, Listener: "etcd", Operator: "bob", Connections: 64},
		{Kind: ConnectionsRefused, Listener: "etcd", Node: "web1", Environment: "dev", Connections: 64}, {Kind: CallsRefused, Operator: "bob", Calls: 7},
	} {
		if title, text := render(n); strings.Contains(title, string(n.Kind)) || !strings.Contains(title+text, n.From+n.Operator+n.Node) {
			t.Errorf("%s has the title %q and the text %q", n.Kind, title, text)
		}
	}
	for _, kind := range []NoticeKind{NodesFail, PromotionFails, NodesStuck, NodesSilent, Degraded, CertificatesEnd, NodesDrifted, NodesRemoved} {
		for _, ended := range []bool{false, true} {
			title, text := render(Notice{Kind: kind, Environment: "dev", Nodes: []string{"web1"}, Count: 3, Ended: ended, Problem: "why"})
			if strings.Contains(title, string(kind)) || !strings.Contains(title, "dev") || !(kind == Degraded && ended) && !strings.Contains(title+text, "web1 and 2 more") {
				t.Errorf("%s has the title %q and the text %q", kind, title, text)
			}
		}
	}
	if title, _ := render(Notice{Kind: "moon_phase", Environment: "dev", Machine: "m1"}); title != "moon_phase: machine m1 in dev" {
		t.Errorf("an unknown kind has the title %q", title)
	}
}

// A chat service's URL is as good as a password: no part of it may be shown.
func TestSecretsOfURLsAreRemoved(t *testing.T) {
	t.Parallel()
	for raw, secret := range map[string]string{
		"slack://hook:AAAAAAAAA-BBBBBBBBB-CCCCCCCCCCCCCCCCCCCCCCCC@webhook": "CCCCCCCCCCCCCCCCCCCCCCCC",
		"generic+https://example.com/hooks/T0PSECRET":                       "T0PSECRET",
		"telegram://110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw@telegram":  "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
		"smtp://ann:pass%2Fword1@mail.example.com:25/?from=a@b.c&to=d@e.f":  "pass/word1",
		"gotify://push.example.com/tGcC0dQ6qsa6G1L":                         "tGcC0dQ6qsa6G1L",
	} {
		s := sender{secrets: secretsOf(raw)}
		if text := s.clean(io.EOF); text != "EOF" {
			t.Errorf("%s: %s", raw, text)
		}
		for _, text := range []string{"Post \"https://x/" + secret + "\": refused", raw, "bad " + secret} {
			if clean := s.clean(&textError{text}); strings.Contains(clean, secret) {
				t.Errorf("%s leaks in %q", raw, clean)
			}
		}
	}
	err := Check([]string{"nonsense://T0PSECRET"})
	if err == nil || strings.Contains(err.Error(), "T0PSECRET") || !strings.Contains(err.Error(), "--notify 1") {
		t.Errorf("a URL that can't be used: %v", err)
	}
}

type textError struct{ text string }

func (e *textError) Error() string { return e.text }

// A machine that has not joined must not cause hundreds of messages.
func TestNoticesOfOneNodeOrTokenAreLimited(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	k, err := New(Config{Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler), URLs: []string{"logger://"}})
	if err != nil {
		t.Fatal(err)
	}
	fails := func(machine, node, step, token string) {
		k.FirstBoot(dev, access.FirstBoot{Machine: machine, Node: node, Step: step, State: access.BootFailed, Token: token})
	}
	for i := range 100 {
		fails("m", "compute1", fmt.Sprint("s", i), "")
		k.DuplicateRefused(dev, "compute1", access.Duplicate{Machine: fmt.Sprint(i)})
	}
	if len(k.queue) != 2 {
		t.Errorf("one node had %d notices, want one for each kind", len(k.queue))
	}
	for i := range 100 {
		fails(fmt.Sprint("m", i), "", "pre", "token")
	}
	if len(k.queue) != 2+maxOfSource {
		t.Errorf("one token had %d notices", len(k.queue)-2)
	}
	now = now.Add(repeatEvery)
	fails("m", "compute1", "pre", "")
	if len(k.queue) != 3+maxOfSource {
		t.Error("an hour later there is no notice")
	}
}

// Two serves that disagree whether a trouble ended or got worse write one key.
func TestNumberOfATroubleIsOneKey(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	ref := model.Ref{Environment: "dev"}
	trouble := Trouble{Kind: NodesFail, Cause: "c", Count: 1, Stuck: true}
	known := []Notice{{Kind: NodesFail, Environment: "dev", Cause: trouble.ID(ref), Number: 1, Count: 1, At: at}}
	kinds := []NoticeKind{NodesFail}
	stuck := due(ref, kinds, []Trouble{trouble}, func(string) bool { return true }, known, at)
	ended := due(ref, kinds, nil, func(string) bool { return false }, known, at)
	if len(stuck) != 1 || len(ended) != 1 || stuck[0].ID != ended[0].ID || stuck[0].Kind != NodesStuck || !ended[0].Ended {
		t.Errorf("the notices are %v and %v", stuck, ended)
	}
}
