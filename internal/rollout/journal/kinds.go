package journal

import (
	"errors"
	"strings"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/model"
	"pulley/internal/rollout"
)

// Kinds lists the kinds of values of this package, of one environment.
func Kinds(k etcd.EnvKeys) []kinds.Kind {
	return []kinds.Kind{
		kinds.Of[model.LiveJob](k.Job()), kinds.OfNodes[model.Assignment](k.Assignment("")),
		{At: k.Campaigns(), Types: []any{rollout.Plan{}, rollout.State{}, chunk{}, targets.Endings{}}, Read: func(rest string, kv *etcd.KV) error {
			id, part, _ := strings.Cut(rest, "/")
			switch kind, _, _ := strings.Cut(part, "/"); kind {
			case "plan":
				var p rollout.Plan
				if err := etcd.Into(&p)(kv); err != nil || p.ID == id {
					return err
				}
				return errors.New("it is the plan of another rollout or job")
			case "state":
				return kinds.Into[rollout.State](kv)
			case "endings":
				return kinds.Into[targets.Endings](kv)
			case "nodes":
				return kinds.Into[chunk](kv)
			}
			return etcd.ErrNotOurs
		}},
	}
}
