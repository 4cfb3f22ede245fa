package controlrepo

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/bounded"
	"pulley/internal/puppet"
)

// layout is what environment.conf says about the files that Puppet reads. Its format:
// https://www.puppet.com/docs/puppet/8/config_file_environment
type layout struct {
	manifest   string      // file or folder of the site manifests, relative to the repository; "" if outside of it
	modulepath []string    // folders of modules, relative to the repository; entries outside of it are left out
	outside    []setFolder // entries of modulepath outside of the repository
	literal    []setFolder // entries with $environment, which Puppet does not replace
	faults     []Finding   // of environment.conf
}

// setFolder is a folder that a setting names.
type setFolder struct {
	folder string
	line   int
}

func parseLayout(environmentConf string) layout {
	l := layout{manifest: "manifests", modulepath: []string{"modules"}}
	for _, line := range puppet.ParseEnvironmentConf(environmentConf) {
		switch line.Name {
		case "manifest":
			l.manifest, _ = below(line.Value)
			l.noteLiteral(line.Value, line.Number)
		case "modulepath":
			l.modulepath, l.outside = nil, nil
			for entry := range strings.SplitSeq(line.Value, ":") {
				if dir, ok := below(entry); ok {
					l.modulepath = append(l.modulepath, dir)
				} else if strings.HasPrefix(entry, "/") || strings.HasPrefix(entry, "..") {
					l.outside = append(l.outside, setFolder{entry, line.Number})
				}
				l.noteLiteral(entry, line.Number)
			}
		}
		switch {
		case line.Refused != "":
			l.faults = append(l.faults, finding(EnvironmentConf, "environment.conf", line.Number, 0, line.Refused))
		case line.Ignored != "":
			l.faults = append(l.faults, finding(EnvironmentConfOdd, "environment.conf", line.Number, 0, line.Ignored))
		}
	}
	return l
}

func (l *layout) noteLiteral(value string, line int) {
	if environmentName.MatchString(value) {
		l.literal = append(l.literal, setFolder{value, line})
	}
}

// Puppet 7 and 8 replace $environmentpath, $codedir and $confdir in these settings, and warn that they leave $environment
// as it is.
var (
	environmentName   = regexp.MustCompile(`\$environment\b`)
	environmentFolder = regexp.MustCompile(`^(\$environmentpath|\$(codedir|confdir)/environments)/\w+(/|$)`)
)

// below returns the path of a setting relative to the repository, if it lies in it.
func below(value string) (string, bool) {
	if folder := environmentFolder.FindString(value); folder != "" {
		value = "./" + value[len(folder):]
	}
	if value == "" || strings.HasPrefix(value, "/") || strings.Contains(value, "$") {
		return "", false
	}
	value = path.Clean(value)
	return value, value != ".." && !strings.HasPrefix(value, "../")
}

// isSite reports whether a manifest is one that every run reads.
func (l layout) isSite(name string) bool {
	if l.manifest == "" || path.Ext(name) != ".pp" || name != l.manifest && !within(l.manifest, name) {
		return false
	}
	return !strings.Contains(strings.TrimPrefix("/"+name, "/"+l.manifest), "/.") // Puppet's **/*.pp leaves out names with a dot
}

// within reports whether a path lies below a folder.
func within(folder, name string) bool {
	return folder == "." || strings.HasPrefix(name, folder+"/")
}

// module splits the path of a file in a module into the module's folder and the rest.
func (l layout) module(name string) (folder, rest string, ok bool) {
	for _, dir := range l.modulepath {
		if !within(dir, name) {
			continue
		}
		in := name
		if dir != "." {
			in = name[len(dir)+1:]
		}
		module, rest, ok := strings.Cut(in, "/")
		if ok {
			return path.Join(dir, module), rest, true
		}
	}
	return "", "", false
}

// autoloaded returns the name under which Puppet loads a manifest, as profile::web: of a class, defined type, function
// or type alias. It returns "" for a file that Puppet on a node never loads, such as files/selinux.pp, plans or tests.
func (l layout) autoloaded(name string) string {
	if path.Ext(name) != ".pp" {
		return ""
	}
	folder, rest, ok := l.module(name)
	owner := path.Base(folder)
	if !ok {
		owner, rest = "environment", name
		if strings.HasPrefix(rest, "manifests/") {
			return "" // site manifests, or folders that environment.conf replaces
		}
	}
	kind, rest, _ := strings.Cut(strings.TrimSuffix(rest, ".pp"), "/")
	switch {
	case kind == "manifests" && rest == "init":
		return owner
	case (kind == "manifests" || kind == "functions" || kind == "types") && rest != "":
		return owner + "::" + strings.ReplaceAll(rest, "/", "::")
	}
	return ""
}

// ownFolders are the folders of an environment that Puppet or the agent reads, whatever environment.conf contains.
var ownFolders = []string{"functions", "types", "lib", "locales", "environments", "clouds", "validate.d", "retire.d"}

// Unread reports whether nodes do without a folder of the control repository in root: neither Puppet nor the agent reads
// files in it. It knows from hiera.yaml only whether the folder's first part is named there.
func Unread(root, folder string) bool {
	conf, err := bounded.ReadFile(filepath.Join(root, "environment.conf"), 1<<20)
	if err != nil && !os.IsNotExist(err) {
		return false
	}
	hiera, err := bounded.ReadFile(filepath.Join(root, "hiera.yaml"), 1<<20)
	if err != nil && !os.IsNotExist(err) {
		return false
	}
	l := parseLayout(string(conf))
	for _, read := range slices.Concat(l.modulepath, []string{l.manifest}, ownFolders) {
		if read == "." || read == folder || within(read, folder) || within(folder, read) {
			return false
		}
	}
	first, _, _ := strings.Cut(folder, "/")
	return first != "data" && !bytes.Contains(hiera, []byte(first))
}
