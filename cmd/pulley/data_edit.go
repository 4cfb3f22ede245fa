package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/hieradata"
	"pulley/internal/bounded"
	"pulley/internal/child"
	"pulley/internal/cli"
	"pulley/internal/data"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollouts"
)

func newDataEdit(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "edit -e ENVIRONMENT", Short: "Edit one layer in an editor",
		Long: `edit opens the layer in the editor that VISUAL or EDITOR names (default: vi), and makes a generation of what was saved. An empty file removes
the layer. edit refuses a file that does not parse, with the place, and a layer that somebody else changed in the meantime, with both
changes; it then keeps the file. Pulley stores values, not comments: give the reason with --message.

EXIT STATUS
  0 done, or nothing changed; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are held or
  silent, 5 its time passed`,
		Args: arguments(0, 0, "takes no arguments; --role, --node or --common names the layer"),
	}
	d.addChange(cmd)
	d.addEncrypted(cmd)
	return d.command(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, _ []string) error {
		e := d.editing()
		opened, number, err := data.OpenLayer(ctx, s, ref, e)
		if err != nil {
			return err
		}
		file, err := temporary(e.Layer(), fmt.Sprintf("# Layer %s of %s, data %d. Comments are not stored. An empty layer is removed.\n", e.Layer(), ref, number), opened.Text)
		if err != nil {
			return err
		}
		e.Whole = &opened
		done, err := d.edited(ctx, s, ref, e, file)
		if errors.Is(err, errSame) {
			err = nil
			fmt.Fprintln(d.env.Stdout, "nothing changed")
		}
		if err != nil {
			return fmt.Errorf("%w\nthe file that you saved is %s", err, file)
		}
		if err := os.RemoveAll(filepath.Dir(file)); err != nil {
			return err
		}
		if !done.Made && !done.Same {
			return nil
		}
		return d.changed(ctx, s, ref, done)
	})
}

// temporary makes a file for the editor, alone in a folder that only this user may read.
func temporary(layer hieradata.Layer, head string, text []byte) (string, error) {
	dir, err := os.MkdirTemp("", "pulley-data-")
	if err != nil {
		return "", fmt.Errorf("cannot make a file for the editor: %w", err)
	}
	file := filepath.Join(dir, strings.ReplaceAll(string(layer), "/", "-")+".yaml")
	return file, os.WriteFile(file, append([]byte(head), text...), 0o600)
}

var errSame = errors.New("the file is as it was opened")

// edited opens the editor until what was saved parses, or the user gives up, and changes the layer.
func (d *dataOptions) edited(ctx context.Context, s *etcd.DB, ref model.Ref, e data.LayerEdit, file string) (none rollouts.DataChange, err error) {
	given, err := bounded.ReadFile(file, hieradata.MaxInputBytes)
	if err != nil {
		return none, err
	}
	for {
		if err := d.editor(ctx, file); err != nil {
			return none, err
		}
		text, err := bounded.ReadFile(file, hieradata.MaxInputBytes)
		if err != nil {
			return none, err
		}
		if bytes.Equal(text, given) {
			return none, errSame
		}
		e.Whole.Text = text
		done, err := rollouts.ChangeData(ctx, s, ref, d.starting(), func() (data.Edited, error) { return data.EditLayer(ctx, s, ref, e, d.changing()) })
		if syntax := (*hieradata.SyntaxError)(nil); errors.As(err, &syntax) && d.env.Terminal && d.env.ErrTerminal {
			cli.Complain(d.env, program, err)
			if cli.Confirm(ctx, d.env, "", "edit again? [y/N] ", "y", "yes") == nil {
				continue
			}
		}
		if changed := (*data.ChangedLayer)(nil); errors.As(err, &changed) {
			fmt.Fprintln(d.env.Stderr, "what changed in the meantime:")
			showDifferences(d.env.Stderr, changed.Theirs)
			fmt.Fprintln(d.env.Stderr, "what you changed:")
			showDifferences(d.env.Stderr, changed.Ours)
			err = fmt.Errorf("%w\nrun `pulley data edit -e %s%s` again and make your changes in the new state", err, ref, promotion.Flags(d.layer))
		}
		if err == nil {
			d.remark(string(text))
		}
		return done, err
	}
}

// editorGrace is the time that an editor has after SIGTERM to save its state.
const editorGrace = 2 * time.Second

// editor runs the user's editor, which has the environment of the operator's shell: a command of pulley in it reaches the same fleet. Its end has no deadline: a person works in it. Ctrl-C is the editor's until then; SIGTERM ends both.
func (d *dataOptions) editor(ctx context.Context, file string) error {
	signal.Reset(os.Interrupt)
	pressed := make(chan os.Signal, 1)
	signal.Notify(pressed, os.Interrupt)
	defer signal.Stop(pressed)
	editor := cmp.Or(d.env.Getenv("VISUAL"), d.env.Getenv("EDITOR"), "vi")
	err := child.Command{
		Path: "sh", Args: []string{"-c", "exec env " + editor + ` "$1"`, "sh", file}, // the variable may have arguments; a shell that waits would die of Ctrl-C
		Env: os.Environ(), Stdin: d.env.Stdin, Stdout: d.env.Stdout, Stderr: d.env.Stderr, Terminal: true, Grace: editorGrace,
	}.Run(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("cannot edit the layer: %w", ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("cannot edit the layer: editor %q: %w\nset EDITOR to the command of your editor", cli.Clean(editor), err)
	}
	return nil
}
