package store

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/machines"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
	"pulley/internal/rollout"
)

// stored is the type of the value at each row of the table of keys. It is nil for bytes, and for keys of which only
// the revision counts.
var stored = map[string]any{
	"releases/<version>":      release.Release{},
	"withdrawn/<version>":     release.Withdrawal{},
	"content/<sha256>":        nil,
	"deltas/<line>/<seq>":     nil,
	"publishing/<id>":         etcd.LockHolder{},
	"pruning":                 etcd.LockHolder{},
	"installation":            installation{},
	"disk":                    Disk{},
	"backup":                  Backup{},
	"targets":                 nil,
	"environments/<env>/spec": nil, // the operator's own file
	"environments/<env>/desired/{default,roles/R,nodes/N}": model.Target{},
	"environments/<env>/gate":                              model.Gate{},
	"environments/<env>/history/<epoch>":                   Change{},
	"environments/<env>/rollbacks/<epoch>":                 trust.Permit{},
	"environments/<env>/statement":                         trust.Statement{},
	"environments/<env>/assigned/<node>":                   model.Assignment{},
	"environments/<env>/job":                               model.LiveJob{},
	"environments/<env>/previews/<node>":                   model.PreviewOrder{},
	"environments/<env>/campaigns/<id>/plan":               rollout.Plan{},
	"environments/<env>/campaigns/<id>/nodes/<nonce>/<n>":  chunk{},
	"environments/<env>/campaigns/<id>/state":              rollout.State{},
	"environments/<env>/campaigns/<id>/endings":            endings{},
	"environments/<env>/data/head":                         dataHead{},
	"environments/<env>/data/generations/<n>":              hieradata.Generation{},
	"environments/<env>/data/layers/<sha256>":              nil,
	"environments/<env>/hosts/head":                        nil,
	"environments/<env>/hosts/nodes/<node>":                model.Host{},
	"environments/<env>/hosts/exports/<node>":              model.Export{},
	"environments/<env>/holds/{all,roles/R,nodes/N}":       model.Hold{},
	"environments/<env>/agent":                             desired.AgentWish{},
	"environments/<env>/machines/<node>":                   booked{},
	"environments/<env>/applying":                          etcd.LockHolder{},
	"environments/<env>/acts/<id>":                         machines.Act{},
	"environments/<env>/provisioning":                      Provisioning{},
	"environments/<env>/former":                            Former{},
	"destroyed/<env>":                                      Destruction{},
	"retirements/<env>/<node>":                             model.Confirmation{},
	"status/<env>/<node>":                                  model.Status{},
	"runs/<env>/<node>/<id>":                               model.Run{},
	"facts/<env>/<node>":                                   nil,
	"runs/<env>/<node>/preview":                            model.Preview{},
	"agents/<version>":                                     release.AgentRelease{},
	"tokens/nodes/<id>":                                    Token{},
	"tokens/operators/<id>":                                Token{},
	"identities/<env>/<node>":                              Identity{},
	"operators/<name>":                                     OperatorIdentity{},
	"precreated/<env>/<node>":                              Precreated{},
	"cleanups/<env>/<node>":                                Cleanup{},
	"presigned/<env>/<node>":                               Presigned{},
	"certificates/<name>":                                  etcd.LockHolder{},
	"firstboots/<env>/<machine>":                           FirstBoot{},
	"machines/<env>/<machine>":                             Past{},
	"recipients/<env>/<name>":                              Recipients{},
	"notices/<id>":                                         Notice{},
	"floods/<env>/<node>":                                  Flood{},
	"lockouts/<env>/<node>":                                model.Lockout{},
}

func TestStoredTypesAreComplete(t *testing.T) {
	t.Parallel()
	rows := map[string]bool{}
	for _, r := range tableOfKeys(t, "dev", "controller1", "") {
		rows[r.pattern] = true
		if _, ok := stored[r.pattern]; !ok {
			t.Errorf("no type is listed for %s", r.pattern)
		}
	}
	for pattern := range stored {
		if !rows[pattern] {
			t.Errorf("%s is in no row of the table of keys", pattern)
		}
	}
}

// identifiers are the fields with a name, an address, a digest or another value that programs may compare.
var identifiers = strings.Fields(`
	Addresses After Again Agent Application As Ask Assignment Author Before Boot Boots By CA CRL CanariesWhere Cause Certificate Certname Checked Code Commit CommitAuthor Component ConfigVersion Criterion Daemons DataDigest Digest Doubtful Driver EndedBy Enforce Environment Environments Excluded File FirstBoot FirstCommit Flavor Folder From Gates
	Hash Hostname ID Image Incarnation Instance Key LastRun Layers Level Line Listed Listener Machine MachineID Modules Name Node Nodes Nonce Now Of Operator Order
	Path Place Places Property PuppetEnvironment PuppetServer Reason Recipient Ref Release Replaces Report Resource Rivals Role Roles Rollout Run SHA256 Scope Server Settings Signal Signers SkipTags Source Status Step Tags To Token Tree
	URL User Value Version Wanted Was Who Windows
`)

// texts are free text of packages that do not import agent, and of Puppet's reports.
var texts = []string{"hieradata.Generation.Message", "trust.Permit.Why", "model.LogLine.Message", "model.ResourceEvent.Messages", "model.ResourceEvent.Diff", "model.PropertyChange.Old", "model.PropertyChange.New"}

// A sentence that code compares breaks with the next rewording. Free text has the type model.Prose. Codes have types
// of their own.
func TestStoredTextIsProse(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	var walk func(path string, of reflect.Type, seen []reflect.Type)
	walk = func(path string, of reflect.Type, seen []reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(path, of.Elem(), seen)
		case reflect.Map:
			walk(path, of.Elem(), seen)
		case reflect.Struct:
			if of == reflect.TypeFor[time.Time]() || slices.Contains(seen, of) {
				return
			}
			for i := range of.NumField() {
				f := of.Field(i)
				if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
					continue
				}
				name := f.Name
				if strings.HasSuffix(f.Type.String(), "]string") && f.Type.Kind() == reflect.Map || f.Type == reflect.TypeFor[string]() || f.Type == reflect.TypeFor[[]string]() || f.Type == reflect.TypeFor[*string]() {
					used[name] = true
					if !slices.Contains(identifiers, name) && !slices.Contains(texts, of.String()+"."+name) {
						t.Errorf("%s.%s of %s is a plain string: make it model.Prose, a typed code, or list it as an identifier", of, name, path)
					}
					continue
				}
				walk(path, f.Type, append(seen, of))
			}
		}
	}
	for pattern, value := range stored {
		if value != nil {
			walk(pattern, reflect.TypeOf(value), nil)
		}
	}
	for _, name := range identifiers {
		if !used[name] {
			t.Errorf("identifier %s is in no stored type", name)
		}
	}
}
