package store

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// keyRow is a row of the table in keys.go: a key with its segments filled in, and the letters of who writes it.
type keyRow struct {
	pattern, key string
	writers      []string
}

var tableRow = regexp.MustCompile(`(?m)^//\t(\S+)\s+([a-z](?:,[a-z])*)(?:  |$)`)

// tableOfKeys reads the table of keys.go. Environments are env, nodes are node.
func tableOfKeys(t testing.TB, env, node string) (rows []keyRow) {
	t.Helper()
	source, err := os.ReadFile("keys.go")
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("<env>", env, "<node>", node, "/N", "/"+node, "/R", "/controller", "<version>", "1.0.0", "<sha256>", strings.Repeat("a", 64),
		"<line>", "l1", "<seq>", "000000001", "<epoch>", "000000000001", "<n>", "000000000001", "<id>", "id1", "<machine>", "m1", "<name>", "ann")
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
			key := fill.Replace(v)
			if strings.ContainsAny(key, "<>{}") {
				t.Fatalf("the test does not know what to fill into key %s", v)
			}
			rows = append(rows, keyRow{m[1], "/pulley/v1/" + key, strings.Split(m[2], ",")})
		}
	}
	return rows
}

// A key that is spelled, but stands in no row of the table, would be one that no test asks who may write it.
func TestTheTableOfKeysHasAllKeys(t *testing.T) {
	t.Parallel()
	k := newKeys("")
	const env, node, hash = "dev", "controller1", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	spelled := map[string]string{
		"releases": k.releases(), "release": k.release("1.0.0"), "objects": k.objects(), "object": k.object(hash), "deltas": k.deltas(), "line": k.line("l1"),
		"delta": k.delta("l1", 1), "publishings": k.publishings(), "publishing": k.publishing("id1"), "pruning": k.pruning(), "targets": k.targets(),
		"environments": k.environments(), "environment": k.environment(env), "spec": k.spec(env), "gate": k.gate(env), "desired": k.desired(env),
		"target": k.target(env, Scope{Node: node}), "history": k.history(env), "change": k.change(env, 1), "rollbacks": k.rollbacks(env), "rollback": k.rollback(env, 1),
		"assigned": k.assigned(env, node), "dataHead": k.dataHead(env), "generations": k.generations(env), "generation": k.generation(env, 1),
		"layers": k.layers(env), "layer": k.layer(env, hash), "hostsHead": k.hostsHead(env), "hosts": k.hosts(env), "host": k.host(env, node),
		"holds": k.holds(env), "hold": k.hold(env, Scope{Role: "controller"}), "fleets": k.fleets(), "statuses": k.statuses(env), "status": k.status(env, node),
		"runs": k.runs(env, node), "run": k.run(env, node, "id1"), "facts": k.facts(env, node), "agents": k.agents(), "agentRelease": k.agentRelease("1.0.0"),
		"agentWanted": k.agentWanted(env), "nodeTokens": k.nodeTokens(), "nodeToken": k.nodeToken("id1"), "operatorTokens": k.operatorTokens(),
		"operatorToken": k.operatorToken("id1"), "identities": k.identities(env), "identity": k.identity(env, node), "operators": k.operators(), "operator": k.operator("ann"),
		"reserves": k.reserves(env), "reserve": k.reserve(env, node), "firstBoots": k.firstBoots(env), "firstBoot": k.firstBoot(env, "m1"), "machine": k.machine(env, "m1"),
		"notices": k.notices(), "notice": k.notice("id1"), "floods": k.floods(env), "flood": k.flood(env, node), "allRuns": k.allRuns(env),
		"installation": k.installation(), "records": k.records(env), "record": k.record(env, node), "applying": k.applying(env), "acts": k.acts(env), "act": k.act(env, "id1"),
	}
	rows := tableOfKeys(t, env, node)
	if len(rows) < 30 {
		t.Fatalf("only %d rows were found in the table of keys.go", len(rows))
	}
	for name, key := range spelled {
		if !slices.ContainsFunc(rows, func(r keyRow) bool {
			return r.key == key || strings.HasSuffix(key, "/") && strings.HasPrefix(r.key, key)
		}) {
			t.Errorf("%s spells %s, which is in no row of the table", name, key)
		}
	}
	for _, r := range rows {
		used := false
		for _, key := range spelled {
			used = used || key == r.key || strings.HasSuffix(key, "/") && strings.HasPrefix(r.key, key)
		}
		if !used {
			t.Errorf("the table has %s, which nothing spells", r.pattern)
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
			if on, ok := f.Recv.List[0].Type.(*ast.Ident); ok && on.Name == "keys" && spelled[f.Name.Name] == "" {
				t.Errorf("keys.%s is not known here: add it, and its row to the table of keys.go", f.Name.Name)
			}
		}
	}
}

// KeyRow is a row of the table for the tests outside of the package.
type KeyRow struct {
	Key     string
	Writers []string
}

// TableOfKeys is tableOfKeys for them.
func TableOfKeys(t testing.TB, env, node string) (rows []KeyRow) {
	for _, r := range tableOfKeys(t, env, node) {
		rows = append(rows, KeyRow{r.key, r.writers})
	}
	return rows
}

// Repaired is outdated for the tests outside of the package.
func Repaired(version string) bool { _, yes := outdated(version); return !yes }
