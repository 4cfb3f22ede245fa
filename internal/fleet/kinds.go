package fleet

import (
	"strings"

	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/facts"
	"pulley/internal/model"
)

// mostRuns is the number of run records of an environment up to which they are decoded: those of a large fleet have gigabytes, and
// `pulley runs` names what it cannot read.
const mostRuns = 5000

// Kinds lists the kinds of values of this package, of one environment.
func Kinds(k etcd.EnvKeys) []kinds.Kind {
	return []kinds.Kind{
		{At: k.HostsHead()}, kinds.OfNodes[model.Host](k.Hosts()), kinds.OfNodes[model.Export](k.Exports()), kinds.OfScopes[model.Hold](k.Holds(), "all"),
		kinds.OfNodes[model.PreviewOrder](k.PreviewOrders()), kinds.OfNodes[model.Confirmation](k.Retirement("")), kinds.OfNodes[model.Status](k.Statuses()),
		kinds.OfNodes[Flood](k.Flood("")),
		{At: k.NodesFacts(), Node: true, Read: func(_ string, kv *etcd.KV) error {
			if err := etcd.CheckSize(string(kv.Key), kv.Value); err != nil {
				return err
			}
			_, err := facts.Decode(kv.Value)
			return err
		}},
		{At: k.NodesRuns(), BelowNode: true, Types: []any{model.Run{}, model.Preview{}}, Most: mostRuns, Read: func(rest string, kv *etcd.KV) error {
			node, id, _ := strings.Cut(rest, "/")
			err := etcd.CheckSize(string(kv.Key), kv.Value)
			switch {
			case err != nil:
			case !etcd.IsSegment(node) || !etcd.IsSegment(id):
				err = etcd.ErrNotOurs
			case id == model.PreviewRun: // beside the runs
				_, err = model.DecodePreview(kv.Value)
			default:
				_, _, err = model.DecodeRun(kv.Value)
			}
			return err
		}},
	}
}
