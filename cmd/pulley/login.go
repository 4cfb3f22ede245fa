package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access"
	"pulley/internal/access/contexts"
	"pulley/internal/cli"
	"pulley/internal/join"
	"pulley/internal/join/login"
	"pulley/internal/machines/boots"
	"pulley/internal/pki"
	"pulley/internal/shellquote"
)

// loginFlags are the servers and the operator's token.
type loginFlags struct {
	servers   []string
	pins      []string
	token     string
	tokenFile string
	renew     bool
}

// loginCommand gets and renews the identities of operators.
type loginCommand struct{ *options }

func newLogin(o *options) *cobra.Command {
	var f loginFlags
	cmd := &cobra.Command{
		Use:   "login --servers URL --ca FINGERPRINT --token TOKEN [FILE]",
		Short: "Get an operator's certificate with a join token",
		Long: `Create a key, and get a certificate for it from pulley serve, with a token of ` + "`pulley token create --operator NAME`" + `.
The key never leaves this machine. FILE stores the key and the certificate, readable only by its owner (default: NAME.pem beside
config.yaml, after the context's name). NAME-ca.pem in the same folder stores the fleet's CA certificates. If the answer is lost,
run the same command again: it uses the same key.

login writes a context with this identity, and makes it the current one: see ` + "`pulley context --help`" + `. Its name is the server's
host, unless --context names it. A context of another fleet stays as it is.

With --renew, use the certificate of the context, or in FILE, to get a new one. It must still be valid.

With --dry-run, connect to a server and check its CA, send no token, and name the files that login would write.`,
		Example: `  pulley login --servers https://10.0.0.1:8443 --ca sha256:… --token-file token
  pulley login --renew`,
		Args: arguments(0, 1, "takes at most one file"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(o); err != nil {
				return err
			}
			if f.renew {
				return loginCommand{o}.renewLogin(c.Context(), f, args)
			}
			return loginCommand{o}.login(c.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.servers, "servers", nil, "`URLs` of pulley serve, https://host:port, separated by commas [PULLEY_SERVERS]")
	flags.StringSliceVar(&f.pins, "ca", nil, "fingerprints of the fleet's CA, sha256:…, separated by commas; see pulley ca show")
	flags.StringVar(&f.token, "token", "", "the join token; other users of this machine can see it, unlike with --token-file")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the join token, - for standard input")
	flags.BoolVar(&f.renew, "renew", false, "renew the certificate in FILE")
	o.addDryRun(cmd)
	return cmd
}

func (f *loginFlags) check(o *options) error {
	if f.renew && o.context.err != nil {
		return o.context.err
	}
	if len(f.servers) == 0 && f.renew {
		f.servers = o.servers()
	} else if v := o.env.Getenv("PULLEY_SERVERS"); len(f.servers) == 0 && v != "" {
		f.servers = strings.Split(v, ",")
	}
	switch {
	case len(f.servers) == 0:
		return cli.Usagef("missing --servers\ngive --servers https://host:port of `pulley serve`")
	case f.renew && (f.token != "" || f.tokenFile != ""):
		return cli.Usagef("--renew takes no token: it uses the certificate in FILE")
	case !f.renew && len(f.pins) == 0:
		return cli.Usagef("missing --ca\ngive --ca sha256:…, as `pulley ca show` prints it on the machine of `pulley serve`")
	case !f.renew && (f.token == "") == (f.tokenFile == ""):
		return cli.Usagef("give --token-file FILE or --token TOKEN, of `pulley token create --operator NAME`")
	}
	if _, err := join.NewClient(f.servers, nil, 0); err != nil {
		return cli.Usagef("%v", err)
	}
	if f.renew {
		return nil
	}
	if _, err := pki.Pinned(f.pins); err != nil {
		return cli.Usagef("%v", err)
	}
	if f.tokenFile == "" {
		return nil
	}
	var err error
	f.token, err = readToken(o.env, f.tokenFile)
	return err
}

// login gets an identity with a token, and writes its context.
func (o loginCommand) login(ctx context.Context, f loginFlags, args []string) error {
	path, err := contexts.Path(o.env.Getenv)
	if err != nil {
		return err
	}
	w := contextWriter{path: path, base: contexts.NameFor(f.servers[0]), given: o.context.name}
	if w.pins, err = boots.ParsePins(f.pins); err != nil {
		return cli.Usagef("%v", err)
	}
	file, err := o.loginFile(&w, args)
	if err != nil {
		return err
	}
	if o.dryRun {
		return o.previewLogin(ctx, f, &w, file)
	}
	l, err := login.LogIn(ctx, f.servers, f.pins, f.token, file)
	if err != nil {
		return err
	}
	o.describeLogin(l)
	c := contexts.Context{Endpoints: l.Endpoints, CACert: l.Bundle, Cert: l.File, Key: l.File, Prefix: l.Prefix, Servers: f.servers}
	if err := w.write(c, true); err != nil {
		return fmt.Errorf("%w\nthe identity is in %s: `pulley context set NAME --cert %s --key %s --cacert %s --endpoints %s` writes the context",
			err, l.File, shellquote.Word(l.File), shellquote.Word(l.File), shellquote.Word(l.Bundle), shellquote.Word(strings.Join(l.Endpoints, ",")))
	}
	fmt.Fprintln(o.env.Stdout, w.result())
	o.warnOfVariables()
	return nil
}

// previewLogin reaches a server without the token. Only the answer to the token names the operator.
func (o loginCommand) previewLogin(ctx context.Context, f loginFlags, w *contextWriter, file string) error {
	id, _, err := access.ParseToken(f.token)
	if err != nil {
		return cli.Usagef("%v", err)
	}
	known, err := contexts.Read(w.path)
	if err != nil {
		return err
	}
	name, err := w.choose(known, func(string) string { return file })
	if err != nil {
		return err
	}
	url, err := login.ReachPinned(ctx, f.servers, f.pins)
	if err != nil {
		return fmt.Errorf("cannot log in: %w", err)
	}
	o.announceDryRun()
	fmt.Fprintf(o.env.Stdout, "pulley serve at %s has a certificate of the pinned CA\nwould use token %s, and write the identity to %s and %s\nwould write context %s to %s, and make it the current one\n",
		url, id, file, login.BundleOf(file), name, w.path)
	return nil
}

// loginFile returns the file of the identity: FILE, or the one of the context to write. It is never another fleet's.
func (o loginCommand) loginFile(w *contextWriter, args []string) (string, error) {
	if len(args) == 1 {
		bundle := login.BundleOf(args[0])
		if _, err := os.Lstat(bundle); err == nil && !contexts.HasPin(bundle, w.pins) {
			return "", fmt.Errorf("cannot use %s: it has an identity of another fleet\ngive another FILE, or remove this one", args[0])
		}
		return filepath.Abs(args[0])
	}
	known, err := contexts.Read(w.path)
	if err != nil {
		return "", err
	}
	of := func(name string) string { return filepath.Join(filepath.Dir(w.path), name+".pem") }
	name, err := w.choose(known, func(name string) string {
		file := of(name)
		if _, err := os.Lstat(file); err == nil && !contexts.HasPin(login.BundleOf(file), w.pins) {
			return "" // another fleet's identity without a context
		}
		return file
	})
	w.given = name
	return of(name), err
}

// renewLogin renews the certificate in FILE, or of the context. The files keep their names.
func (o loginCommand) renewLogin(ctx context.Context, f loginFlags, args []string) error {
	file := o.context.values.Cert
	if len(args) == 1 {
		file = args[0]
	} else if file == "" {
		return cli.Usagef("cannot choose an identity to renew: no context counts\ngive its FILE")
	}
	if o.dryRun {
		url, own, err := login.ReachToRenew(ctx, f.servers, file)
		if err != nil {
			return err
		}
		o.announceDryRun()
		fmt.Fprintf(o.env.Stdout, "pulley serve at %s has a certificate of the fleet's CA\nwould renew the certificate in %s, which is valid until %s\n", url, file, own.Leaf().NotAfter.UTC().Format(time.DateOnly))
		return nil
	}
	l, err := login.Renew(ctx, f.servers, file)
	if err == nil {
		o.describeLogin(l)
	}
	return err
}

func (o loginCommand) describeLogin(l login.Identity) {
	fmt.Fprintf(o.env.Stdout, "you are %s, as %s, until %s\n", quoted(l.Operator), quoted(l.As), l.Until.UTC().Format(time.DateOnly))
}
