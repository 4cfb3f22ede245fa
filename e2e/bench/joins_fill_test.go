//go:build bench

package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// fill writes the users and roles of nodes into the file of a stopped member, with the final content that etcd would
// write. With etcd's own calls, ten thousand take half an hour.
func fill(t *testing.T, db string, n int) (incarnations []string) {
	t.Helper()
	be := backend.NewDefaultBackend(zap.NewNop(), db)
	tx := schema.NewAuthBackend(zap.NewNop(), be).BatchTx()
	tx.Lock()
	after := func(key string) string { return key[:len(key)-1] + string(key[len(key)-1]+1) }
	const v1 = "/pulley/v1/"
	for i := range n {
		node := fmt.Sprint("compute", i+1)
		incarnations = append(incarnations, pki.NewIncarnation())
		name := pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: node, Incarnation: incarnations[i]}
		runs := v1 + "runs/dev/" + node + "/"
		tx.UnsafePutRole(&authpb.Role{Name: []byte(name.Role()), KeyPermission: []*authpb.Permission{
			{PermType: authpb.Permission_READWRITE, Key: []byte(runs), RangeEnd: []byte(after(runs))},
			{PermType: authpb.Permission_READWRITE, Key: []byte(v1 + "status/dev/" + node)},
		}})
		tx.UnsafePutUser(&authpb.User{Name: []byte(name.String()), Roles: []string{name.Role(), "pulley/nodes/dev"}, Options: &authpb.UserAddOptions{NoPassword: true}})
	}
	tx.Unlock()
	be.ForceCommit()
	if err := be.Close(); err != nil {
		t.Fatal(err)
	}
	return incarnations
}

// people writes the identities and host list entries of the nodes that fill created.
func (d *joinServer) people(incarnations []string) {
	d.t.Helper()
	var writers sync.WaitGroup
	todo := make(chan int)
	for range 64 {
		writers.Go(func() {
			for i := range todo {
				node := fmt.Sprint("compute", i+1)
				name := pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: node, Incarnation: incarnations[i]}
				err := access.IdentitiesIn(d.st).Put(d.t.Context(), d.ref, access.Identity{
					Node: node, Role: "compute", User: name.String(), Incarnation: name.Incarnation, Machine: "old-" + node, Joined: time.Now(),
				}, 0)
				if err == nil {
					err = fleet.In(d.st).Register(d.t.Context(), "dev", model.Host{Node: node, Role: "compute", MachineID: "old-" + node})
				}
				if err != nil {
					d.t.Error(err)
				}
			}
		})
	}
	for i := range incarnations {
		todo <- i
	}
	close(todo)
	writers.Wait()
}
