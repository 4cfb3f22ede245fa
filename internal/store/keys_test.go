package store

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pulley/internal/etcd"
)

// keyRow is a row of the table in keys.go: a key with its segments filled in, and the letters of its writers.
type keyRow struct {
	pattern, key string
	writers      []string
}

var tableRow = regexp.MustCompile(`(?m)^//\t(\S+)\s+([a-z](?:,[a-z])*)(?:  |$)`)

// tableOfKeys reads the table of keys.go. Environments are env, nodes are node.
func tableOfKeys(t testing.TB, env, node, name string) (rows []keyRow) {
	t.Helper()
	source, err := os.ReadFile("../etcd/keys.go")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("<node>", name, "<version>", name, "<sha256>", name, "<line>", name, "<id>", name, "<nonce>", name, "<machine>", name, "<name>", name)
	fill := strings.NewReplacer("<env>", env, "<node>", node, "nodes/N", "nodes/"+node, "/R", "/controller", "<version>", "1.0.0", "<sha256>", strings.Repeat("a", 64),
		"<line>", "l1", "<seq>", "000000001", "<epoch>", "000000000001", "<n>", "000000000001", "<nonce>", "00000000000000aa", "<id>", "id1", "<machine>", "m1", "<name>", "ann")
	for _, m := range tableRow.FindAllStringSubmatch(string(source), -1) {
		variants := []string{m[1]}
		if before, rest, braces := strings.Cut(m[1], "{"); braces {
			inner, after, _ := strings.Cut(rest, "}")
			variants = nil
			for _, v := range strings.Split(inner, ",") {
				variants = append(variants, before+v+after)
			}
		}
		for _, v := range variants {
			key := v
			if name != "" {
				key = names.Replace(key)
			}
			key = fill.Replace(key)
			if strings.ContainsAny(key, "<>{}") {
				t.Fatalf("the test does not know what to fill into key %s", v)
			}
			rows = append(rows, keyRow{m[1], "/pulley/v1/" + key, strings.Split(m[2], ",")})
		}
	}
	return rows
}

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
	rows := tableOfKeys(t, env, node, "x1")
	if len(rows) < 30 || len(spelled) < 60 {
		t.Fatalf("the table has only %d rows, and the type only %d keys", len(rows), len(spelled))
	}
	is := func(r keyRow, key string) bool {
		return r.key == key || strings.HasSuffix(key, "/") && strings.HasPrefix(r.key, key)
	}
	for name, key := range spelled {
		if !slices.ContainsFunc(rows, func(r keyRow) bool { return is(r, key) }) {
			t.Errorf("%s spells %s, which is in no row of the table", name, key)
		}
	}
	for _, r := range rows {
		used := false
		for _, key := range spelled {
			used = used || is(r, key)
		}
		if !used && !strings.HasSuffix(r.key, "/all") && !strings.HasSuffix(r.key, "/default") && !strings.Contains(r.key, "roles/") {
			t.Errorf("the table has %s, which nothing spells", r.pattern)
		}
	}
}

// KeyRow is a row of the table for tests outside the package.
type KeyRow struct {
	Pattern, Key string
	Writers      []string
}

// TableOfKeys is tableOfKeys for tests outside the package.
func TableOfKeys(t testing.TB, env, node string) (rows []KeyRow) {
	for _, r := range tableOfKeys(t, env, node, "") {
		rows = append(rows, KeyRow{r.pattern, r.key, r.writers})
	}
	return rows
}
