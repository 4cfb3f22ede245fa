//go:build bench

package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/join"
	"pulley/internal/join/server"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/serve"
	"pulley/internal/serve/member"
	"pulley/internal/specs"
)

const (
	paced      = 500 // joins in a minute
	sampled    = 15  // joins of each kind at each size
	bystanders = 4   // nodes that read continuously, as ticks do
)

var joinSizes = []int{100, 1000, 5000, 10_000}

// Measures the cost of a join with many nodes, with and without pre-created users. It also runs five hundred joins in a
// minute on one serve. None may be lost, and no name may be used twice.
func TestBenchJoins(t *testing.T) {
	fmt.Printf("\njoins on one serve (embedded etcd with TLS, users and fsync, in the process that measures); %s, %d CPUs\n", runtime.Version(), runtime.NumCPU())
	benchPaced(t)
	fmt.Printf("\na join at so many nodes with users, %d joins of each kind, one after the other; reads are those of ticks\n\n", sampled)
	fmt.Println("| nodes | one change of a user | join, median | pre-created users: join, median | ratio | p99 of a read, idle | while joining | while joining, pre-created |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, n := range joinSizes {
		benchSize(t, n)
	}
	fmt.Println()
}

// joinServer is a serve in this process.
type joinServer struct {
	t      *testing.T
	etcd   *member.Secured
	st     *etcd.DB
	server string
	ref    model.Ref
}

func secureConfig(dir string) member.SecureConfig {
	return member.SecureConfig{
		EtcdConfig: member.EtcdConfig{
			Dir: dir, Listen: "127.0.0.1:0", QuotaBytes: member.DefaultQuota, Retention: member.DefaultRetention, Log: slog.DiscardHandler,
		},
		Hostname: "bench", Timeout: 30 * time.Second,
	}
}

