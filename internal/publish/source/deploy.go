package source

import (
	"encoding/json"
	"fmt"
)

// DeployFile is the file in the root of a release that names its commit. r10k writes it into the environments that it
// deploys, and scripts of config_version read it.
const DeployFile = ".r10k-deploy.json"

// maxDeployFile limits the size of the file.
const maxDeployFile = 4 << 20

// deploy is the content of the DeployFile, with the names of r10k. It depends only on the commit: two publishes of one
// commit have the same tree. Therefore its times are those of the commit, and it has no name of an environment.
type deploy struct {
	Signature     string   `json:"signature"` // the commit; with "-dirty" for uncommitted changes
	StartedAt     string   `json:"started_at"`
	FinishedAt    string   `json:"finished_at"`
	DeploySuccess bool     `json:"deploy_success"`
	ModuleDeploys []Module `json:"module_deploys"`
}

// Module is a module that a Puppetfile was resolved to.
type Module struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // as the Puppetfile names it, or the version of its metadata.json
	SHA     string `json:"sha,omitempty"`     // commit of a module from git
}

// deployTime is the format of times in Ruby's JSON.
const deployTime = "2006-01-02 15:04:05 -0700"

// ParseModules reads the modules of a DeployFile, by name. A file of another program may list none.
func ParseModules(text []byte) map[string]Module {
	var d deploy
	modules := map[string]Module{}
	if json.Unmarshal(text, &d) == nil {
		for _, m := range d.ModuleDeploys {
			modules[m.Name] = m
		}
	}
	return modules
}

// describeDeploy makes the DeployFile. Without a commit, the one that r10k or g10k left in the root of the folder is
// kept.
func (f *Folder) describeDeploy() error {
	if f.Facts.Commit == "" && len(f.Resolved) == 0 {
		text, err := readIn(f.Root, DeployFile, maxDeployFile)
		if err == nil && text != "" {
			f.Added = map[string][]byte{DeployFile: []byte(text)}
		}
		return nil // a file that can't be read is left out, as the other files of these tools
	}
	d := deploy{Signature: f.Facts.Commit, DeploySuccess: true, ModuleDeploys: f.Resolved}
	if f.Facts.Dirty && d.Signature != "" {
		d.Signature += "-dirty"
	}
	if !f.Facts.CommittedAt.IsZero() {
		d.StartedAt = f.Facts.CommittedAt.UTC().Format(deployTime)
		d.FinishedAt = d.StartedAt
	}
	if d.ModuleDeploys == nil {
		d.ModuleDeploys = []Module{}
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", DeployFile, err)
	}
	f.Added = map[string][]byte{DeployFile: append(text, '\n')}
	return nil
}
