package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/agent/nodeconfig"
	"pulley/hieradata"
	"pulley/internal/bounded"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/secrets"
	"pulley/internal/stablehash"
)

// memoryFolders are the usual places of a tmpfs, which is in memory (and swap).
var memoryFolders = []string{"/run", "/dev/shm"}

// secretsTimeout limits the request for identities to one server.
const secretsTimeout = 15 * time.Second

// secretsFolder is the name of the folder of decrypted data below one of memoryFolders. Agents with other state folders
// on the machine have others.
func secretsFolder(c nodeconfig.Config) string {
	dir, err := filepath.Abs(c.StateDir())
	if err != nil {
		dir = c.StateDir()
	}
	return fmt.Sprintf("pulley-agent-%016x", stablehash.Sum(dir))
}

// ForgetSecrets removes the decrypted data of a run that was killed.
func ForgetSecrets(c nodeconfig.Config) error {
	var all []error
	for _, dir := range memoryFolders {
		all = append(all, os.RemoveAll(filepath.Join(dir, secretsFolder(c))))
	}
	return errors.Join(all...)
}

// layerFile is a data file of a job with its secrets.
type layerFile struct {
	name    string
	layer   hieradata.Layer
	text    []byte
	secrets map[string]string
}

// reveal writes the data of a job with its secrets decrypted into a folder in memory.
func (n *Node) reveal(ctx context.Context, job model.Job) (data string, done func() error, err error) {
	none := func() error { return nil }
	files, found, err := readLayers(job)
	if err != nil || !found {
		return job.Data, none, err
	}
	identities, err := n.identitiesFor(ctx, files)
	if err != nil {
		return "", none, err
	}
	var eyaml string // of the highest layer that has it
	var keys []string
	for _, f := range files {
		keys = slices.AppendSeq(keys, maps.Keys(f.secrets))
	}
	for i, f := range files {
		plain := map[string]string{}
		for key, text := range f.secrets {
			at := secrets.Place{Environment: job.Environment, Layer: f.layer, Key: key}
			if plain[key], err = secrets.Open(identities, at, text); errors.Is(err, secrets.ErrNoIdentity) {
				err = n.noIdentity(err, f.layer, key)
			}
			if err != nil {
				return "", none, err
			}
		}
		if files[i].text, err = hieradata.Reveal(f.text, plain, keys); err != nil {
			return "", none, fmt.Errorf("cannot use layer %s: %w", f.layer, err)
		}
		eyaml = cmp.Or(eyaml, plain[hieradata.EyamlKey])
	}
	if eyaml != "" {
		files = append(files, layerFile{name: hieradata.EyamlFile, text: []byte(eyaml + "\n")})
	}
	dir, err := n.inMemory(files)
	return dir, func() error { return os.RemoveAll(dir) }, err
}

// readLayers reads the data files of a job. found reports whether one has a secret.
func readLayers(job model.Job) (files []layerFile, found bool, err error) {
	levels, err := hieradata.ReadLevels(job.Data, job.Role, job.Node)
	if err != nil {
		return nil, false, err
	}
	if order, err := bounded.ReadFile(filepath.Join(job.Data, hieradata.LevelsFile), hieradata.MaxInputBytes); err == nil {
		files = append(files, layerFile{name: hieradata.LevelsFile, text: order})
	}
	for _, l := range levels {
		if l.Layer == "" {
			continue
		}
		text, err := bounded.ReadFile(filepath.Join(job.Data, l.File()), hieradata.MaxInputBytes)
		if err != nil {
			return nil, false, fmt.Errorf("cannot read layer %s: %w", l.Layer, err)
		}
		all, err := hieradata.Secrets(text)
		if err != nil {
			return nil, false, err
		}
		files = append(files, layerFile{l.File(), l.Layer, text, all})
		found = found || len(all) > 0
	}
	return files, found, nil
}

// identitiesFor returns the identities of this node. It requests them from serve if the secrets need another one: of a
// new role, after a rotation, or on a node that joined before the first secret.
func (n *Node) identitiesFor(ctx context.Context, files []layerFile) ([]string, error) {
	have, err := n.Secrets()
	if err != nil || n.decrypt(have, files) || !n.Joined() || len(n.Servers) == 0 {
		return have, err
	}
	client, err := n.secretsClient()
	if err != nil {
		return nil, err
	}
	fresh, err := client.Identities(ctx, join.Machine{ID: nodeconfig.MachineID(n.Root), Boot: nodeconfig.BootID()})
	if err != nil {
		return nil, fmt.Errorf("cannot get the identity of a secret from pulley serve: %w%s", err, remedyOf(err))
	}
	n.Log.Info("identities of secrets received", "count", len(fresh))
	return fresh, n.SaveSecrets(fresh)
}

func remedyOf(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) && hinted.Hint() != "" {
		return "\n" + hinted.Hint()
	}
	return ""
}

func (n *Node) secretsClient() (*join.Client, error) {
	return n.ServeClientWithin(n.Servers, secretsTimeout)
}

// decrypt reports whether the identities suffice for all secrets of the files.
func (n *Node) decrypt(identities []string, files []layerFile) bool {
	var ids []string
	for _, i := range identities {
		if r, err := secrets.RecipientOf(i); err == nil {
			ids = append(ids, secrets.ID(r))
		}
	}
	for _, f := range files {
		for _, text := range f.secrets {
			if id, _, ok := hieradata.ParseSecret(text); ok && !slices.Contains(ids, id) {
				return false
			}
		}
	}
	return true
}

// noIdentity adds the remedy to an error about a missing identity.
func (n *Node) noIdentity(err error, layer hieradata.Layer, key string) error {
	switch {
	case !n.Joined():
		return fmt.Errorf("%w\nthis node has no certificate of pulley serve, which gives identities: let it join with a token of `pulley token create -e %s --node %s`", err, n.Identity.Environment, n.Identity.Node)
	case len(n.Servers) == 0:
		return fmt.Errorf("%w\nname pulley serve, which gives identities, as servers: in %s", err, n.Path)
	}
	scope := ""
	if kind, name, _ := strings.Cut(string(layer), "/"); kind == "roles" {
		scope = " --role " + name
	} else if kind == "nodes" {
		scope = " --node " + name
	} else if name, value, ok := layer.Attribute(); ok {
		scope = " --attribute " + name + "=" + value
	}
	return fmt.Errorf("%w\nit is encrypted to another role, or its identity is lost: set it again with `pulley secret set %s -e %s%s`", err, key, n.Identity.Environment, scope)
}

// inMemory writes files into a folder on a tmpfs that only root can read.
func (n *Node) inMemory(files []layerFile) (string, error) {
	for _, parent := range memoryFolders {
		var fs unix.Statfs_t
		if unix.Statfs(parent, &fs) != nil || fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
			continue
		}
		dir := filepath.Join(parent, secretsFolder(n.Config))
		err := writeSecrets(dir, files)
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot write decrypted secrets: %w", err), os.RemoveAll(dir))
		}
		return dir, err
	}
	return "", fmt.Errorf("cannot decrypt secrets: none of %s is a tmpfs, and secrets are not written to a disk\nmount a tmpfs: mount -t tmpfs -o mode=0755 tmpfs /run", strings.Join(memoryFolders, ", "))
}

// writeSecrets creates the folder anew: other users may create folders in /dev/shm.
func writeSecrets(dir string, files []layerFile) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(s.Uid) != os.Geteuid() {
		return &fs.PathError{Op: "use", Path: dir, Err: errors.New("it belongs to another user")}
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
