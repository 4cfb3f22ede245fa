package store_test

import (
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/testbed/etcdtest"
)

// An operator who reads "message larger than max" knows neither what is too large nor what to do.
func TestSizeLimitsHaveWords(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, raw, ctx := open(t, server, ""), server.Client(), t.Context()
	for i := range 17 { // one page of the host list would be larger than 16 MiB
		if _, err := raw.Put(ctx, fmt.Sprintf("/pulley/v1/environments/dev/hosts/nodes/web%d", i+1), strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := st.Fleet.Hosts(ctx, dev)
	if err == nil || !strings.HasSuffix(err.Error(), "cannot list the hosts of dev: the answer of etcd is larger than 16 MiB\nselect fewer nodes with --role or --node; `pulley doctor` names nodes that wrote too much") {
		t.Errorf("a large answer: %v", err)
	}
	// etcd itself refuses a value of 1.7 MiB. Its client does not send one of 3 MiB.
	for _, mib := range []float64{1.7, 3} {
		h := agent.Host{Node: "db1", Role: "db", Hostname: strings.Repeat("x", int(mib*(1<<20)))}
		if err := st.Fleet.Register(ctx, "dev", h); err == nil || !strings.HasSuffix(err.Error(), "the value is larger than etcd accepts, 1.5 MiB by default\nstore it in smaller parts") {
			t.Errorf("a value of %v MiB: %.300v", mib, err)
		}
	}
	if resp, err := raw.Get(ctx, "/pulley/v1/environments/dev/hosts/nodes/db1", clientv3.WithCountOnly()); err != nil || resp.Count != 0 {
		t.Errorf("it is stored: %v, %v", resp, err)
	}
	if f, err := st.Fleet.One(ctx, environments.Ref{Environment: "dev"}, "db1"); err != nil || f.Known()["db1"] {
		t.Errorf("one node: %v", err)
	}
}
