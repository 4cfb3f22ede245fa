package puppettest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// machineFacts are the facts of the fake's machine: two, and one that always changes.
func machineFacts() map[string]json.RawMessage {
	return map[string]json.RawMessage{
		"os":     json.RawMessage(`{"family":"Debian","name":"Debian","release":{"full":"12.7","major":"12"}}`),
		"kernel": json.RawMessage(`"Linux"`), "system_uptime": json.RawMessage(fmt.Sprintf(`{"seconds":%d}`, time.Now().UnixNano())),
	}
}

// leaveFacts writes the facts as the run's terminus does. A directive `fact` is a custom fact.
func (r *run) leaveFacts(directives []directive) {
	terminus := filepath.Join(r.get("libdir"), "puppet", "indirector", "facts", "pulley.rb")
	if _, err := os.Stat(terminus); err != nil || r.get("facts_terminus") != "pulley" {
		return
	}
	facts := machineFacts()
	for _, d := range directives {
		if name, value, ok := strings.Cut(d.args, " "); ok && d.verb == "fact" {
			facts[name] = json.RawMessage(value)
		}
	}
	if text, err := os.ReadFile(filepath.Join(r.get("pluginfactdest"), "pulley.json")); err == nil {
		_ = json.Unmarshal(text, &facts)
	}
	left := map[string]json.RawMessage{"trusted": json.RawMessage("null"), "cut": json.RawMessage("[]")}
	if text, err := os.ReadFile(filepath.Join(r.get("confdir"), "trusted.json")); err == nil {
		_ = json.Unmarshal(text, &left)
	}
	all, err := json.Marshal(facts)
	if left["facts"] = all; err == nil {
		all, err = json.Marshal(left)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(r.get("confdir")), "facts.json"), all, 0o600)
	}
	if err != nil {
		fmt.Println("Warning: Pulley publishes no facts of this run: " + err.Error())
	}
}
