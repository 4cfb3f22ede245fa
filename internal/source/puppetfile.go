package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/bounded"
)

// Resolver is a tool that resolves a Puppetfile.
type Resolver string

// The resolvers.
const (
	Auto   Resolver = "auto"   // r10k if installed, else g10k
	R10k   Resolver = "r10k"   // https://github.com/puppetlabs/r10k
	G10k   Resolver = "g10k"   // https://github.com/xorpaul/g10k: faster; it reads the file's common forms, not all of Ruby
	NoTool Resolver = "ignore" // none: publish the modules as they are in the folder
)

// ParseResolver reads a resolver from the command line.
func ParseResolver(s string) (Resolver, error) {
	if r := Resolver(s); slices.Contains([]Resolver{Auto, R10k, G10k, NoTool}, r) {
		return r, nil
	}
	return "", fmt.Errorf("cannot resolve a Puppetfile with %q: there are auto, r10k, g10k and ignore", s)
}

// puppetfileName is the name of the file in the root of a folder.
const puppetfileName = "Puppetfile"

// maxPuppetfile limits the size of the file.
const maxPuppetfile = 4 << 20

// puppetfile holds the facts that are needed before a tool runs. A Puppetfile is Ruby, which only its own tools read
// completely.
type puppetfile struct {
	moduledir string
	modules   []string // paths from the root of modules with plain names
	local     []string // those of modules that tools leave as they are
	folders   []string // folders where tools install modules: moduledir and each install_path

	text string            // of the file
	refs map[string]string // by path of a module: the ref, tag or branch that the file names, or "control_branch"

	sources map[string]moduleSource // by path of a module
}

// moduleSource is where a module comes from, as far as the Puppetfile says it in plain strings.
type moduleSource struct {
	title  string // of a module from the Forge, as puppetlabs-ntp
	remote string // URL of a git repository
}

var (
	moduledirLine = regexp.MustCompile(`(?m)^[ \t]*moduledir\b[ \t(]*(.*)$`)
	moduleLine    = regexp.MustCompile(`(?m)^[ \t]*mod\b[ \t(]*['"]([\w/-]+)['"]`)
	settingLine   = regexp.MustCompile(`(?m)^[ \t]*(?:forge|moduledir)\b[^;\n]*$`)
	plainLine     = regexp.MustCompile(`^(?:(?:forge|moduledir|mod)\b[ \t(]*(?:['"]|$)|forge\.(?:baseUrl|cacheTtl)\b|moduledir[ \t]+[\w./-]+[ \t]*$|[:'"]|\w+:|[)\s,]*$|#)`)
	installPath   = regexp.MustCompile(`(?m)^[^#\n]*\binstall_path['"]?[ \t]*(?:=>|:)[ \t]*([^#\n]*)`)
	moduleRef     = regexp.MustCompile(`(?m)^[^#\n]*\b(?:ref|tag|branch|commit|version)['"]?[ \t]*(?:=>|:)[ \t]*(?:'([^'\n]*)'|"([^"\n]*)"|:(control_branch)\b)`)
	localModule   = regexp.MustCompile(`(?m)^[^#\n]*\b(?:local['"]?[ \t]*(?:=>|:)[ \t]*true\b|type['"]?[ \t]*(?:=>|:)[ \t]*[:'"]local\b)`)
	plainString   = regexp.MustCompile(`^(?:'([^'\\]*)'|"([^"\\#]*)")`)
	tailComment   = regexp.MustCompile(`(?m)^[ \t]*#.*$`)
)

// readPuppetfile reads the Puppetfile. It returns nil if there is none or it has only comments and settings.
func readPuppetfile(root string) (*puppetfile, error) {
	text, err := readIn(root, puppetfileName, maxPuppetfile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the Puppetfile: %w", err)
	}
	p, err := parsePuppetfile(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read the Puppetfile: %w", err)
	}
	return p, nil
}

// readIn reads a file of a folder, whose links must not lead out of it. A missing file is empty.
func readIn(root, name string, limit int64) (string, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	f, err := bounded.OpenIn(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := bounded.Read(f, limit)
	return string(b), err
}

func parsePuppetfile(text string) (*puppetfile, error) {
	whole := text
	text = tailComment.ReplaceAllString(text, "")
	if strings.TrimSpace(settingLine.ReplaceAllString(text, "")) == "" {
		return nil, nil
	}
	p := &puppetfile{moduledir: "modules", text: whole, refs: map[string]string{}, sources: map[string]moduleSource{}}
	if m := moduledirLine.FindAllStringSubmatch(text, -1); m != nil {
		var err error
		if p.moduledir, err = plainFolder("moduledir", m[len(m)-1][1]); err != nil {
			return nil, err
		}
	}
	p.folders = []string{p.moduledir}
	at := moduleLine.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		title := text[m[2]:m[3]]
		name := title[strings.LastIndexAny(title, "/-")+1:]
		folder := p.moduledir
		if own := installPath.FindStringSubmatch(text[m[0]:end]); own != nil {
			var err error
			if folder, err = plainFolder("install_path", own[1]); err != nil {
				return nil, err
			}
			emptied := folder
			if folder == "." { // as r10k, empty the module's own folder only
				emptied = name
			}
			if !slices.Contains(p.folders, emptied) {
				p.folders = append(p.folders, emptied)
			}
		}
		module := path.Join(folder, name)
		p.modules = append(p.modules, module)
		if localModule.MatchString(text[m[0]:end]) {
			p.local = append(p.local, module)
		}
		var from moduleSource
		if remote := gitRemote.FindStringSubmatch(text[m[0]:end]); remote != nil {
			from.remote = remote[1] + remote[2]
		} else if name != title {
			from.title = strings.ReplaceAll(title, "/", "-")
		}
		p.sources[module] = from
		if ref := moduleRef.FindStringSubmatch(text[m[0]:end]); ref != nil {
			p.refs[module] = ref[1] + ref[2] + ref[3]
		}
	}
	return p, nil
}

// plainFolder reads a folder path. The path must be known before a tool runs, because tools empty the folder.
func plainFolder(what, written string) (string, error) {
	m := plainString.FindStringSubmatch(strings.TrimSpace(written))
	if m == nil {
		return "", fmt.Errorf("its %s is not a plain string: %s\nwrite it as one string in quotes, or resolve it yourself and give --puppetfile ignore", what, strings.TrimSpace(written))
	}
	folder := path.Clean(m[1] + m[2])
	if !filepath.IsLocal(folder) || folder == "." && what != "install_path" {
		return "", fmt.Errorf("its %s %q is not a folder below its own\nlet it name one, such as modules", what, folder)
	}
	return folder, nil
}

// ruby returns the first line of the Puppetfile that only Ruby can evaluate, with its number, or "". g10k skips such lines without an
// error.
func (p *puppetfile) ruby() (line string, number int) {
	for line := range strings.Lines(p.text) {
		number++
		if line = strings.TrimSpace(line); !plainLine.MatchString(line) {
			return line, number
		}
	}
	return "", 0
}

// missing returns a module that the Puppetfile lists and the folder lacks, or "".
func (p *puppetfile) missing(root string) string {
	for _, m := range p.modules {
		if isEmpty(filepath.Join(root, filepath.FromSlash(m))) {
			return m
		}
	}
	return ""
}

// isResolverFile reports whether a file is a state file of g10k (.latest_commit, .g10k-deploy.json) or r10k
// (.r10k-deploy.json, for a moment with the suffix ~). Modules that r10k clones also contain .git.
func isResolverFile(base string) bool {
	return base == ".latest_commit" || base == ".g10k-deploy.json" || base == ".r10k-deploy.json"
}
