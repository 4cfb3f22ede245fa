package userdata

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"mime/quotedprintable"
	"path"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/internal/firstboot"
)

// cloudConfig returns the form in which cloud-init itself writes the files. cloud-init writes files and runs commands
// at the first boot only, even if that boot is interrupted. It runs bootcmd at every boot.
func (p *parts) cloudConfig() ([]byte, error) {
	script, err := p.script(false)
	if err != nil {
		return nil, err
	}
	type written struct {
		Path        string `yaml:"path"`
		Permissions string `yaml:"permissions"`
		Content     string `yaml:"content"`
	}
	var files []written
	for _, f := range append(p.files, file{Path: scriptPath, Mode: "700", Text: string(script)}) {
		files = append(files, written{f.Path, "0" + f.Mode, f.Text})
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "#cloud-config\n# Turns this machine into %s. Written by `pulley userdata`.\n%s\n", p.becomes(), mergeHow)
	for _, section := range []struct {
		key  string
		list any
	}{{"write_files", files}, {"bootcmd", []string{bootcmd}}, {"runcmd", []string{"sh " + scriptPath}}} {
		fmt.Fprintf(&out, "%s:\n", section.key) // a list: the lines below need no further indentation
		enc := yaml.NewEncoder(&out)
		enc.SetIndent(2)
		if err := errors.Join(enc.Encode(section.list), enc.Close()); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// mergeHow appends the lists of this part to those of the parts before it. The lists of a part after it replace these: cloud-init merges by
// the rule of the part that it adds, and its default replaces.
const mergeHow = `# Lists of the parts before this one stay. A part after it needs this line, too: cloud-init would drop this part.
merge_how: dict(recurse_list)+list(append)`

// bootcmd is run by cloud-init at every boot, including the first.
const bootcmd = `# Resumes a first boot that was interrupted at its beginning
if [ -d /var/lib/pulley ] && [ ! -e /var/lib/pulley/first-boot.json ] && [ ! -e /` + firstboot.CloudMark + ` ]; then
  cloud-init single --name write_files --frequency always
  sh ` + scriptPath + `
fi
`

// boothook is run by cloud-init at every boot. At the first boot, it runs before cloud-init writes the script. The script is started from there
// until the unit or cron can start it. A machine that Pulley was removed from has the mark.
const boothook = `#cloud-boothook
#!/bin/sh
# Resumes a first boot that was interrupted at its beginning
script=/` + firstboot.CloudScript + `
if [ ! -e /var/lib/pulley/first-boot.json ] && [ ! -e /` + firstboot.CloudMark + ` ] && [ -e $script ]; then sh $script; fi
`

// multipart returns the script, preceded by the part that resumes it at a later boot.
func (p *parts) multipart() ([]byte, error) {
	script, err := p.script(true)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(script)
	boundary := "pulley-" + hex.EncodeToString(sum[:8]) // a text cannot contain its own checksum
	var out bytes.Buffer
	fmt.Fprintf(&out, "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=%s\n\n", boundary)
	for _, part := range []struct{ kind, name, text string }{
		{"cloud-boothook", "pulley-later.sh", boothook},
		{"x-shellscript", path.Base(firstboot.CloudScript), string(script)},
	} {
		fmt.Fprintf(&out, "--%s\nContent-Type: text/%s\nContent-Disposition: attachment; filename=%s\n", boundary, part.kind, part.name)
		if isASCII(part.text) {
			fmt.Fprintf(&out, "\n%s\n", part.text)
			continue
		}
		out.WriteString("Content-Transfer-Encoding: quoted-printable\n\n") // cloud-init's parser corrupts 8bit
		var quoted bytes.Buffer
		w := quotedprintable.NewWriter(&quoted)
		if _, err := w.Write([]byte(part.text)); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		out.WriteString(strings.ReplaceAll(quoted.String(), "\r\n", "\n") + "\n")
	}
	fmt.Fprintf(&out, "--%s--\n", boundary)
	return out.Bytes(), nil
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > 0x7e }) < 0
}

// SeedFile is a file of a NoCloud seed.
type SeedFile struct {
	Name string // "user-data", "meta-data" or "network-config"
	Text []byte
}

// Seed returns the files of a NoCloud seed: a folder or a volume named cidata. networkConfig is the machine's network
// in cloud-init's format, or empty. The instance id is derived from the content: a machine with another seed has
// another first boot.
func Seed(p firstboot.Plan, networkConfig []byte) ([]SeedFile, error) {
	data, err := Render(p, CloudConfig)
	if err != nil {
		return nil, err
	}
	if err := checkNetwork(networkConfig); err != nil {
		return nil, fmt.Errorf("cannot render the seed of %s: %w", subject(p), err)
	}
	sum := sha256.Sum256(append(data, networkConfig...))
	name := p.Node
	if name == "" {
		name = p.Role
	}
	meta := struct {
		ID   string `yaml:"instance-id"`
		Host string `yaml:"local-hostname,omitempty"`
	}{ID: strings.ReplaceAll(name, "_", "-") + "-" + hex.EncodeToString(sum[:4])}
	if p.Hostname != firstboot.NodeHostname {
		meta.Host = p.Hostname
	}
	text, err := yaml.Marshal(meta)
	if err != nil {
		return nil, err
	}
	files := []SeedFile{{"user-data", data}, {"meta-data", text}}
	if len(networkConfig) > 0 {
		files = append(files, SeedFile{"network-config", networkConfig})
	}
	return files, nil
}

// checkNetwork refuses a text that cannot be a network configuration; cloud-init would ignore it with a warning.
func checkNetwork(text []byte) error {
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("the network configuration is not YAML: %w", err)
	}
	_, network := config["network"]
	_, version := config["version"]
	if len(text) > 0 && !network && !version {
		return errors.New("the network configuration has neither `network:` nor `version:`")
	}
	return nil
}
