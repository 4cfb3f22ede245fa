//go:build e2e

package controlrepo

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulley/internal/puppet"
)

// reality is what Puppet does with the files of one environment.
type reality struct {
	Whole    string            // why every lookup fails; "" if it does not
	Failed   []string          // lookups of keys that fail, with the causes
	Unvalued bool              // there are options of a key that has no value: no lookup shows whether they fail
	Settings map[string]string // of environment.conf
}

// generated are the files of a kind.
type generated struct {
	name  string
	texts []string
	files func(text string) map[string]string // of an environment with such a file
	real  []reality
	at    int // index of the first one
}

// askOracle writes each case into an environment of its own, and lets one process of Puppet read all. It returns the folder of the environments.
func askOracle(t *testing.T, kinds []*generated) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string // of folders; Puppet itself must not read those with an environment.conf before
	for _, k := range kinds {
		k.at = len(names)
		for _, text := range k.texts {
			name := fmt.Sprintf("environments/c%d", len(names))
			if k.name == "conf" {
				name = fmt.Sprintf("conf/c%d", len(names))
			}
			names = append(names, name)
			for file, text := range k.files(text) {
				write(filepath.Join(name, file), text)
			}
		}
	}
	job, err := json.Marshal(map[string]any{"answer": filepath.Join(dir, "answer.json"), "dir": dir, "environments": names})
	if err != nil {
		t.Fatal(err)
	}
	oracle, err := os.ReadFile("testdata/oracle.rb")
	if err != nil {
		t.Fatal(err)
	}
	write("modules/x/lib/puppet/application/pulley_oracle.rb", string(oracle))
	write("job.json", string(job))
	cmd := exec.CommandContext(t.Context(), "puppet", "pulley_oracle", "--confdir", filepath.Join(dir, "confdir"), "--vardir", filepath.Join(dir, "var"),
		"--basemodulepath", filepath.Join(dir, "modules"), "--environmentpath", filepath.Join(dir, "environments"), filepath.Join(dir, "job.json"))
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install Puppet: %v\n%s", err, said)
	}
	answer, err := os.ReadFile(filepath.Join(dir, "answer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []reality
	if err := json.Unmarshal(answer, &all); err != nil || len(all) != len(names) {
		t.Fatalf("%d answers: %v", len(all), err)
	}
	for _, k := range kinds {
		k.real = all[k.at : k.at+len(k.texts)]
	}
	return filepath.Join(dir, "environments")
}

// compare reports disagreements about whether every lookup fails, and whether one does. judged are the findings by the index of the case.
func (k *generated) compare(t *testing.T, judged map[int][]Finding, ofKeys bool) {
	t.Helper()
	texts, real, odd, refused := k.texts, k.real, 0, 0
	for i, text := range texts {
		found := judged[k.at+i]
		fatal := slices.ContainsFunc(found, func(f Finding) bool { return f.Severity == Error })
		one := slices.ContainsFunc(found, func(f Finding) bool { return f.Rule == LookupFails })
		if fatal {
			refused++
		}
		if fatal != (real[i].Whole != "") || ofKeys && !fatal && !real[i].Unvalued && one != (len(real[i].Failed) > 0) {
			if odd++; odd <= 20 {
				t.Errorf("%s\n--- Puppet: %q %q\n--- Pulley: %v", text, real[i].Whole, real[i].Failed, found)
			}
		}
	}
	t.Logf("%s: %d files, %d refused, %d disagreements", k.name, len(texts), refused, odd)
	if refused == 0 || refused == len(texts) {
		t.Error("the generator makes one kind of files")
	}
}

// withoutPuppet reports files that Puppet reads and that are refused where it is not installed. Libraries of YAML differ in a few odd texts.
func (k *generated) withoutPuppet(t *testing.T, check func(text string) []Finding) {
	t.Helper()
	odd := 0
	for i, text := range k.texts {
		if found := check(text); k.real[i].Whole == "" && slices.ContainsFunc(found, func(f Finding) bool { return f.Severity == Error }) {
			if odd++; odd <= 20 {
				t.Logf("%s\n--- Puppet reads it\n--- without Puppet: %v", text, found)
			}
		}
	}
	t.Logf("%s: without Puppet, %d of %d files are refused that Puppet reads", k.name, odd, len(k.texts))
	if odd*20 > len(k.texts) {
		t.Error("these are too many")
	}
}

// Without it, publish would refuse files that Puppet reads, or take those with which every node fails, or look for modules elsewhere than Puppet.
func TestFilesAreReadAsPuppetDoes(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("PULLEY_TEST_FILES")) // `make full` sets it
	if err != nil {
		n = 100
	}
	g := newGenerator(t)
	level := func(suffix string) func(text string) map[string]string {
		return func(text string) map[string]string {
			return map[string]string{"data/x." + suffix: text, "hiera.yaml": fmt.Sprintf("version: 5\nhierarchy: [{name: x, data_hash: %s_data, path: x.%s}]\n", suffix, suffix)}
		}
	}
	hiera := func(text string) map[string]string {
		all := map[string]string{"hiera.yaml": text}
		for _, name := range []string{"data/common.yaml", "data/x.yaml", "data/x.json", "other/common.yaml", "data/nodes/.yaml", "other/nodes/.yaml", ".yaml", "nodes/.yaml", "data/.yaml", "other/.yaml"} {
			all[name] = "{}\n"
		}
		return all
	}
	yaml, json := &generated{name: "yaml", files: level("yaml")}, &generated{name: "json", files: level("json")}
	config, conf := &generated{name: "hiera.yaml", files: hiera}, &generated{name: "conf", files: func(text string) map[string]string { return map[string]string{"environment.conf": text} }}
	for range n {
		yaml.texts, json.texts = append(yaml.texts, g.yaml()), append(json.texts, g.json())
		config.texts, conf.texts = append(config.texts, g.hiera()), append(conf.texts, g.conf())
	}
	dir := askOracle(t, []*generated{yaml, json, config, conf})
	var files PuppetFiles
	for i := range n {
		files.Data = append(files.Data, PuppetFile{File: fmt.Sprintf("c%d/data/x.yaml", yaml.at+i)}, PuppetFile{File: fmt.Sprintf("c%d/data/x.json", json.at+i), JSON: true})
		files.Hiera = append(files.Hiera, PuppetFile{File: fmt.Sprintf("c%d/hiera.yaml", config.at+i)})
	}
	judged := map[int][]Finding{}
	for _, f := range PuppetValidator("puppet")(t.Context(), dir, files) {
		i, err := strconv.Atoi(strings.Split(f.File, "/")[0][min(1, len(f.File)):])
		if err != nil || f.Rule == NotChecked {
			t.Fatal(f)
		}
		judged[i] = append(judged[i], f)
	}
	yaml.compare(t, judged, true)
	json.compare(t, judged, true)
	config.compare(t, judged, false)
	yaml.withoutPuppet(t, func(text string) []Finding { return checkYAML("x", []byte(text)) })
	config.withoutPuppet(t, func(text string) []Finding {
		found, _ := checkHiera("hiera.yaml", []byte(text))
		return found
	})
	odd := 0
	for i, text := range conf.texts {
		got, refused := map[string]string{}, ""
		for _, line := range puppet.ParseEnvironmentConf(text) {
			refused = cmp.Or(refused, line.Refused)
			if slices.Contains([]string{"modulepath", "manifest", "config_version"}, line.Name) {
				got[line.Name] = line.Value
			}
		}
		if strings.Contains(text, "{") && strings.Contains(text, "$") {
			continue // Puppet 7.23 leaves the variables of some files alone in which a value has braces
		}
		if real := conf.real[i]; (refused != "") != (real.Whole != "") || refused == "" && fmt.Sprint(got) != fmt.Sprint(real.Settings) {
			odd++
			t.Errorf("%q\n--- Puppet: %q %v\n--- Pulley: %q %v", text, real.Whole, real.Settings, refused, got)
		}
	}
	t.Logf("conf: %d files, %d disagreements", n, odd)
}

