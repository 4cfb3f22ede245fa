package doctor

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
)

// listed is all kinds of values of a fleet with the environment dev.
func listed() []kinds.Kind {
	db := &etcd.DB{Keys: etcd.NewKeys("")}
	return append(kindsOf(db, model.Ref{Environment: "dev"}), kindsOfNone(db)...)
}

// A key of no kind is named as one that Pulley does not have.
func TestKindsOfAllKeysAreListed(t *testing.T) {
	t.Parallel()
	bytes := []string{"content/<sha256>", "deltas/<line>/<seq>", "targets"} // no values
	for _, r := range etcdtest.TableOfKeys(t, "dev", "controller1", "") {
		is := func(k kinds.Kind) bool { return r.Key == k.At || k.Many() && strings.HasPrefix(r.Key, k.At) }
		if slices.ContainsFunc(listed(), is) == slices.Contains(bytes, r.Pattern) {
			t.Errorf("%s: its kind must be listed by its subject, or it is bytes, and not both", r.Pattern)
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
	for _, kind := range listed() {
		if untyped := []string{"/spec", "/facts/dev/"}; kind.Read != nil && len(kind.Types) == 0 && !slices.ContainsFunc(untyped, func(end string) bool { return strings.HasSuffix(kind.At, end) }) {
			t.Errorf("the kind of %s names no type", kind.At)
		}
		for _, value := range kind.Types {
			walk(kind.At, reflect.TypeOf(value), nil)
		}
	}
	for _, name := range identifiers {
		if !used[name] {
			t.Errorf("identifier %s is in no stored type", name)
		}
	}
}
