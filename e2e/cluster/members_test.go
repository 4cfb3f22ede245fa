//go:build e2e

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// diskMiB is the size of a member's disk.
const diskMiB = 128

// member is a process of etcd with a network and a disk of its own.
type member struct {
	name, address string
	dir           string // its disk
	args          []string
	log           string

	mu    sync.Mutex
	cmd   *exec.Cmd // nil while it is down
	ended chan struct{}
}

func (m *member) endpoint() string { return "https://" + m.address + ":2379" }
func (m *member) peer() string     { return "https://" + m.address + ":2380" }

// newMember makes network, disk and certificate of member n.
func (w *world) newMember(n int) *member {
	w.t.Helper()
	m := &member{name: fmt.Sprintf("m%d", n), address: fmt.Sprintf("10.78.0.%d", n)}
	m.dir, m.log = filepath.Join(w.dir, m.name), filepath.Join(w.dir, m.name+".log")
	w.t.Cleanup(func() { // also of a member that was replaced: the next test uses its name again
		m.kill()
		_ = unix.Unmount(m.dir, unix.MNT_DETACH)
		_ = ip("netns del " + m.name)
	})
	for _, args := range []string{
		"netns add NAME", "link add NAME type veth peer name e0 netns NAME", "link set NAME master " + bridgeName, "link set NAME up",
		"-n NAME address add " + m.address + "/24 dev e0", "-n NAME link set e0 up", "-n NAME link set lo up",
	} {
		if err := ip(strings.ReplaceAll(args, "NAME", m.name)); err != nil {
			w.t.Fatal(err)
		}
	}
	err := os.Mkdir(m.dir, 0o700)
	if err == nil {
		err = unix.Mount("tmpfs", m.dir, "tmpfs", 0, fmt.Sprintf("size=%dm", diskMiB))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.must("pulley", "auth", "certificate", m.name+".pem", "--data-dir", "data", "--host", m.address)
	return m
}

// configure sets the command line, as in docs/etcd-cluster.md. Members trust each other by certificates of their own.
func (w *world) configure(m *member, state string, all ...*member) {
	var peers []string
	for _, each := range all {
		peers = append(peers, each.name+"="+each.peer())
	}
	pem := filepath.Join(w.dir, m.name+".pem")
	m.args = []string{
		"netns", "exec", m.name, filepath.Join(w.dir, "bin", "etcd"), "--name", m.name, "--data-dir", filepath.Join(m.dir, "data"),
		"--listen-client-urls", m.endpoint(), "--advertise-client-urls", m.endpoint(),
		"--cert-file", pem, "--key-file", pem, "--client-cert-auth", "--trusted-ca-file", filepath.Join(w.dir, "data/pki/bundle.pem"),
		"--listen-peer-urls", m.peer(), "--initial-advertise-peer-urls", m.peer(), "--peer-auto-tls",
		"--initial-cluster", strings.Join(peers, ","), "--initial-cluster-state", state,
		"--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1m", "--log-level", "error",
	}
}

// start starts the process. It does nothing while the member runs.
func (m *member) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("ip", m.args...) // ip becomes etcd
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	m.cmd, m.ended = cmd, ended
	go func() {
		_ = cmd.Wait()
		m.mu.Lock()
		m.cmd = nil
		m.mu.Unlock()
		close(ended)
	}()
	return nil
}

// signal sends a signal. It does nothing while the member is down.
func (m *member) signal(s syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Signal(s)
	}
}

// kill ends the process by SIGKILL, and waits for its end.
func (m *member) kill() {
	m.mu.Lock()
	cmd, ended := m.cmd, m.ended
	m.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		<-ended
	}
}

func (m *member) runs() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cmd != nil
}

// cut disconnects the member from all others and from all clients, or connects it again.
func (m *member) cut(off bool) error {
	state := "up"
	if off {
		state = "down"
	}
	return ip("link set " + m.name + " " + state)
}

// isolate disconnects the member from the other members. Clients still reach it.
func (m *member) isolate(off bool, others []*member) (err error) {
	verb := "del"
	if off {
		verb = "add"
	}
	for _, o := range others {
		if o != m {
			err = errors.Join(err, ip(fmt.Sprintf("-n %s route %s blackhole %s/32", m.name, verb, o.address)))
		}
	}
	return err
}

// fill uses up the disk.
func (m *member) fill() error {
	f, err := os.Create(filepath.Join(m.dir, "fill"))
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 4
		} else if err != nil {
			return err
		}
	}
	return nil
}

