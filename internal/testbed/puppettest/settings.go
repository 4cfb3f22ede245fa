package puppettest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// settings are the fake's settings: the command line overrides puppet.conf, which overrides the defaults.
type settings struct {
	command string
	words   []string // arguments that are not options
	cli     map[string]string
	conf    map[string]string
	home    string
}

// flags are the options without a value.
var flags = map[string]bool{"detailed-exitcodes": true, "noop": true, "color": true, "explain": true, "verbose": true,
	"onetime": true, "no-daemonize": true, "strict_environment_mode": true, "no-usecacheonfailure": true}

func parseSettings(home string, args []string) settings {
	s := settings{cli: map[string]string{}, conf: map[string]string{}, home: home}
	if len(args) > 0 {
		s.command, args = args[0], args[1:]
	}
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "-")
		if !ok {
			s.words = append(s.words, args[i])
			continue
		}
		name, value, given := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		switch {
		case given:
		case flags[name]:
			value = "true"
		case i+1 < len(args):
			i++
			value = args[i]
		}
		s.cli[name] = value
	}
	text, _ := os.ReadFile(filepath.Join(s.get("confdir"), "puppet.conf"))
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			s.conf[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return s
}

// get returns a setting by the rules of stock Puppet.
func (s settings) get(name string) string {
	if v, ok := s.cli[name]; ok {
		return v
	}
	if v, ok := s.conf[name]; ok {
		return v
	}
	switch name {
	case "confdir":
		return filepath.Join(s.home, "etc")
	case "vardir":
		return filepath.Join(s.home, "var")
	case "libdir":
		return filepath.Join(s.get("vardir"), "lib")
	case "pluginfactdest":
		return filepath.Join(s.get("vardir"), "facts.d")
	case "statedir":
		return filepath.Join(s.get("vardir"), "state")
	case "lastrunreport":
		return filepath.Join(s.get("statedir"), "last_run_report.yaml")
	case "hiera_config":
		return filepath.Join(s.get("confdir"), "hiera.yaml")
	case "environmentpath":
		return filepath.Join(s.get("confdir"), "code", "environments")
	case "environment":
		return "production"
	case "certname":
		name, _ := os.Hostname()
		return name
	}
	return ""
}

// tree returns the folder of the environment.
func (s settings) tree() string { return filepath.Join(s.get("environmentpath"), s.get("environment")) }

// layer is one level of a hiera.yaml.
type layer struct{ Name, File string }

// layers returns the levels of the global hiera.yaml and then of the environment's: paths and datadirs. It supports no
// interpolation except %{facts.pulley.data} and %{trusted.extensions.pp_role} in a path.
func (s settings) layers() []layer {
	var all []layer
	for _, config := range []string{s.get("hiera_config"), filepath.Join(s.tree(), "hiera.yaml")} {
		var hiera struct {
			Defaults struct {
				Datadir string `yaml:"datadir"`
			} `yaml:"defaults"`
			Hierarchy []struct{ Name, Path, Datadir string } `yaml:"hierarchy"`
		}
		text, err := os.ReadFile(config)
		if err != nil || yaml.Unmarshal(text, &hiera) != nil {
			continue
		}
		for _, h := range hiera.Hierarchy {
			dir := h.Datadir
			if dir == "" {
				dir = hiera.Defaults.Datadir
			}
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(filepath.Dir(config), dir)
			}
			file := strings.NewReplacer("%{facts.pulley.data}", s.fact("data"), "%{trusted.extensions.pp_role}", s.extension("pp_role")).Replace(h.Path)
			if !filepath.IsAbs(file) {
				file = filepath.Join(dir, file)
			}
			all = append(all, layer{Name: h.Name, File: file})
		}
	}
	return all
}

// find returns the value of key in the first layer that contains it.
func (s settings) find(key string) (value any, from layer, ok bool) {
	for _, l := range s.layers() {
		text, err := os.ReadFile(l.File)
		if err != nil {
			continue
		}
		values := map[string]any{}
		if yaml.Unmarshal(text, &values) != nil {
			continue
		}
		if v, ok := values[key]; ok {
			return v, l, true
		}
	}
	return nil, layer{}, false
}

// fact returns a part of the external fact `pulley`, such as "role".
func (s settings) fact(name string) string {
	text, err := os.ReadFile(filepath.Join(s.get("pluginfactdest"), "pulley.json"))
	if err != nil {
		return ""
	}
	var facts struct {
		Pulley map[string]any `json:"pulley"`
	}
	if json.Unmarshal(text, &facts) != nil || facts.Pulley[name] == nil {
		return ""
	}
	return fmt.Sprint(facts.Pulley[name])
}

