package targets

import (
	"errors"
	"fmt"

	"pulley/hieradata"
	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/model"
	"pulley/internal/release/trust"
)

// Kinds lists the kinds of values of this package and of package desired, of one environment.
func Kinds(k etcd.EnvKeys, ref model.Ref) []kinds.Kind {
	return []kinds.Kind{
		kinds.Of[model.Gate](k.Gate()), kinds.OfScopes[model.Target](k.Desired(), "default"), kinds.Of[desired.AgentWish](k.AgentChoice()),
		kinds.Of[dataHead](k.DataHead()), kinds.Of[Recipients](k.Recipients()), {At: k.Generations(), Types: []any{hieradata.Generation{}}}, {At: k.Layers()},
		{At: k.Statement(), Types: []any{trust.Statement{}}, Read: func(_ string, kv *etcd.KV) error {
			st, err := trust.ParseStatement(kv.Value)
			if err == nil && st.Environment != ref.String() {
				err = fmt.Errorf("it is no statement of %s", ref)
			}
			return err
		}},
		{At: k.History(), Types: []any{Change{}}, Read: func(_ string, kv *etcd.KV) error {
			var c Change
			if err := etcd.Into(&c)(kv); err != nil || string(kv.Key) == k.Change(c.Epoch) {
				return err
			}
			return fmt.Errorf("it is the change of epoch %d", c.Epoch)
		}},
		{At: k.Permits(), Types: []any{trust.Permit{}}, Read: func(_ string, kv *etcd.KV) error {
			record, _ := trust.Split(kv.Value)
			p, err := trust.ParsePermit(record)
			if err == nil && (p.Environment != ref.String() || string(kv.Key) != k.Permit(model.Epoch(p.Epoch))) {
				err = errors.New("it is the permit of another environment or epoch")
			}
			return err
		}},
	}
}
