package puppet

import (
	_ "embed"
	"regexp"
)

// types changes types of Puppet for a run without a server.
//
//go:embed types.rb
var types []byte

// typeSettings is pulley.json in the run's confdir.
type typeSettings struct {
	Secrets  bool     `json:"secrets"`   // the release has secrets: no bucket keeps a file
	StaysOff []string `json:"stays_off"` // services that the run does not change
}

// maxHieraConfig limits hiera.yaml, in bytes.
const maxHieraConfig = 1 << 20

// decrypting matches a level of a hierarchy with a backend for secrets.
var decrypting = regexp.MustCompile(`(?i)\b(lookup_key|data_dig|data_hash|hiera3_backend)["']?\s*:\s*["']?[\w:]*(eyaml|vault|sops|gpg|secret)`)

// keepsSecrets reports whether the release decrypts secrets on its nodes: its hiera.yaml names a backend that does. An
// unreadable one counts as one with secrets.
func keepsSecrets(tree string) bool {
	text, err := readIn(tree, "hiera.yaml", maxHieraConfig)
	return err != nil || decrypting.MatchString(text)
}
