package source

import (
	"cmp"
	"encoding/json"
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
	NoTool Resolver = "ignore" // none, and nothing reads the file: publish the modules as they are in the folder
	// Unresolved is none, for a folder that is not published. The file is read for the names of its modules.
	Unresolved Resolver = "unresolved"
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

// puppetfile holds the facts that are needed before a tool runs. A Puppetfile is Ruby: r10k lists its modules exactly (see plan), and
// parsePuppetfile finds most of them, for g10k and where no tool runs.
type puppetfile struct {
	modules []string // paths from the root of modules with plain names
	local   []string // those of modules that tools leave as they are
	folders []string // folders where tools install modules: each moduledir and install_path

	text    string            // of the file
	unclear error             // a folder that parsePuppetfile cannot read, or that tools must not empty
	refs    map[string]string // by path of a module: the ref, tag or branch that the file names, or "control_branch"

	sources map[string]moduleSource // by path of a module
}

// moduleSource is where a module comes from, as far as the Puppetfile says it in plain strings.
type moduleSource struct {
	title  string // of a module from the Forge, as puppetlabs-ntp
	remote string // URL of a git repository
}

var (
	statement   = regexp.MustCompile(`(?m)^[ \t]*(?:moduledir\b[ \t(]*(.*)$|mod\b[ \t(]*['"]([\w/-]+)['"])`)
	moduleLine  = regexp.MustCompile(`(?m)^[ \t]*mod\b[ \t(]*['"]([\w/-]+)['"]`)
	settingLine = regexp.MustCompile(`(?m)^[ \t]*(?:forge|moduledir)\b[^;\n]*$`)
	plainLine   = regexp.MustCompile(`^(?:(?:forge|moduledir|mod)\b[ \t(]*(?:['"]|$)|forge\.(?:baseUrl|cacheTtl)\b|moduledir[ \t]+[\w./-]+[ \t]*$|[:'"]|\w+:|[)\s,]*$|#)`)
	installPath = regexp.MustCompile(`(?m)^[^#\n]*\binstall_path['"]?[ \t]*(?:=>|:)[ \t]*([^#\n]*)`)
	moduleRef   = regexp.MustCompile(`(?m)^[^#\n]*\b(?:ref|tag|branch|commit|version)['"]?[ \t]*(?:=>|:)[ \t]*(?:'([^'\n]*)'|"([^"\n]*)"|:(control_branch)\b)`)
	localModule = regexp.MustCompile(`(?m)^[^#\n]*\b(?:local['"]?[ \t]*(?:=>|:)[ \t]*true\b|type['"]?[ \t]*(?:=>|:)[ \t]*[:'"]local\b)`)
	plainString = regexp.MustCompile(`^(?:'([^'\\]*)'|"([^"\\#]*)")`)
	comments    = regexp.MustCompile(`(?ms)^[ \t]*#[^\n]*$|^=begin\b.*?^=end\b[^\n]*$|^__END__$.*`)
)

// readPuppetfile reads the Puppetfile. It returns nil if there is none, if it is ignored, or if it has only comments and settings.
func (f *Folder) readPuppetfile(o Options) (*puppetfile, error) {
	if o.Modules == NoTool {
		return nil, nil
	}
	text, err := readIn(f.Root, puppetfileName, maxPuppetfile)
	// r10k reads a link that leads out of the folder, but in a copy or at another commit it leads elsewhere
	if target, notLink := os.Readlink(filepath.Join(f.Root, puppetfileName)); notLink == nil && err != nil {
		return nil, fmt.Errorf("cannot read the Puppetfile: it is a link to %s, which is outside of the folder or missing\nreplace the link by the file, or give --puppetfile ignore", target)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the Puppetfile: %w", err)
	}
	f.puppetfile = parsePuppetfile(text)
	return f.puppetfile, nil
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

// parsePuppetfile returns nil if a Puppetfile has only comments and settings.
func parsePuppetfile(text string) *puppetfile {
	whole := text
	text = comments.ReplaceAllString(text, "")
	if strings.TrimSpace(settingLine.ReplaceAllString(text, "")) == "" {
		return nil
	}
	p := &puppetfile{text: whole}
	moduledir := "modules"
	at := statement.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		if m[2] >= 0 {
			moduledir = p.plainFolder("moduledir", text[m[2]:m[3]])
			continue
		}
		block := text[m[0]:]
		if i+1 < len(at) {
			block = text[m[0]:at[i+1][0]]
		}
		found := planned{Title: text[m[4]:m[5]], Folder: moduledir, Local: localModule.MatchString(block)}
		if own := installPath.FindStringSubmatch(block); own != nil {
			found.Folder = p.plainFolder("install_path", own[1])
		}
		if remote := gitRemote.FindStringSubmatch(block); remote != nil {
			found.Remote = remote[1] + remote[2]
		}
		if ref := moduleRef.FindStringSubmatch(block); ref != nil {
			found.Ref = ref[1] + ref[2] + ref[3]
		}
		p.add(found)
	}
	if len(p.folders) == 0 { // a loop installs modules there
		p.folders = []string{moduledir}
	}
	return p
}

// planned is a module as the Puppetfile names it.
type planned struct {
	Title  string // as in mod 'puppetlabs/ntp'
	Folder string // where it is installed, from the root
	Local  bool   // tools leave it as it is
	Remote string // URL of a git repository
	Ref    string // version, tag, branch or commit; "control_branch" for the branch of the control repository, if it is unknown
}

// plan returns the modules that r10k listed.
func plan(text []byte, of *puppetfile) (*puppetfile, error) {
	var modules []planned
	if err := json.Unmarshal(text, &modules); err != nil {
		return nil, err
	}
	p := &puppetfile{text: of.text}
	for _, m := range modules {
		if m.Folder = path.Clean(m.Folder); !filepath.IsLocal(m.Folder) {
			return nil, outside("folder for "+m.Title, m.Folder)
		}
		p.add(m)
	}
	return p, nil
}

func (p *puppetfile) add(m planned) {
	name := m.Title[strings.LastIndexAny(m.Title, "/-")+1:]
	module, emptied := path.Join(m.Folder, name), m.Folder
	if emptied == "." { // as r10k, empty the module's own folder only
		emptied = name
	}
	if !slices.Contains(p.folders, emptied) {
		p.folders = append(p.folders, emptied)
	}
	p.modules = append(p.modules, module)
	if m.Local {
		p.local = append(p.local, module)
	}
	if p.refs == nil {
		p.refs, p.sources = map[string]string{}, map[string]moduleSource{}
	}
	p.refs[module] = m.Ref
	from := moduleSource{remote: m.Remote}
	if m.Remote == "" && name != m.Title {
		from.title = strings.ReplaceAll(m.Title, "/", "-")
	}
	p.sources[module] = from
}

// plainFolder reads a folder path. It keeps the first error, for the tool that needs the path before it runs, because it empties the folder.
func (p *puppetfile) plainFolder(what, written string) string {
	m := plainString.FindStringSubmatch(strings.TrimSpace(written))
	if m == nil {
		p.unclear = cmp.Or(p.unclear, fmt.Errorf("its %s is not a plain string: %s", what, strings.TrimSpace(written)))
		return "modules"
	}
	folder := path.Clean(m[1] + m[2])
	if !filepath.IsLocal(folder) || folder == "." && what != "install_path" {
		p.unclear = cmp.Or(p.unclear, outside(what, folder))
		return "modules"
	}
	return folder
}

func outside(what, folder string) error {
	return fmt.Errorf("its %s %q is not a folder below its own\nlet it name one, such as modules", what, folder)
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

// missing returns the modules that the Puppetfile lists and the folder lacks.
func (p *puppetfile) missing(root string) []string {
	return slices.DeleteFunc(slices.Clone(p.modules), func(m string) bool { return !isEmpty(filepath.Join(root, filepath.FromSlash(m))) })
}

// isResolverFile reports whether a file is a state file of g10k (.latest_commit, .g10k-deploy.json) or r10k
// (.r10k-deploy.json, for a moment with the suffix ~). Modules that r10k clones also contain .git.
func isResolverFile(base string) bool {
	return base == ".latest_commit" || base == ".g10k-deploy.json" || base == ".r10k-deploy.json"
}
