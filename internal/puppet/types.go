package puppet

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/pattern"
)

// types changes types of Puppet for a run without a server.
//
//go:embed types.rb
var types []byte

// typeSettings is pulley.json in the run's confdir.
type typeSettings struct {
	Secrets  bool     `json:"secrets"`   // the release has secrets: no bucket keeps a file
	StaysOff []string `json:"stays_off"` // services that the run does not change
	Preview  bool     `json:"preview"`   // no resource is applied, whatever its own noop
}

// maxHieraConfig limits hiera.yaml, in bytes.
const maxHieraConfig = 1 << 20

// decrypting matches a level of a hierarchy with a backend for secrets.
var decrypting = pattern.Lazy(`(?i)\b(lookup_key|data_dig|data_hash|hiera3_backend)["']?\s*:\s*["']?[\w:]*(eyaml|vault|sops|gpg|secret)`)

// keepsSecrets reports whether the release decrypts secrets on its nodes: a hiera.yaml names a backend that does. An
// unreadable one counts as one with secrets.
func keepsSecrets(tree, environment string) bool {
	texts, err := hieraConfigs(tree, environment)
	return err != nil || slices.ContainsFunc(texts, decrypting().MatchString)
}

// hieraConfigs returns the hiera.yaml of the environment and those of the modules on its modulepath; with an error, those
// that can be read.
func hieraConfigs(tree, environment string) (texts []string, err error) {
	modulepath, err := environmentSetting(tree, "modulepath")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	own := regexp.MustCompile(`^\$(environmentpath|codedir/environments)/` + regexp.QuoteMeta(environment) + "(/|$)")
	names := []string{"hiera.yaml"}
	for dir := range strings.SplitSeq(cmp.Or(modulepath, "modules"), ":") {
		dir = filepath.Clean(own.ReplaceAllLiteralString(strings.TrimSpace(dir), "./"))
		if !filepath.IsLocal(dir) || strings.ContainsAny(dir, `$*?[\`) {
			continue // of Puppet or of the machine
		}
		of, badPattern := fs.Glob(root.FS(), dir+"/*/hiera.yaml")
		names, err = append(names, of...), errors.Join(err, badPattern)
	}
	for _, name := range names {
		text, unreadable := readIn(tree, name, maxHieraConfig)
		if unreadable != nil {
			err = errors.Join(err, fmt.Errorf("cannot read %s: %w", name, unreadable))
			continue
		}
		texts = append(texts, text)
	}
	return texts, err
}
