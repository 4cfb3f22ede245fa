package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A write that nobody counts is a flood without a name. The head of the host list is a key of all nodes: who writes it is known only by what else the
// same transaction writes.
func TestWatchNamesWritersOfTheHostList(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, raw := fleettest.Open(t, server, ""), server.Client()
	const head, export = "/pulley/v1/environments/dev/hosts/head", "/pulley/v1/environments/dev/hosts/exports/"
	large := strings.Repeat("x", 100<<10)
	do := func(ops ...clientv3.Op) error {
		_, err := raw.Do(t.Context(), clientv3.OpTxn(nil, ops, nil))
		return err
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	writes, ended := make(chan fleet.NodeWrite, 1000), make(chan error, 1)
	go func() { ended <- fleet.In(st).Watch(ctx, func(w fleet.NodeWrite) { writes <- w }) }()
	for began := false; !began; { // it reports writes from now on
		if err := do(clientv3.OpPut("/pulley/v1/status/dev/begin", "x")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-writes:
			began = true
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	who := model.Identity{Node: "web1", Role: "web", Environment: "dev"}
	if err := errors.Join(
		control.In(st).PublishExport(t.Context(), who, model.Export{Facts: map[string]json.RawMessage{"f": json.RawMessage("1")}}, true),
		do(clientv3.OpPut(head, "x")),
		do(clientv3.OpPut(export+"web2", large), clientv3.OpPut(head, large)),
		fleet.In(st).Register(t.Context(), "dev", model.Host{Node: "web3", Role: "web"}),
		do(clientv3.OpPut("/pulley/v1/environments/dev/gate", large)),
		do(clientv3.OpPut(export+"end", "x")),
	); err != nil {
		t.Fatal(err)
	}
	var got []string
	for end := time.After(time.Minute); len(got) == 0 || !strings.HasPrefix(got[len(got)-1], "end"); {
		select {
		case w := <-writes:
			if w.Node != "begin" {
				got = append(got, fmt.Sprintf("%s bytes=%t large=%t shown=%.6s", w.Node, w.Bytes > 0, w.Bytes >= int64(len(large)), w.Shown))
			}
		case err := <-ended:
			t.Fatal(err)
		case <-end:
			t.Fatalf("it never reports the last write: %q", got)
		}
	}
	want := []string{
		"web1 bytes=true large=false shown=export",
		" bytes=true large=false shown=",
		"web2 bytes=true large=true shown=export",
		"web2 bytes=true large=true shown=",
		"web3 bytes=false large=false shown=entry ",
		"end bytes=true large=false shown=export",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it reports\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