// clear makes room on the disk.
func (m *member) clear() error { return os.Remove(filepath.Join(m.dir, "fill")) }

// client returns a connection to these members with all rights. It ends with the test.
func (w *world) client(members ...*member) *clientv3.Client {
	w.t.Helper()
	identity := filepath.Join(w.dir, "data/pki/serve.pem")
	pair, err := tls.LoadX509KeyPair(identity, identity)
	if err != nil {
		w.t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(w.dir, "data/pki/bundle.pem"))
	if err != nil {
		w.t.Fatal(err)
	}
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	secure.RootCAs.AppendCertsFromPEM(pem)
	c := clientv3.Config{TLS: secure, DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
	for _, m := range members {
		c.Endpoints = append(c.Endpoints, m.endpoint())
	}
	client, err := clientv3.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = client.Close() })
	return client
}

// state asks one member.
func (w *world) state(m *member) (*clientv3.StatusResponse, error) {
	w.mu.Lock()
	if w.clients[m] == nil {
		w.clients[m] = w.client(m)
	}
	c := w.clients[m]
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	return c.Status(ctx, m.endpoint())
}

// leader returns the leader; nil if no member knows it.
func (w *world) leader() *member {
	for _, m := range w.members() {
		if s, err := w.state(m); err == nil && s.Leader == s.Header.MemberId {
			return m
		}
	}
	return nil
}

// allAnswer waits until each member answers and follows a leader.
func (w *world) allAnswer() {
	w.t.Helper()
	for _, m := range w.members() {
		w.eventually(m.name+" follows a leader", func() error {
			if err := m.start(); err != nil { // etcd gives up on some faults; its unit would start it again
				return err
			}
			s, err := w.state(m)
			if err == nil && (s.Leader == 0 || len(s.Errors) > 0) {
				err = fmt.Errorf("leader %d, errors %q", s.Leader, s.Errors)
			}
			return err
		})
	}
}

// moveLeader makes another member the leader.
func (w *world) moveLeader(to *member) {
	from := w.leader()
	if from == nil || from == to {
		return
	}
	target, err := w.state(to)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	w.mu.Lock()
	c := w.clients[from]
	w.mu.Unlock()
	_, _ = c.MoveLeader(ctx, target.Header.MemberId) // refused if the leader has changed
}

// replaceMembers replaces each member by a new one, as docs/etcd-cluster.md describes, while everything else goes on.
func (w *world) replaceMembers() {
	w.t.Helper()
	for _, old := range w.members() {
		w.lastMember++
		added := w.newMember(w.lastMember)
		present := w.members()
		c := w.client(present...)
		var id uint64
		w.eventually("etcd accepts "+added.name, func() error {
			ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
			defer cancel()
			list, err := c.MemberList(ctx)
			if err != nil {
				return err
			}
			for _, m := range list.Members {
				if m.PeerURLs[0] == added.peer() { // the answer was lost
					id = m.ID
					return nil
				}
			}
			made, err := c.MemberAddAsLearner(ctx, []string{added.peer()})
			if err == nil {
				id = made.Member.ID
			}
			return err
		})
		w.configure(added, "existing", append(slices.Clone(present), added)...)
		w.eventually(added.name+" has all data", func() error {
			// etcd exits if the member that it asks does not know it yet. A service manager starts it again.
			if err := added.start(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
			defer cancel()
			_, err := c.MemberPromote(ctx, id)
			return err
		})
		gone, err := w.state(old)
		if err != nil {
			w.t.Fatal(err)
		}
		kept := append(slices.DeleteFunc(present, func(m *member) bool { return m == old }), added)
		w.setMembers(kept)
		c = w.client(kept...)
		w.eventually("etcd removes "+old.name, func() error {
			ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
			defer cancel()
			list, err := c.MemberList(ctx)
			if err != nil {
				return err
			}
			if len(list.Members) == len(kept) {
				return nil
			}
			_, err = c.MemberRemove(ctx, gone.Header.MemberId)
			return err
		})
		old.kill()
		if err := unix.Unmount(old.dir, unix.MNT_DETACH); err != nil {
			w.t.Error(err)
		}
		w.allAnswer()
	}
}

// eventually waits until a condition holds, at most five minutes.
func (w *world) eventually(what string, holds func() error) {
	w.t.Helper()
	eventually(w.t, what, holds)
}

func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within five minutes: %s: %v", what, err)
		}
	}
}
