package desired

import (
	"encoding/json"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Demands is the part of an environment that nodes and signers obey, and that judges nodes.
type Demands struct {
	Signatures string         `json:"signatures"`
	Statement  model.Duration `json:"statement"`
	Silence    model.Duration `json:"silence"`
}

// DemandsOf reads the demands of a spec; none of an unreadable one.
func DemandsOf(specs []*etcd.KV) (d Demands) {
	for _, kv := range specs {
		_ = json.Unmarshal(kv.Value, &d) // operators see that it is unreadable
	}
	return d
}