// extension returns a trusted extension, as the run's facts terminus reads it.
func (s settings) extension(name string) string {
	var file struct {
		Trusted struct {
			Extensions map[string]string `json:"extensions"`
		} `json:"trusted"`
	}
	text, err := os.ReadFile(filepath.Join(s.get("confdir"), "trusted.json"))
	if err != nil || s.get("facts_terminus") != "pulley" || json.Unmarshal(text, &file) != nil {
		return ""
	}
	return file.Trusted.Extensions[name]
}

// external returns a parameter of the answer of the external node classifier.
func (s settings) external(name string) string {
	words := strings.Fields(s.get("external_nodes"))
	if s.get("node_terminus") != "exec" || len(words) == 0 {
		return ""
	}
	out, err := exec.Command(words[0], append(words[1:], s.get("certname"))...).Output()
	var answer struct {
		Parameters map[string]any `yaml:"parameters"`
	}
	if err != nil || yaml.Unmarshal(out, &answer) != nil {
		return ""
	}
	return fmt.Sprint(answer.Parameters[name])
}

// retrieved returns a value that the command of trusted_external_command prints.
func (s settings) retrieved(name string) string {
	var values map[string]string
	out, err := exec.Command(s.get("trusted_external_command"), s.get("certname")).Output()
	if err != nil || json.Unmarshal(out, &values) != nil {
		return ""
	}
	return values[name]
}

var setcode = regexp.MustCompile(`setcode { ["'](.*?)["'] }`)

// found returns the text of a custom fact in a folder of factpath.
func (s settings) found(name string) string {
	for _, dir := range strings.Split(s.get("factpath"), ":") {
		text, _ := os.ReadFile(filepath.Join(dir, name+".rb"))
		if m := setcode.FindSubmatch(text); m != nil {
			return string(m[1])
		}
	}
	return ""
}

// expand replaces the %{…} of a directive.
func (s settings) expand(text string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "%{")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		name, after, _ := strings.Cut(rest, "}")
		text = after
		kind, arg, _ := strings.Cut(name, ":")
		switch kind {
		case "env":
			out.WriteString(s.get("environment"))
		case "certname":
			out.WriteString(s.get("certname"))
		case "manifest":
			out.WriteString(filepath.Join(s.tree(), "manifests", "site.pp"))
		case "fact":
			out.WriteString(s.fact(arg))
		case "trusted":
			out.WriteString(s.extension(arg))
		case "external":
			out.WriteString(s.external(arg))
		case "setting":
			out.WriteString(s.get(arg))
		case "retrieved":
			out.WriteString(s.retrieved(arg))
		case "found":
			out.WriteString(s.found(arg))
		case "data":
			key, fallback, _ := strings.Cut(arg, ",")
			if v, _, ok := s.find(key); ok {
				fallback = fmt.Sprint(v)
			}
			out.WriteString(fallback)
		}
	}
}

// sendReports runs the application that hands reports to the processor http.
func sendReports(s settings) int {
	var runs []struct {
		Run, Report string
		Processors  []string
	}
	list, err := os.ReadFile(s.words[0])
	if err == nil {
		err = json.Unmarshal(list, &runs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error: "+err.Error())
		return 1
	}
	for _, r := range runs {
		report, _ := os.ReadFile(r.Report)
		for _, name := range r.Processors {
			problem := "Puppet finds no report processor of this name"
			if name == "http" {
				problem = post(s.get("reporturl"), report)
			}
			line, _ := json.Marshal(map[string]string{"run": r.Run, "processor": name, "problem": problem})
			fmt.Printf("pulley-report %s\n", line)
		}
	}
	return 0
}

func post(to string, report []byte) (problem string) {
	answer, err := http.Post(to, "application/x-yaml", bytes.NewReader(report))
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "Unable to submit report to " + to + " [" + answer.Status + "]"
	}
	return ""
}

// lookup runs `puppet lookup KEY [--explain]`.
func lookup(s settings) int {
	if len(s.words) == 0 {
		fmt.Fprintln(os.Stderr, "Error: Could not run: No keys were given to lookup.")
		return 1
	}
	value, from, ok := s.find(s.words[0])
	if s.cli["explain"] != "" {
		fmt.Printf("Searching for %q\n  Global Data Provider (hiera configuration version 5)\n    Using configuration %q\n", s.words[0], s.get("hiera_config"))
		if ok {
			fmt.Printf("    Hierarchy entry %q\n      Path %q\n        Found key: %q value: %q\n", from.Name, from.File, s.words[0], fmt.Sprint(value))
		} else {
			fmt.Printf("Function lookup() did not find a value for the name '%s'\n", s.words[0])
		}
		return 0
	}
	if !ok {
		return 1
	}
	text, err := yaml.Marshal(value)
	if err != nil {
		return 1
	}
	fmt.Printf("--- %s", text)
	return 0
}
