package hieradata

import (
	"path"
	"slices"

	"gopkg.in/yaml.v3"

	"pulley/internal/pattern"
)

// eyamlFunction is the lookup function of hiera-eyaml. Its options: https://github.com/voxpupuli/hiera-eyaml#with-hiera-5
const eyamlFunction = "eyaml_lookup_key"

// A secret with the key EyamlKey contains keys of hiera-eyaml, in PEM form. A run finds it as EyamlFile in the folder of its data:
// hiera.yaml names it "%{facts.pulley.data}/eyaml.pem".
const (
	EyamlKey  = "pulley::eyaml"
	EyamlFile = "eyaml.pem"
)

// Eyaml is what a hiera.yaml needs to decrypt data.
type Eyaml struct {
	Used        bool     // a level of the hierarchy decrypts
	PrivateKeys []string // paths of private keys that the levels name, also gnupg folders; sorted
	PublicKeys  []string // paths of PKCS7 certificates: hiera-eyaml reads them also to decrypt; sorted
}

// ReadEyaml reads the needs of a hiera.yaml of version 5. A file that Puppet cannot use needs nothing.
func ReadEyaml(hiera []byte) Eyaml {
	var e Eyaml
	c, err := parseHieraConfig(hiera)
	if err != nil {
		return e
	}
	for _, l := range c.Hierarchy {
		ownBackend := l.LookupKey != "" || l.DataHash != "" || l.DataDig != ""
		if l.LookupKey != eyamlFunction && (ownBackend || c.Defaults.LookupKey != eyamlFunction) {
			continue
		}
		e.Used = true
		options := l.Options
		if options.Kind == 0 && !ownBackend {
			options = c.Defaults.Options
		}
		e.add(&options)
	}
	return e.And(Eyaml{})
}

// And returns the needs of both.
func (e Eyaml) And(other Eyaml) Eyaml {
	private, public := slices.Concat(e.PrivateKeys, other.PrivateKeys), slices.Concat(e.PublicKeys, other.PublicKeys)
	slices.Sort(private)
	slices.Sort(public)
	return Eyaml{e.Used || other.Used, slices.Compact(private), slices.Compact(public)}
}

func (e *Eyaml) add(options *yaml.Node) {
	for _, private := range []string{"pkcs7_private_key", "gpg_gnupghome"} {
		if _, v := child(options, private); v != nil && v.Value != "" {
			e.PrivateKeys = append(e.PrivateKeys, path.Clean(v.Value))
		}
	}
	if _, v := child(options, "pkcs7_public_key"); v != nil && v.Value != "" {
		e.PublicKeys = append(e.PublicKeys, path.Clean(v.Value))
	}
}

// Files returns all paths, private keys first.
func (e Eyaml) Files() []string { return slices.Concat(e.PrivateKeys, e.PublicKeys) }

// OnNodes returns the paths where somebody has to put keys; ok is false if all keys come to the nodes as a secret.
func (e Eyaml) OnNodes() (files []string, ok bool) {
	for _, file := range e.Files() {
		if !LivePath(file) && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files, e.Used && (files != nil || len(e.Files()) == 0)
}

// encrypted matches a value that hiera-eyaml encrypted: ENC[PKCS7,…], ENC[GPG,…].
var encrypted = pattern.Lazy(`\bENC\[(?:[A-Z0-9]+,)?[A-Za-z0-9+/=\s]+\]`)

// IsEncrypted reports whether a text contains a value that hiera-eyaml encrypted.
func IsEncrypted(text string) bool { return encrypted().MatchString(text) }
