//go:build e2e

package hieradata

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lookups looks up keys and shows the value, or the error that would end the run.
const lookups = `
Puppet::Functions.create_function(:'probe::lookups') do
  dispatch(:all) { param 'Integer', :count; param 'String', :file }
  def all(count, file)
    results = (0...count).map do |i|
      begin
        { value: call_function('lookup', "key#{i}") }
      rescue StandardError => e
        { error: e.message }
      end
    end
    File.write(file, JSON.generate(results))
  end
end
`

// Without it, the flaws would be those of another Puppet.
func TestFlawsAreThoseOfPuppet(t *testing.T) {
	dir := t.TempDir()
	environment := filepath.Join(dir, "environments", "production")
	var data strings.Builder
	data.WriteString("known: value\n")
	for i, c := range flawCases {
		text, err := json.Marshal(c.text)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&data, "key%d: %s\n", i, text)
	}
	out := filepath.Join(dir, "out.json")
	for name, text := range map[string]string{
		"hiera.yaml":       "version: 5\nhierarchy: [{name: a, path: a.yaml}]\n",
		"data/a.yaml":      data.String(),
		"manifests/x.pp":   fmt.Sprintf("probe::lookups(%d, '%s')\n", len(flawCases), out),
		"environment.conf": "modulepath = modules\n",
		"modules/probe/lib/puppet/functions/probe/lookups.rb": lookups,
	} {
		path := filepath.Join(environment, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	type result struct{ Value, Error any }
	run := func() (results []result) {
		t.Helper()
		said, err := exec.CommandContext(t.Context(), "puppet", "apply", "--confdir", dir, "--vardir", filepath.Join(dir, "var"),
			"--environmentpath", filepath.Dir(environment), filepath.Join(environment, "manifests")).CombinedOutput()
		if err != nil {
			t.Fatalf("puppet: %v\n%s", err, said)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &results); err != nil || len(results) != len(flawCases) {
			t.Fatalf("%v: %s", err, text)
		}
		return results
	}
	results := run()
	for i, c := range flawCases {
		flaw := Flaw{Code: FlawCode(c.flaw)}
		if fails := c.flaw != "" && flaw.Fails(); fails != (results[i].Error != nil) {
			t.Errorf("%s: Puppet's answer is %v", c.text, results[i])
		}
		t.Logf("%s\n\t%v", c.text, results[i])
		switch value, _ := results[i].Value.(string); flaw.Code {
		case FlawOpen:
			if !strings.Contains(value, "%{") {
				t.Errorf("%s: Puppet replaces it: %q", c.text, value)
			}
		case FlawNotVariable:
			if strings.Contains(value, "{") {
				t.Errorf("%s: Puppet keeps it: %q", c.text, value)
			}
		}
	} // In hiera.yaml, a flaw ends the lookups of all keys that the levels above do not have.
	for _, path := range []string{"%{lookup('known')}.yaml", "%{facts..os}.yaml"} {
		hiera := fmt.Sprintf("version: 5\nhierarchy: [{name: b, path: %q}, {name: a, path: a.yaml}]\n", path)
		if err := os.WriteFile(filepath.Join(environment, "hiera.yaml"), []byte(hiera), 0o644); err != nil {
			t.Fatal(err)
		}
		for i, r := range run() {
			if r.Error == nil {
				t.Errorf("%s in hiera.yaml, %s: Puppet's answer is %v", path, flawCases[i].text, r)
			}
		}
	}
}
