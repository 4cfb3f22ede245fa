package cmd_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// connections N URL opens N TCP connections from twenty addresses of this machine, and sends nothing. They stay open
// until the other side, or the end of the script, closes them.
func connections(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "connections N URL")
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	_, address, _ := strings.Cut(args[1], "://")
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	ts.Defer(func() { cancel(); all.Wait() })
	for i := range n {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%20))}
		c, err := (&net.Dialer{LocalAddr: from, Timeout: patience}).DialContext(ctx, "tcp", address)
		ts.Check(err)
		context.AfterFunc(ctx, func() { _ = c.Close() })
		all.Go(func() {
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		})
	}
}

// write FILE KEY VALUE writes a key of etcd with the certificate in a file, without Pulley. With `!`, etcd must refuse it.
func write(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) != 3, "write FILE KEY VALUE")
	tls, err := etcd.Config{CACert: ts.Getenv("PULLEY_CACERT"), Cert: ts.MkAbs(args[0]), Key: ts.MkAbs(args[0])}.TLS()
	ts.Check(err)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{ts.Getenv("PULLEY_ENDPOINTS")}, TLS: tls, Logger: zap.NewNop()})
	ts.Check(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = c.Put(ctx, args[1], args[2])
	if !neg {
		ts.Check(err)
	} else if err == nil || !strings.Contains(err.Error(), "permission denied") {
		ts.Fatalf("the write of %s is not refused: %v", args[1], err)
	}
}

// users FILE writes etcd's users with their roles, its roles with their permissions, and all keys that serve does not write by
// itself, with their revisions, as the administrator of the script.
func users(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "users FILE")
	tls, err := etcd.Config{CACert: ts.Getenv("PULLEY_CACERT"), Cert: ts.Getenv("PULLEY_CERT"), Key: ts.Getenv("PULLEY_KEY")}.TLS()
	ts.Check(err)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{ts.Getenv("PULLEY_ENDPOINTS")}, TLS: tls, Logger: zap.NewNop()})
	ts.Check(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var b strings.Builder
	all, err := c.UserList(ctx)
	ts.Check(err)
	for _, name := range all.Users {
		u, err := c.UserGet(ctx, name)
		ts.Check(err)
		fmt.Fprintln(&b, "user", name, u.Roles)
	}
	roles, err := c.RoleList(ctx)
	ts.Check(err)
	for _, name := range roles.Roles {
		r, err := c.RoleGet(ctx, name)
		ts.Check(err)
		fmt.Fprintf(&b, "role %s %q\n", name, r.Perm)
	}
	resp, err := c.Get(ctx, "/", clientv3.WithPrefix())
	ts.Check(err)
	for _, kv := range resp.Kvs {
		if kv.Lease == 0 {
			fmt.Fprintf(&b, "%s %d %q\n", kv.Key, kv.ModRevision, kv.Value)
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(b.String()), 0o600))
}

// plant ROLE KEY FILE makes a generation of data in which the layer of a role has the text of FILE, as somebody who may write to etcd
// can; `pulley data set` judges it before.
func plant(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 3, "plant ROLE KEY FILE")
	ref, err := model.ParseRef(ts.Getenv("PULLEY_ENVIRONMENT"))
	ts.Check(err)
	s, err := etcd.Open(etcd.Config{
		Endpoints: []string{ts.Getenv("PULLEY_ENDPOINTS")}, CACert: ts.Getenv("PULLEY_CACERT"), Cert: ts.Getenv("PULLEY_CERT"), Key: ts.Getenv("PULLEY_KEY"), Timeout: patience,
	})
	ts.Check(err)
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	desires, err := targets.In(s).Desires(ctx, ref)
	ts.Check(err)
	data, err := targets.In(s).Data(ctx, ref, desires)
	ts.Check(err)
	var layer []byte
	if digest, has := data.Layers[hieradata.ForRole(args[0])]; has {
		layer, err = targets.In(s).Layer(ctx, ref.String(), digest)
		ts.Check(err)
	}
	layer, err = hieradata.Set(layer, args[1], "'"+strings.TrimSpace(ts.ReadFile(args[2]))+"'")
	ts.Check(err)
	_, err = targets.In(s).ChangeData(ctx, ref, desires, data, map[hieradata.Layer][]byte{hieradata.ForRole(args[0]): layer}, targets.Author{By: "mallory", At: time.Now()})
	ts.Check(err)
}

// leases N FILE calls etcd for N leases of 285 years, with the certificate of a node, an operator or a viewer, in
// sixteen parallel connections. All must be refused.
func leases(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "leases N FILE")
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	tls, err := etcd.Config{CACert: ts.Getenv("PULLEY_CACERT"), Cert: ts.MkAbs(args[1]), Key: ts.MkAbs(args[1])}.TLS()
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all sync.WaitGroup
	var refused atomic.Int64
	for range 16 {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{ts.Getenv("PULLEY_ENDPOINTS")}, TLS: tls, Logger: zap.NewNop()})
		ts.Check(err)
		defer c.Close()
		all.Go(func() {
			for range n / 16 {
				if _, err := c.Grant(ctx, 9_000_000_000); err == nil || !strings.Contains(err.Error(), "permission denied") {
					return
				}
				refused.Add(1)
			}
		})
	}
	all.Wait()
	if refused.Load() != int64(n/16*16) {
		ts.Fatalf("of %d leases only %d were refused", n, refused.Load())
	}
}

