package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access/fleetca"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/serve"
	"pulley/internal/serve/member"
)

func newBackup(o *options) *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Write a backup of etcd and of the data folder of pulley serve", Args: arguments(1, 1, "takes the file to write; - is standard output"),
		Long: `Write one archive (0600): a consistent snapshot of etcd, and the CA and the identities of the data folder. pulley serve may
run. Whoever reads the archive can take any identity of the fleet: encrypt it, as in the example.

Run the command on the machine of pulley serve. It connects with the identities of the data folder. Without a quorum of your
own cluster, it reads a member that answers, and prints a warning: the backup may lack the newest writes.`,
		Example: `  pulley backup fleet.backup
  set -o pipefail; pulley backup - | age -r AGE-KEY >new && mv new fleet.backup.age`,
		RunE: func(c *cobra.Command, args []string) error {
			file := args[0]
			if file != "-" {
				var err error
				if file, err = atomicfile.Follow(file); err != nil {
					return fmt.Errorf("cannot write the backup: %w", err)
				}
			}
			o.connection.Fill(o.env)
			secured := member.IsSecured(dataDir)
			if secured {
				o.connectTo(dataDir)
			}
			config := o.connection.Config()
			// The administrator's identity may be moved away from a secured folder. serve's own remains.
			if _, err := os.Stat(fleetca.AdminFile(dataDir)); (err == nil || secured) && strings.HasPrefix(config.Endpoints[0], "https:") {
				config = fleetca.Connection(dataDir, config, "")
			}
			st, err := etcd.Open(config)
			if err != nil {
				return err
			}
			defer st.Close()
			write := func(to io.Writer) error {
				old, err := serve.Backup(c.Context(), dataDir, st, o.env.Now(), to)
				if err == nil && old {
					cli.Complain(o.env, program, errors.New("warning: etcd has no quorum: the backup may lack its newest writes"))
				}
				return err
			}
			if file == "-" {
				err = write(o.env.Stdout)
			} else {
				err = atomicfile.WriteFunc(file, 0o600, func(f *os.File) error { return write(f) })
			}
			if err != nil {
				return err
			}
			if err := cluster.In(st).NoteBackup(c.Context(), o.env.Now()); err != nil { // without a quorum
				cli.Complain(o.env, program, fmt.Errorf("warning: %w: the metrics of `pulley serve` show an older backup", err))
			}
			if file != "-" {
				fmt.Fprintf(o.env.Stdout, "%s contains etcd and the keys of the fleet: protect it like a root password\n", args[0])
			}
			return nil
		},
	}
	o.addDataDir(cmd, &dataDir, "data folder of pulley serve")
	return cmd
}

func newRestore(o *options) *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make a data folder for pulley serve from a backup", Args: arguments(1, 1, "takes the file to read; - is standard input"),
		Long: `Make an empty data folder from an archive of pulley backup. Start pulley serve on it afterwards.

What was changed after the backup is lost. Nodes may have newer releases and data than etcd. Therefore the gate of each
environment is paused: no node returns silently to the targets of the backup. Each epoch continues above the lost ones. After
the nodes have reported, check pulley status, and publish what is missing. Then pulley recover, or the next promotion, opens the
gate of an environment. Nodes with allowed signers need pulley recover with a signing key.`,
		Example: `  pulley restore fleet.backup
  age -d -i KEY fleet.backup.age | pulley restore -`,
		RunE: func(c *cobra.Command, args []string) error {
			in := o.env.Stdin
			if args[0] != "-" {
				f, err := bounded.Open(args[0])
				if err != nil {
					return fmt.Errorf("cannot read the backup: %w", err)
				}
				defer f.Close()
				in = f
			}
			return o.restore(c.Context(), in, dataDir)
		},
	}
	o.addDataDir(cmd, &dataDir, "data folder to make; it must be empty or missing")
	return cmd
}

// restoreTimeout bounds each call to the restored etcd.
const restoreTimeout = 30 * time.Second

func (o *options) restore(ctx context.Context, in io.Reader, dataDir string) error {
	o.connection.Fill(o.env)
	config := member.SecureConfig{
		EtcdConfig: member.EtcdConfig{
			Dir: dataDir, Listen: "127.0.0.1:0", QuotaBytes: member.MaxQuota, Retention: member.DefaultRetention, Log: slog.NewTextHandler(o.env.Stderr, nil),
		},
		Hostname: hostname(), Prefix: o.connection.Prefix, Timeout: restoreTimeout,
	}
	done, err := serve.Restore(ctx, in, config, targets.Author{By: o.env.User, Why: "restored from a backup", At: o.env.Now()})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "%s is restored; start `pulley serve --data-dir %s`\n", dataDir, dataDir)
	for _, e := range done {
		cli.Cleanf(o.env.Stdout, "the gate of %s is paused, at epoch %d: check `pulley status -e %s`, then run `pulley recover -e %s`\n", e.Environment, e.Epoch, e.Environment, e.Environment)
	}
	return nil
}
