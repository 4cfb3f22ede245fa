package controlrepo

import (
	"fmt"
	"path/filepath"
	"strings"
)

// partWords are the sentences of the parts that work: one, and several.
var partWords = map[string][2]string{
	"site_manifests":      {"1 site manifest", "%d site manifests"},
	"node_declarations":   {"1 node declaration", "%d node declarations: they match the certname, which is the node's name"},
	"manifests":           {"1 manifest with a class or defined type", "%d manifests with classes and defined types"},
	"data_files":          {"1 file of Hiera data, with its hierarchy and merges", "%d files of Hiera data, with their hierarchy and merges"},
	"custom_facts":        {"1 file of custom facts", "%d files of custom facts"},
	"functions_and_types": {"1 file of functions, types or providers", "%d files of functions, types and providers"},
	"files_and_templates": {"1 file or template of a module", "%d files and templates of modules"},
}

// stepWords are the sentences of the steps. $count, $names and $dir are replaced.
var stepWords = map[string]string{
	"code_directory":   "Run `pulley validate $dir/NAME --adopt` for each of $count: $names. The release of an environment is made from its folder.",
	"errors":           "Correct $count ($names). Until then `pulley publish` refuses the folder. --no-validate publishes it anyway, and the nodes that read these files fail.",
	"private_keys":     "Replace $count in the repository: every reader of etcd can read a release. $names",
	"puppetfile":       "Install r10k or g10k where you publish: `pulley publish` resolves the Puppetfile, and `pulley validate $dir --puppetfile auto` checks its modules, too.",
	"classification":   "Decide where the nodes get their classes: docs/classification.md maps external node classifiers, node groups and Hiera.",
	"hiera_missing":    "Write hiera.yaml: without it, Puppet reads data/common.yaml only, and lookups of other data fail. `puppet config print hiera_config` on the Puppet server names the file to convert to version 5.",
	"data_outside":     "Change $count of hiera.yaml: nodes do not have these folders. `pulley publish --overlay` joins a private source.",
	"environment_file": "Write $names. A draft is below.",
	"trusted":          "Supply $count below trusted: in the environment file.",
	"eyaml_keys":       "Decide which nodes may have the eyaml keys, and put them there, readable by root only: $names",
	"server_features":  "Read the code that needs a Puppet server or PuppetDB: $count ($names). Change it for the roles that you move first; the others can wait.",
	"publish":          "Run `pulley publish $dir --dry-run`. It lists what a release contains and needs no etcd.",
	"first_machine":    "Try one machine: docs/bringing-your-repository.md uses a local one. On a machine with puppet agent, `pulley-agent takeover look` shows the difference and changes nothing.",
}

// stepNoun is what a step counts.
var stepNoun = map[string]string{
	"code_directory": "directory environment", "errors": "error", "private_keys": "private key", "data_outside": "folder", "trusted": "trusted extension", "server_features": "place",
}

// Text renders the report for a terminal. The findings come from the same run; dir is the folder as the user named it.
func (a *Adoption) Text(dir string) string {
	var b strings.Builder
	b.WriteString("Works as it does today:\n")
	for _, p := range a.Works {
		words := partWords[p.Code]
		if p.Count == 1 {
			fmt.Fprintf(&b, "  %s\n", words[0])
		} else {
			fmt.Fprintf(&b, "  "+words[1]+"\n", p.Count)
		}
	}
	if len(a.Different) > 0 {
		b.WriteString("\nDiffers, or stops a node:\n")
	}
	for _, c := range a.Different {
		fmt.Fprintf(&b, "  %s %s: %s\n", c.Severity, c.Rule, c.Problem)
		switch {
		case c.Own > 0 && c.Vendored > 0:
			fmt.Fprintf(&b, "    %s, and %d in vendored modules\n", places(c.Own), c.Vendored)
		case c.Vendored > 0:
			fmt.Fprintf(&b, "    %s in vendored modules\n", places(c.Vendored))
		case c.Own > 1:
			fmt.Fprintf(&b, "    %s\n", places(c.Own))
		}
		for _, p := range c.Places {
			fmt.Fprintf(&b, "    %s\n", p)
		}
		if more := c.Own - len(c.Places); more > 0 && len(c.Places) > 0 {
			fmt.Fprintf(&b, "    … and %d more\n", more)
		}
		if c.Hint != "" {
			fmt.Fprintf(&b, "    → %s\n", c.Hint)
		}
	}
	b.WriteString("\nTo do, in this order:\n")
	for i, s := range a.Steps {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, s.text(dir))
	}
	if a.Draft != nil {
		fmt.Fprintf(&b, "\n%s:\n\n", filepath.Join(dir, a.Draft.File))
		for line := range strings.Lines(a.Draft.Text) {
			b.WriteString("  " + line)
		}
	}
	return b.String()
}

func places(n int) string {
	if n == 1 {
		return "1 place"
	}
	return fmt.Sprintf("%d places", n)
}

func (s Step) text(dir string) string {
	count := fmt.Sprint(s.Count)
	if noun := stepNoun[s.Code]; noun != "" {
		if count += " " + noun; s.Count != 1 {
			count += "s"
		}
	}
	return strings.TrimSpace(strings.NewReplacer("$count", count, "$names", strings.Join(s.Names, ", "), "$dir", dir).Replace(stepWords[s.Code]))
}