// newJoinServer starts serve. With precreate, it pre-creates users like a real one.
func newJoinServer(t *testing.T, dir string, precreate bool) *joinServer {
	t.Helper()
	served, err := member.StartSecure(t.Context(), secureConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	d := &joinServer{t: t, etcd: served, ref: model.Ref{Environment: "dev"}}
	if d.st, err = etcd.Open(served.Connection); err != nil {
		t.Fatal(err)
	}
	at := server.New(server.Config{Now: time.Now, DB: d.st, CA: served.Certificates.CA, Left: records.Left, Endpoints: served.Connection.Endpoints})
	certificate, err := serve.LoadCertificate(served.Certificates.Server(), served.Certificates.Server(), func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := serve.NewServer(serve.Web{Join: at.Handler()}, certificate, slog.New(slog.DiscardHandler))
	served.Certificates.AskForCertificates(server.TLSConfig)
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	if precreate {
		k, err := serve.NewTasks(serve.TasksConfig{DB: d.st, Certificates: served.Certificates, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		loops.Go(func() { k.Run(ctx) })
	}
	d.server = "https://" + listener.Addr().String()
	t.Cleanup(func() {
		cancel()
		_ = server.Close()
		loops.Wait()
		_ = d.st.Close()
		served.Close()
	})
	return d
}

// calls sets the environment's number of nodes.
func (d *joinServer) calls(n int) {
	d.t.Helper()
	e, err := environments.Parse("dev.yaml", fmt.Appendf(nil, "roles:\n  compute: {cardinality: %d}\n", n))
	if err != nil {
		d.t.Fatal(err)
	}
	_, revision, err := specs.In(d.st).Spec(d.t.Context(), d.ref)
	if err == nil {
		err = specs.In(d.st).PutSpec(d.t.Context(), e, revision)
	}
	if err == nil {
		err = access.In(d.st).EnsureEnvironment(d.t.Context(), "dev")
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *joinServer) token() string {
	d.t.Helper()
	text, _, err := access.TokensIn(d.st).Create(d.t.Context(), access.Token{Environment: "dev", Role: "compute", Created: time.Now(), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		d.t.Fatal(err)
	}
	return text
}

// joined is one machine that joined.
type joined struct {
	join.Answer
	key   pki.Identity
	took  time.Duration // until it received its certificate
	tries int
}

// joinPatience is the time for which a machine retries its join, as in a first boot. joinPause is the minimum wait
// between attempts.
const (
	joinPatience = 2 * time.Minute
	joinPause    = time.Second
)

func (d *joinServer) join(machine, token string) joined {
	pinned, err := pki.Pinned(d.etcd.Certificates.CA.Fingerprints())
	if err != nil {
		d.t.Error(err)
		return joined{}
	}
	c, err := join.NewClient([]string{d.server}, pki.Named(pinned, "localhost"), time.Minute)
	if err != nil {
		d.t.Error(err)
		return joined{}
	}
	key, err := pki.NewKey()
	if err != nil {
		d.t.Error(err)
		return joined{}
	}
	begun := time.Now()
	j := joined{}
	for {
		j.tries++
		j.Answer, err = c.Join(d.t.Context(), key, join.Request{Token: token, Machine: join.Machine{ID: machine, Boot: "b-" + machine, Hostname: machine}})
		var later *join.UnreachableError
		if !errors.As(err, &later) || time.Since(begun) > joinPatience {
			break
		}
		<-time.After(max(joinPause, later.After) + rand.N(joinPause))
	}
	j.took = time.Since(begun)
	if err != nil {
		d.t.Errorf("machine %s could not join: %v", machine, err)
		return joined{}
	}
	if j.key, err = pki.NewIdentity(key, []byte(j.Certificate)); err != nil {
		d.t.Error(err)
	}
	return j
}

// reads lets some nodes read as in their ticks until stop is called, which returns the 99th percentile.
func (d *joinServer) reads(as joined) (stop func() time.Duration) {
	file := filepath.Join(d.t.TempDir(), "node.pem")
	if err := as.key.Save(file); err != nil {
		d.t.Fatal(err)
	}
	config := d.etcd.Connection
	config.Cert, config.Key = file, file
	ctx, cancel := context.WithCancel(d.t.Context())
	var mu sync.Mutex
	var all []time.Duration
	var readers sync.WaitGroup
	for range bystanders {
		st, err := etcd.Open(config)
		if err != nil {
			d.t.Fatal(err)
		}
		readers.Go(func() {
			defer st.Close()
			for tick := time.NewTicker(20 * time.Millisecond); ; {
				begun := time.Now()
				_, err := control.In(st).Desire(ctx, model.Identity{Node: as.Node, Role: "compute", Environment: "dev"})
				took := time.Since(begun)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					d.t.Errorf("a node could not read while others joined: %v", err)
				}
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	return func() time.Duration {
		cancel()
		readers.Wait()
		return durationAt(all, 99)
	}
}

func durationAt(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*p/100)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

// benchPaced lets five hundred machines claim their numbers, first over a minute and then all at once.
func benchPaced(t *testing.T) {
	fmt.Printf("\n| %d machines claim numbers of one role | joined | names twice | lost | asked again | join, median | p99 | p99 of a node's read meanwhile |\n|---|---|---|---|---|---|---|---|\n", paced)
	for _, c := range []struct {
		name  string
		pause time.Duration
		ahead bool
	}{{"over a minute, users pre-created", time.Minute / paced, true}, {"at once, none pre-created", 0, false}} {
		d := newJoinServer(t, t.TempDir(), c.ahead)
		d.calls(paced + 1)
		token := d.token()
		if c.ahead {
			d.awaitReserves(paced + 1)
		}
		first := d.join("first", token)
		stop := d.reads(first)
		got := make([]joined, paced)
		var all sync.WaitGroup
		begun := time.Now()
		for i := range paced {
			<-time.After(time.Until(begun.Add(time.Duration(i) * c.pause)))
			all.Go(func() { got[i] = d.join(fmt.Sprintf("m%d", i), token) })
		}
		all.Wait()
		took := time.Since(begun)
		read := stop()
		d.tellPaced(c.name+", "+took.Round(100*time.Millisecond).String(), got, first.Node, read)
	}
}

// awaitReserves waits until serve has pre-created this number of users.
func (d *joinServer) awaitReserves(n int) {
	d.t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; <-time.After(200 * time.Millisecond) {
		all, _, err := access.IdentitiesIn(d.st).Precreated(d.t.Context(), d.ref)
		if err != nil {
			d.t.Fatal(err)
		}
		ready := 0
		for _, r := range all {
			if r.Ready {
				ready++
			}
		}
		if ready >= n {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("only %d of %d users were pre-created", ready, n)
		}
	}
}

func (d *joinServer) tellPaced(name string, got []joined, first string, read time.Duration) {
	names, twice, lost, again := map[string]bool{first: true}, 0, 0, 0
	var took []time.Duration
	for _, j := range got {
		switch {
		case j.Node == "":
			lost++
			continue
		case names[j.Node]:
			twice++
		}
		names[j.Node] = true
		again += j.tries - 1
		took = append(took, j.took)
	}
	hosts, err := fleet.In(d.st).Hosts(d.t.Context(), d.ref)
	if err != nil || len(hosts) != len(names) || twice > 0 || lost > 0 {
		d.t.Errorf("%d hosts, %d names, %d twice, %d lost: %v", len(hosts), len(names), twice, lost, err)
	}
	d.mayReport(got)
	fmt.Printf("| %s | %d | %d | %d | %d | %s | %s | %s |\n", name, len(took), twice, lost, again, ms(durationAt(took, 50)), ms(durationAt(took, 99)), ms(read))
}

// mayReport lets each node write its own status with its new certificate.
func (d *joinServer) mayReport(got []joined) {
	for i, j := range got {
		if j.Node == "" || i%10 != 0 {
			continue
		}
		file := filepath.Join(d.t.TempDir(), "node.pem")
		config := d.etcd.Connection
		config.Cert, config.Key = file, file
		err := j.key.Save(file)
		if err == nil {
			var st *etcd.DB
			if st, err = etcd.Open(config); err == nil {
				err = control.In(st).Report(d.t.Context(), model.Identity{Node: j.Node, Role: "compute", Environment: "dev"}, model.Status{Node: j.Node}, nil, nil)
				_ = st.Close()
			}
		}
		if err != nil {
			d.t.Errorf("%s can't use its certificate: %v", j.Node, err)
		}
	}
}

// benchSize measures joins with n nodes that have users.
func benchSize(t *testing.T, n int) {
	dir := t.TempDir()
	begin, err := member.StartSecure(t.Context(), secureConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	begin.Close()
	incarnations := fill(t, filepath.Join(dir, "etcd", "member", "snap", "db"), n)
	d := newJoinServer(t, dir, false)
	d.calls(n + 2*sampled + 2)
	d.people(incarnations)
	token := d.token()
	first := d.join("first", token)

	begun := time.Now()
	const changes = 5
	for i := range changes {
		if err := access.In(d.st).EnsureOperator(t.Context(), pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: fmt.Sprint("o", i), Incarnation: pki.NewIncarnation()}.String(), access.RoleViewer); err != nil {
			t.Fatal(err)
		}
	}
	change := time.Since(begun) / (2 * changes) // one user and its role

	stop := d.reads(first)
	<-time.After(3 * time.Second) // reads only
	idle := stop()
	stop = d.reads(first)
	plain := d.joins("plain", token)
	plainRead := stop()

	taken, err := fleet.In(d.st).Hosts(t.Context(), d.ref)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sampled {
		if _, err := access.IdentitiesIn(d.st).Precreate(t.Context(), d.ref, fmt.Sprint("compute", len(taken)+1+i), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	stop = d.reads(first)
	ahead := d.joins("ahead", token)
	aheadRead := stop()
	fmt.Printf("| %d | %s | %s | %s | %.1f | %s | %s | %s |\n", n, ms(change), ms(plain), ms(ahead), float64(plain)/float64(ahead), ms(idle), ms(plainRead), ms(aheadRead))
}

// joins lets machines join one after another, and returns the median.
func (d *joinServer) joins(name, token string) time.Duration {
	var took []time.Duration
	for i := range sampled {
		took = append(took, d.join(fmt.Sprint(name, i), token).took)
	}
	return durationAt(took, 50)
}