// generator makes files that are nearly right.
type generator struct{ *rand.Rand }

func newGenerator(t *testing.T) generator {
	seed := uint64(1)
	if os.Getenv("PULLEY_TEST_FILES") != "" { // CI makes the same files each time
		seed = uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("PULLEY_TEST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("to repeat it: PULLEY_TEST_SEED=%d", seed)
	return generator{rand.New(rand.NewPCG(seed, 1))}
}

func (g generator) of(texts ...string) string { return texts[g.IntN(len(texts))] }

func (g generator) rarely(text string) string {
	if g.IntN(12) == 0 {
		return text
	}
	return ""
}

// broken changes one character of a text, seldom.
func (g generator) broken(text string) string {
	if g.IntN(8) > 0 || text == "" {
		return text
	}
	i := g.IntN(len(text))
	return text[:i] + g.of("", "\t", "[", "}", ":", "'", "\"", "\\", "#", "- ", "\n", "&", "*", "!", "%", "@", "\xe9", "é", "\x00") + text[i+g.IntN(2):]
}

func (g generator) scalar() string {
	if g.IntN(3) > 0 {
		return g.of("v", "1", "-2.5", "true", "no", "~", "'2024-01-01'", "0777", "1e3", "\"a\\/b\"", "'it''s'", "!!str 1", "|\n    text", "é", "[a,b]", "{a: 1, a: 2}", "x # y", "&n v", "{}", "[]", "{1: a}", "{a: {b: [c, d]}}", "''")
	}
	return g.of("v", "1", "-2.5", "true", "no", "~", "null", "2024-01-01", "'2024-01-01'", "2024-01-01 10:00:00 +01:00", "0000-00-00", "2024-13-45", "12:30:45", "1_000", "0777", "0x1f", "1e3", ".inf", ".nan",
		":sym", "':sym'", ":\"a b\"", "\"a\\/b\"", "\"it\\'s\"", "\"\\x41\"", "\"\\e\"", "\"\\u00e9\"", "\"\\q\"", "'it''s'", "!!str 1", "!!set {x}", "!!set {}", "!!binary aGk=", "!!omap [a: 1]", "!!float 1", "!!int '3'", "!!timestamp 2024-01-01",
		"!ruby/regexp /x/", "!ruby/symbol x", "!ruby/object:Foo {a: b}", "!ruby/hash:Hash {a: b}", "!ruby/range 1..2", "!local x", "!<tag:x> y", "|\n    text\n    more", ">-\n    folded", "é", "a: b", "[a,b]", "{a: 1, a: 2}", "x # y", "x#y", "%x", "@x", "`x", "*gone", "&n v",
		"123456789012345678901234567890", "''", "\"\"", "{}", "[]", "{1: a}", "{2024-01-01: a}", "{:s: a}", "[:s]", "{a: {b: [c, :d]}}", "{? [a] : b}", "=", "<<", "{<<: {a: b}}", "{<<: x}", "- a")
}

func (g generator) options() string {
	if g.IntN(3) > 0 {
		return g.of("{}", "{merge: first}", "{merge: unique}", "{merge: hash}", "{merge: {strategy: deep}}", "{convert_to: Sensitive}", "{other: x}", "~")
	}
	return g.of("{}", "[]", "deep", "~", "1", "{merge: first}", "{merge: unique}", "{merge: hash}", "{merge: deep}", "{merge: deeep}", "{merge: {strategy: deep}}", "{merge: {strategy: deep, knockout_prefix: '--'}}", "{merge: {strategy: deep, knockout: x}}",
		"{merge: {strategy: deep, sort_merged_arrays: 1}}", "{merge: {}}", "{merge: {strategy: hash, x: y}}", "{merge: []}", "{merge: ~}", "{merge: reverse_deep}", "{merge: default}", "{merge: true}", "{merge: 1}", "{merge: {strategy: 1}}",
		"{convert_to: Sensitive}", "{convert_to: Sensitve}", "{convert_to: [String]}", "{convert_to: 'Array['}", "{convert_to: 1}", "{convert_to: []}", "{convert_to: ~}", "{other: x}", "{merge: deep, convert_to: Sensitive}")
}

func (g generator) yaml() string {
	var b strings.Builder
	b.WriteString(g.rarely("\ufeff") + g.rarely("# comment\n") + g.rarely(g.of("%YAML 1.1\n---\n", "%YAML 1.2\n---\n", "%YAML 1.3\n---\n", "%YAML 2.0\n---\n", "%TAG ! tag:x:\n---\n", "%FOO\n---\n")) + g.of("", "---\n", "--- \n"))
	switch g.IntN(14) {
	case 0:
		b.WriteString(g.of("", "- a\n", "text\n", "a:b\n", "false\n", "~\n", "42\n", "[]\n", "{}\n", "# only\n", "...\n", "--- a\n--- b\n"))
	default:
		for range 1 + g.IntN(4) {
			key := g.of("a", "b", "mod::c", "'q'", "\"d\"", ":s", "1", "2.5", "true", "~", "2024-01-01", "e f", "<<", "? g\n", "!!str h", "&k i", "'x.y'", "yes")
			b.WriteString(key + ":" + g.of(" ", " ", " ", " ", " ", "", "\t") + g.scalar() + "\n")
		}
		if g.IntN(3) == 0 {
			switch g.IntN(6) {
			case 0:
				b.WriteString("lookup_options: " + g.scalar() + "\n")
			default:
				b.WriteString("a: v\nax: v\nb: v\nmod::x: v\ns: v\nx: v\nz: v\nlookup_options:\n") // options that convert need a value
				for range 1 + g.IntN(3) {
					b.WriteString("  " + g.of("a", "b", "z", "'^a'", "'^('", "'^mod::'", "'^(?<n>x)'", "'^[z-a]'", "1", ":s", "true") + ": " + g.options() + "\n")
				}
			}
		}
	}
	b.WriteString(g.rarely("...\n") + g.rarely(g.of("---\nother: x\n", "---\nnotes: [\n", "--- {a\n", "---\n", "---\n\tx\n")))
	text := g.broken(b.String())
	if g.IntN(15) == 0 {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	return text
}

func (g generator) json() string {
	value := func() string {
		if g.IntN(4) > 0 {
			return g.of("1", "true", "null", "\"v\"", "\"a\\/b\"", "[]", "[1,2]", "{}", "{\"a\":1,\"a\":2}", "\"\\u00e9\"")
		}
		return g.of("1", "-0", "1e400", "01", "1.", ".5", "NaN", "Infinity", "true", "True", "null", "\"v\"", "\"a\\/b\"", "\"\\u00e9\"", "\"\\ud800\"", "\"\\x\"", "'v'", "[]", "[1,2]", "[1,]", "{}", "{\"a\":1,\"a\":2}", "{a:1}", "\"\t\"", "123456789012345678901234567890",
			strings.Repeat("[", 90)+strings.Repeat("]", 90), strings.Repeat("[", 120)+strings.Repeat("]", 120), "/* c */ 1", "\"\xe9\"", "{\"json_class\":\"String\"}")
	}
	switch g.IntN(10) {
	case 0:
		return g.of("", " ", "[]", "null", "1", "\"x\"", "{}", "\ufeff{}", "{} {}", "# x\n{}", "// x\n{}", "{}\n\n")
	}
	var entries []string
	for range 1 + g.IntN(4) {
		entries = append(entries, g.of("\"a\"", "\"b\"", "\"mod::c\"", "\"\"", "\"1\"")+": "+value())
	}
	if g.IntN(3) == 0 {
		entries = append(entries, `"a": 1, "b": 1`, "\"lookup_options\": "+g.of("{}", "[]", "\"deep\"", "null", "{\"a\": {\"merge\": \"deep\"}}", "{\"a\": {\"merge\": \"deeep\"}}", "{\"^(\": {}}", "{\"b\": []}", "{\"b\": {\"convert_to\": \"Nope\"}}"))
	}
	return g.broken("{" + strings.Join(entries, ",\n ") + "}" + g.rarely(",") + "\n")
}

func (g generator) level() string {
	if g.IntN(3) > 0 {
		return fmt.Sprintf("{name: l%d, %s%s}", g.IntN(1000), g.of("path: common.yaml", "path: x.yaml", "paths: [x.yaml, common.yaml]", "glob: '*.yaml'", "path: 'nodes/%{trusted.certname}.yaml'"), g.of("", "", ", data_hash: yaml_data", ", datadir: other"))
	}
	keys := []string{"name: " + g.of("a", "b", "c", "d", "e", "f", "g", "h", "''", "1", "~")}
	add := func(n int, all ...string) {
		if g.IntN(n) == 0 {
			keys = append(keys, g.of(all...))
		}
	}
	add(2, "path: common.yaml", "path: x.yaml", "path: x.json", "path: nowhere.yaml", "path: ''", "path: 1", "path: [common.yaml]", "path: 'nodes/%{trusted.certname}.yaml'", "path: '%{nothing}.yaml'", "path: \"%{lookup('x')}.yaml\"", "path: '%{facts..os}.yaml'")
	add(6, "paths: [common.yaml, x.yaml]", "paths: []", "paths: common.yaml", "paths: [1]", "paths: ['']")
	add(9, "glob: '*.yaml'", "glob: 'none/*.yaml'", "glob: ''", "globs: ['*.json']", "globs: []", "globs: x")
	add(12, "uri: 'http://x/'", "uri: 'http://[x'", "uris: ['http://x/']", "uris: []", "mapped_paths: [a, b, c]", "mapped_paths: [a, b]", "mapped_paths: [facts.x, v, '%{v}.yaml']")
	add(4, "data_hash: yaml_data", "data_hash: json_data", "data_hash: yml_data", "data_hash: ''", "lookup_key: yaml_data", "lookup_key: eyaml_lookup_key", "data_dig: yaml_data", "data_hash: mod::data", "hiera3_backend: yaml", "v4_data_hash: x", "data_hash: 1")
	add(8, "datadir: other", "datadir: data", "datadir: ''", "datadir: 1", "datadir: '%{x}'")
	add(8, "options: {}", "options: {a: b}", "options: {path: x}", "options: {uri: x}", "options: {_a: b}", "options: []", "options: {a: :s}", "options: {1: b}", "options: {a-b: [1, {c: d}]}", "options: {a_: b}", "options: ~")
	add(20, "backend: yaml", "data_dir: x", "extension: yaml", ":path: common.yaml", "Path: x")
	g.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return "{" + strings.Join(keys, ", ") + "}"
}

func (g generator) hierarchy() string {
	switch g.IntN(14) {
	case 0:
		return g.of("[]", "{}", "~", "x", "[x]", "[{}]", "[~]")
	}
	var levels []string
	for range 1 + g.IntN(3) {
		levels = append(levels, "  - "+g.level()+"\n")
	}
	return "\n" + strings.Join(levels, "")
}

func (g generator) hiera() string {
	var b strings.Builder
	version := "version: 5\n"
	if g.IntN(4) == 0 {
		version = g.of("version: 5\n", "version: 5\n", "version: 5\n", "version: 5\n", "version: 5\n", ":version: 5\n", "version: '5'\n", "version: 5.0\n", "version: 4\n", "version: 3\n", "version: 6\n", "version: ~\n", "version: x\n", "version: [5]\n", "")
	}
	b.WriteString(g.rarely("\ufeff") + g.of("", "---\n") + version)
	if g.IntN(3) > 0 {
		b.WriteString("defaults: {datadir: data, data_hash: yaml_data}\n")
	} else if g.IntN(2) > 0 {
		b.WriteString("defaults: " + g.of("{datadir: data, data_hash: yaml_data}", "{datadir: data, data_hash: yaml_data}", "{datadir: data, data_hash: yaml_data}", "{datadir: other}", "{}", "~", "[]", "{data_hash: yaml_data, lookup_key: eyaml_lookup_key}", "{data_hash: yml_data}",
			"{data_hash: yaml_data, options: {a: b}}", "{data_hash: yaml_data, options: {path: b}}", "{data_hash: yaml_data, hierarchy: []}", "{data_hash: yaml_data, path: x}", "{data_hash: json_data}", "{hiera3_backend: yaml}") + "\n")
	}
	if g.IntN(12) > 0 {
		b.WriteString("hierarchy: " + strings.TrimSuffix(g.hierarchy(), "\n") + "\n")
	}
	b.WriteString(g.rarely("default_hierarchy: [{name: z, path: x.yaml, data_hash: yaml_data}]\n") + g.rarely("plan_hierarchy: [{name: z, path: x.yaml, data_hash: yaml_data}]\n") + g.rarely(g.of(":backends: [yaml]\n", "backends: yaml\n", "logger: console\n", "hierarchies: []\n", "version: 5\n")))
	b.WriteString(g.rarely(g.of("---\nx: [\n", "...\n", "---\nversion: 3\n")))
	text := g.broken(b.String())
	if g.IntN(40) == 0 {
		text = g.of("", "# x\n", "[]\n", "x\n", "~\n")
	}
	return text
}

func (g generator) conf() string {
	var b strings.Builder
	b.WriteString(g.rarely("\ufeff"))
	for range g.IntN(5) {
		b.WriteString(g.of("", "", "", " ", "\t") + g.of("modulepath", "manifest", "config_version", "environment_timeout", "parser", "Modulepath", "module-path", "# manifest", ";manifest", "é", "") + g.of(" = ", "=", " =", "= ", " : ", " ", "\t=\t") +
			g.of("site:modules", "modules", "site:modules # ours", "'site:modules'", "\"site\"", "'site", "", "  ", "true", "FALSE", "$codedir/x", "${environmentpath}/x", "$nothing/x", "a${nowhere}", "$environment", "$run_mode", "$confdir/x$logdir", "$forge_authorization$c:dir", "{owner=root}", "x {mode = 0644, owner = a}", "{x=y}", "a = b", "m\\", "é", "*/modules", "a,b", "5m", "x   ", "''", "\" x \"", "{}", "a{ }b", "x{mode=abc}") + g.of("\n", "\n", "\n", "\n", "\r\n", "\r", " \n", "\n\n", ""))
		b.WriteString(g.rarely(g.of("[main]\n", "[dev]\n", " [agent] \n", "[a b]\n", "[]\n", "[main] # x\n", "text\n", "#x\n", "   #x\n", "\x00\n", "[é]\n")))
	}
	return g.broken(b.String())
}
