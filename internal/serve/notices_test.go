package serve

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/store"
)

// receiver is somebody who is told.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	got   map[string]int // by message
	fails int            // how many requests it refuses first
	tries int
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

// url is how shoutrrr names the receiver; its path is a secret, as that of a webhook is.
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

func notices(t *testing.T, st *store.Store) map[store.NoticeState]int {
	t.Helper()
	all, damaged, err := st.Notices(t.Context())
	if err != nil || len(damaged) > 0 {
		t.Fatal(err, damaged)
	}
	states := map[store.NoticeState]int{}
	for _, n := range all {
		states[n.State]++
	}
	return states
}

func finished(machine string) store.FirstBoot {
	begun := time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)
	return store.FirstBoot{Machine: machine, Node: "compute" + machine, Started: begun, Finished: begun.Add(90 * time.Second)}
}

// People who are told twice stop to read, and people who are not told at all find out from their users.
func TestEachNoticeArrivesOnceFromSeveralServes(t *testing.T) {
	t.Parallel()
	s := startSecure(t, secureConfig(t, t.TempDir()))
	st := connect(t, s.Connection)
	r := newReceiver(t, 0)
	one, log, _ := keep(t, s, nil, r.url())
	two, other, _ := keep(t, s, nil, r.url())
	for i := range 20 {
		b := finished(string(rune('a' + i)))
		one.FirstBoot(dev, b)
		two.FirstBoot(dev, b) // who asked one serve may be answered by the other
	}
	failed := store.FirstBoot{Machine: "z", Step: "puppet", State: store.BootFailed, Error: "no package", Started: time.Unix(1, 0)}
	one.FirstBoot(dev, failed)
	two.FirstBoot(dev, failed)
	one.FirstBoot(dev, store.FirstBoot{Machine: "y", Step: "puppet", State: store.BootStarted}) // nobody wants to know
	eventually(t, "all are sent", func() bool { return notices(t, st)[store.NoticeSent] == 21 })
	all, twice := r.messages()
	if len(all) != 21 || len(twice) > 0 {
		t.Errorf("%d of 21 messages arrived; more than once: %q", len(all), twice)
	}
	if text := strings.Join(all, "\n"); !strings.Contains(text, "computea in dev is ready") || !strings.Contains(text, "failed at step puppet") || !strings.Contains(text, "no package") {
		t.Errorf("what was told: %s", text)
	}
	if said := log.String() + other.String(); strings.Contains(said, "T0PSECRET") {
		t.Errorf("the log has a secret: %s", said)
	}
}

// A service that is down for a minute must not cost the notice, one that stays down must be shown, and neither may write
// the secret of its URL where others read it.
func TestNoticesAreTriedAgainAndThenLeft(t *testing.T) {
	t.Parallel()
	s := startSecure(t, secureConfig(t, t.TempDir()))
	st := connect(t, s.Connection)
	well, soon, never := newReceiver(t, 0), newReceiver(t, 2), newReceiver(t, 1000)
	fast := func(k *Keeper) { k.firstRetry = time.Millisecond }
	k, log, stop := keep(t, s, fast, well.url(), soon.url())
	k.FirstBoot(dev, finished("a"))
	eventually(t, "the second receiver is told at the third attempt", func() bool { return notices(t, st)[store.NoticeSent] == 1 })
	if all, twice := well.messages(); len(all) != 1 || len(twice) > 0 {
		t.Errorf("the receiver that was well got %d messages, more than once: %q", len(all), twice)
	}
	stop()
	k, other, _ := keep(t, s, fast, never.url())
	k.FirstBoot(dev, finished("b"))
	eventually(t, "it is left", func() bool { return notices(t, st)[store.NoticeFailed] == 1 })
	never.mu.Lock()
	defer never.mu.Unlock()
	if never.tries != sendAttempts {
		t.Errorf("it was tried %d times", never.tries)
	}
	all, _, err := st.Notices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		if n.State == store.NoticeFailed && n.Error == "" || strings.Contains(n.Error, "T0PSECRET") {
			t.Errorf("etcd has the error %q", n.Error)
		}
	}
	if said := log.String() + other.String(); strings.Contains(said, "T0PSECRET") || !strings.Contains(said, "cannot send a notice") {
		t.Errorf("the log: %s", said)
	}
}

// A serve that dies while it sends leaves a notice of which nobody knows whether it arrived: it must be said, and not sent
// a second time.
func TestAClaimOfADeadServeIsToldAndNotSentAgain(t *testing.T) {
	t.Parallel()
	s := startSecure(t, secureConfig(t, t.TempDir()))
	st := connect(t, s.Connection)
	n := store.Notice{ID: "clone-1", Kind: "clone", Title: "two machines", At: time.Now()}
	if added, err := st.AddNotice(t.Context(), n); err != nil || !added {
		t.Fatal(added, err)
	}
	if again, err := st.AddNotice(t.Context(), n); err != nil || again {
		t.Fatal("the same thing is told twice", err)
	}
	all, _, err := st.Notices(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	all[0].State, all[0].Owner = store.NoticeClaimed, "a serve that is dead"
	if _, err := st.ChangeNotice(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	r := newReceiver(t, 0)
	_, log, _ := keep(t, s, func(k *Keeper) { k.claimLasts = 50 * time.Millisecond }, r.url())
	eventually(t, "it is given up", func() bool { return notices(t, st)[store.NoticeUnsure] == 1 })
	eventually(t, "it is said", func() bool { return strings.Contains(log.String(), "may not have been sent") })
	if got, _ := r.messages(); len(got) > 0 {
		t.Errorf("it was sent: %q", got)
	}
}

// What a URL of a chat service names is as good as a password, wherever in the URL it is.
func TestSecretsOfURLsAreTakenOut(t *testing.T) {
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
	err := CheckNotify([]string{"nonsense://T0PSECRET"})
	if err == nil || strings.Contains(err.Error(), "T0PSECRET") || !strings.Contains(err.Error(), "--notify 1") {
		t.Errorf("a URL that can't be used: %v", err)
	}
}

type textError struct{ text string }

func (e *textError) Error() string { return e.text }

// First boots that stand still are what people wait for without knowing that they do.
func TestAFirstBootThatStandsStillIsTold(t *testing.T) {
	t.Parallel()
	s := startSecure(t, secureConfig(t, t.TempDir()))
	st := connect(t, s.Connection)
	apply(t, st, "roles:\n  compute: {cardinality: 2}\n")
	long := time.Now().Add(-2 * store.StandsStill)
	for _, b := range []store.FirstBoot{
		{Machine: "m1", Node: "compute1", Step: "puppet", State: store.BootStarted, Started: long, Since: long, Heard: long},
		{Machine: "m2", Node: "compute2", Step: "puppet", State: store.BootStarted, Started: long, Since: long, Heard: time.Now()},
	} {
		if err := st.PutFirstBoot(t.Context(), dev, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	r := newReceiver(t, 0)
	k, _, _ := keep(t, s, nil, r.url())
	if err := k.watchBoots(context.WithoutCancel(t.Context())); err != nil { // the loop does the same, a second time
		t.Fatal(err)
	}
	eventually(t, "it is told", func() bool { return notices(t, st)[store.NoticeSent] == 1 })
	all, twice := r.messages()
	if len(all) != 1 || len(twice) > 0 || !strings.Contains(all[0], "compute1 in dev stands still at step puppet") {
		t.Errorf("told: %q, more than once: %q", all, twice)
	}
}
