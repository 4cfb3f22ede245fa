package etcdtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pulley/internal/etcd"
)

// KeyRow is a row of the table in keys.go: a key with its segments filled in, and the letters of its writers.
type KeyRow struct {
	Pattern, Key string
	Writers      []string
}

var tableRow = regexp.MustCompile(`(?m)^//\t(\S+)\s+([a-z](?:,[a-z])*)(?:  |$)`)

// TableOfKeys reads the table of keys.go. Environments are env, nodes are node, and other names are name; "": such as may be.
func TableOfKeys(t testing.TB, env, node, name string) (rows []KeyRow) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(rootOfModule(), "internal/etcd/keys.go"))
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
			rows = append(rows, KeyRow{m[1], etcd.NewKeys("").Root() + key, strings.Split(m[2], ",")})
		}
	}
	return rows
}

// rootOfModule is the folder with go.mod, above that of the test.
func rootOfModule() string {
	dir := "."
	for range 9 {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Join(dir, "..")
	}
	return dir
}
