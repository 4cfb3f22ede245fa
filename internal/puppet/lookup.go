package puppet

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"pulley/internal/child"
	"pulley/internal/model"
)

// lookupFacts is the file in the run's confdir with the facts of Lookup.
const lookupFacts = "facts.json"

// Lookup returns a command that runs `puppet lookup` for another machine, whose facts are given by name. The job's settings,
// $trusted and the fact `pulley` are those of that machine's runs; trusted.external is that of published, its last published $trusted.
// No fact of this machine reaches the command. An external node classifier is not asked. The remarks on Command hold.
func (p *Puppet) Lookup(job model.Job, facts map[string]json.RawMessage, published json.RawMessage, args ...string) (*child.Command, error) {
	conf := filepath.Join(p.RunDir(job.ID), "conf")
	file := filepath.Join(conf, lookupFacts)
	all := append([]string{"lookup", "--node", job.Certname, "--facts", file}, args...)
	// plain: the other termini would ask a Puppet server, or this machine.
	cmd, err := p.Command(job, append(all, "--facts_terminus", "memory", "--node_terminus", "plain", "--log_level", "err")...)
	if err != nil {
		return nil, err
	}
	given := maps.Clone(facts)
	if given == nil {
		given = map[string]json.RawMessage{}
	}
	for _, own := range []string{filepath.Join(conf, trustedFile), filepath.Join(p.RunDir(job.ID), "facts.d", "pulley.json")} {
		b, err := os.ReadFile(own)
		if err == nil {
			err = json.Unmarshal(b, &given)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot prepare the facts of %s: %w", job.Certname, err)
		}
	}
	var supplied, last map[string]json.RawMessage
	if json.Unmarshal(published, &last) == nil && last["external"] != nil && json.Unmarshal(given["trusted"], &supplied) == nil {
		supplied["external"] = last["external"]
		given["trusted"], _ = json.Marshal(supplied) // of valid JSON
	}
	// Puppet takes all of these from the file, or none.
	for name, value := range map[string]string{"hostname": job.Certname, "domain": "", "fqdn": job.Certname, "clientcert": job.Certname} {
		if given[name] == nil {
			given[name], _ = json.Marshal(value) // a text
		}
	}
	b, err := json.Marshal(given)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare the facts of %s: %w", job.Certname, err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, fmt.Errorf("cannot prepare the facts of %s: %w", job.Certname, err)
	}
	cmd.Terminal, cmd.Left = false, child.EndAll // a lookup asks no question and leaves no service
	return cmd, nil
}
