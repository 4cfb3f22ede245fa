package puppettest

import (
	"os"
	"path/filepath"
	"strings"
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
var flags = map[string]bool{"detailed-exitcodes": true, "noop": true, "color": true, "explain": true, "verbose": true}

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