// flood FILE writes as fast as it can, until the script ends, what the node with this identity can write: exports, the head of the host
// list, statuses, runs and facts, and its entry in the host list, which it must not write.
func flood(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "flood FILE")
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	certs, err := pki.ParseCertificates(b)
	ts.Check(err)
	name, err := pki.ParseName(certs[0].Subject.CommonName)
	ts.Check(err)
	tls, err := etcd.Config{CACert: ts.Getenv("PULLEY_CACERT"), Cert: ts.MkAbs(args[0]), Key: ts.MkAbs(args[0])}.TLS()
	ts.Check(err)
	of := func(kind string) string { return "/pulley/v1/" + kind + "/" + name.Environment + "/" + name.Subject }
	list, large := "/pulley/v1/environments/"+name.Environment+"/hosts/", strings.Repeat("x", 15<<10)
	ctx, cancel := context.WithCancel(context.Background())
	ts.Defer(cancel)
	var all sync.WaitGroup
	var written, sent atomic.Int64
	for range 4 {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{ts.Getenv("PULLEY_ENDPOINTS")}, TLS: tls, Logger: zap.NewNop()})
		ts.Check(err)
		ts.Defer(func() { _ = c.Close() })
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					n := sent.Add(1)
					key, value := of("runs")+"/"+strconv.FormatInt(n, 10), large
					switch n % 6 {
					case 0:
						key = of("status")
					case 1:
						key = of("facts")
					case 2:
						key = list + "exports/" + name.Subject
					case 3:
						key = list + "nodes/" + name.Subject
					case 4:
						key, value = list+"head", `{"v":1}`
					}
					within, cancel := context.WithTimeout(ctx, 20*time.Second)
					if _, err := c.Put(within, key, value); err == nil {
						written.Add(1)
					}
					cancel()
				}
			})
		}
	}
	ts.Defer(func() {
		cancel()
		all.Wait()
		ts.Logf("%d of %d writes of the flood were accepted", written.Load(), sent.Load())
	})
}

// raw is a request, or an answer, without its form. As a codec, it sends and reads the bytes.
type raw []byte

func (raw) Marshal(v any) ([]byte, error) { return v.(raw), nil }
func (raw) Unmarshal(b []byte, v any) error {
	*v.(*raw) = b
	return nil
}
func (raw) Name() string { return "proto" }

// hostile sends requests that would make etcd read much at once: hostile PIDFILE FILE..., with the identities of these files at the same
// time. Their number is that of PULLEY_TEST_HOSTILE, after one request of a million guards in each of 32 calls. It logs the most memory
// that the process took.
func hostile(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2, "hostile PIDFILE FILE...")
	n, err := strconv.Atoi(cmp.Or(os.Getenv("PULLEY_TEST_HOSTILE"), "100"))
	ts.Check(err)
	content := func(limit int64, more ...clientv3.OpOption) clientv3.Op {
		return clientv3.OpGet("/pulley/v1/content/", append(more, clientv3.WithPrefix(), clientv3.WithLimit(limit))...)
	}
	txn := func(ops []clientv3.Op) clientv3.Op { return clientv3.OpTxn(nil, ops, nil) }
	guard := clientv3.Compare(clientv3.Version("/pulley/v1/content/"), ">", 0).WithPrefix()
	forms := []clientv3.Op{
		txn(slices.Repeat([]clientv3.Op{content(0)}, 90)),
		txn([]clientv3.Op{txn(slices.Repeat([]clientv3.Op{content(0)}, 90))}),
		txn(slices.Repeat([]clientv3.Op{content(1, clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))}, 60)),
		txn(slices.Repeat([]clientv3.Op{content(30)}, 30)),
		content(30), // some answers are large, and their client does not read them
		clientv3.OpTxn(slices.Repeat([]clientv3.Cmp{guard}, 90), nil, nil),
	}
	guards := raw(bytes.Repeat([]byte{0x0a, 0}, 1_000_000))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all sync.WaitGroup
	var answered, sent atomic.Int64
	for _, file := range args[1:] {
		tls, err := etcd.Config{CACert: ts.Getenv("PULLEY_CACERT"), Cert: ts.MkAbs(file), Key: ts.MkAbs(file)}.TLS()
		ts.Check(err)
		for range 8 {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{ts.Getenv("PULLEY_ENDPOINTS")}, TLS: tls, Logger: zap.NewNop(), MaxCallRecvMsgSize: 64 << 10})
			ts.Check(err)
			defer c.Close()
			for range 4 {
				all.Go(func() {
					if err := c.ActiveConnection().Invoke(ctx, "/etcdserverpb.KV/Txn", guards, new(raw), grpc.ForceCodec(raw{})); err == nil {
						answered.Add(1)
					}
					for i := sent.Add(1); i <= int64(n) && ctx.Err() == nil; i = sent.Add(1) {
						within, cancel := context.WithTimeout(ctx, 20*time.Second)
						if _, err := c.Do(within, forms[i%int64(len(forms))]); err == nil || strings.Contains(err.Error(), "larger than max") {
							answered.Add(1)
						}
						cancel()
					}
				})
			}
		}
	}
	all.Wait()
	pid, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status")
	if err != nil {
		ts.Fatalf("serve ended: %v", err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	peak, _, _ = strings.Cut(peak, "\n")
	ts.Logf("%d hostile requests, %d were answered; the peak of serve's memory is %s", min(sent.Load(), int64(n)), answered.Load(), strings.TrimSpace(peak))
}
