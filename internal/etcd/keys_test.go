package etcd_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pulley/internal/etcd"
	"pulley/internal/testbed/etcdtest"
)

// No test checks the writers of a key that the table lacks.
func TestKeyTableIsComplete(t *testing.T) {
	t.Parallel()
	const env, node = "dev", "controller1"
	k := etcd.NewKeys("")
	spelled := map[string]string{}
	for _, keys := range []any{k, k.Env(env)} {
		v := reflect.ValueOf(keys)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			if m.Type.NumOut() != 1 || m.Type.Out(0).Kind() != reflect.String || m.Name == "Prefix" || v.Type() == reflect.TypeOf(k) && m.Name == "Root" {
				continue
			}
			args := make([]reflect.Value, m.Type.NumIn()-1)
			for a := range args {
				switch in := m.Type.In(a + 1); in {
				case reflect.TypeFor[etcd.Scope]():
					args[a] = reflect.ValueOf(etcd.Scope{Node: node})
				case reflect.TypeFor[string]():
					args[a] = reflect.ValueOf("x1")
				default:
					args[a] = reflect.ValueOf(1).Convert(in)
				}
			}
			spelled[m.Name] = v.Method(i).Call(args)[0].String()
		}
	}
	rows := etcdtest.TableOfKeys(t, env, node, "x1")
	if len(rows) < 30 || len(spelled) < 60 {
		t.Fatalf("the table has only %d rows, and the type only %d keys", len(rows), len(spelled))
	}
	is := func(r etcdtest.KeyRow, key string) bool {
		return r.Key == key || strings.HasSuffix(key, "/") && strings.HasPrefix(r.Key, key)
	}
	for name, key := range spelled {
		if !slices.ContainsFunc(rows, func(r etcdtest.KeyRow) bool { return is(r, key) }) {
			t.Errorf("%s spells %s, which is in no row of the table", name, key)
		}
	}
	for _, r := range rows {
		used := false
		for _, key := range spelled {
			used = used || is(r, key)
		}
		if !used && !strings.HasSuffix(r.Key, "/all") && !strings.HasSuffix(r.Key, "/default") && !strings.Contains(r.Key, "roles/") {
			t.Errorf("the table has %s, which nothing spells", r.Pattern)
		}
	}
}

// A key that a removal forgets would be that of the next machine of the name.
func TestKeysOfANodeLeaveWithIt(t *testing.T) {
	t.Parallel()
	k := etcd.NewKeys("").Env("dev")
	leaving := k.Leaving("web1")
	stay := []string{k.Identity("web1"), k.MachineRecord("web1"), k.Cleanup("web1"), k.Status("web1"), k.Runs("web1"), k.Recipient("web1"), k.FirstBoot("web1"), k.Past("web1"), k.Act("web1"), k.Layer("web1")}
	v := reflect.ValueOf(k)
	for i := range v.NumMethod() {
		m := v.Type().Method(i)
		if m.Type.NumIn() != 2 || m.Type.NumOut() != 1 || m.Type.Out(0).Kind() != reflect.String || strings.HasPrefix(m.Name, "Campaign") {
			continue
		}
		var of reflect.Value
		switch m.Type.In(1) {
		case reflect.TypeFor[etcd.Scope]():
			of = reflect.ValueOf(etcd.Scope{Node: "web1"})
		case reflect.TypeFor[string]():
			of = reflect.ValueOf("web1")
		default:
			continue
		}
		if key := v.Method(i).Call([]reflect.Value{of})[0].String(); slices.Contains(leaving, key) == slices.Contains(stay, key) {
			t.Errorf("%s: %s must be deleted by a removal, or stay after it, and not both", m.Name, key)
		}
	}
}

// A destroyed environment whose keys are elsewhere would be found again by the next one of its name.
func TestKeysOfAnEnvironmentAreBelowItsRootOrElsewhere(t *testing.T) {
	t.Parallel()
	k := etcd.NewKeys("").Env("dev")
	all := append(k.Elsewhere(), k.Root(), k.Identities(), k.Precreated("")) // those of who is in the fleet are deleted first
	for _, row := range etcdtest.TableOfKeys(t, "dev", "web1", "") {
		is := func(prefix string) bool { return strings.HasPrefix(row.Key, prefix) }
		ofEnv := strings.Contains(row.Pattern, "<env>") && !is(k.Cleanup("")) && row.Key != k.Destroyed()
		if slices.ContainsFunc(all, is) != ofEnv {
			t.Errorf("%s: a destruction deletes it: %t", row.Pattern, !ofEnv)
		}
	}
}
