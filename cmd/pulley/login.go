package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/join"
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

func newLogin(o *options) *cobra.Command {
	var f loginFlags
	cmd := &cobra.Command{
		Use:   "login --servers URL --ca FINGERPRINT --token TOKEN [FILE]",
		Short: "Get an operator's certificate with a join token",
		Long: `Create a key, and get a certificate for it from pulley serve, with a token of ` + "`pulley token create --operator NAME`" + `.
The key never leaves this machine. FILE stores the key and the certificate, readable only by its owner (default: operator.pem
in $XDG_CONFIG_HOME/pulley or ~/.config/pulley). operator-ca.pem in the same folder stores the fleet's CA certificates. The
command prints the variables that all verbs read. If the answer is lost, run the same command again: it uses the same key.

With --renew, use the certificate in FILE to get a new one. It must still be valid.`,
		Example: `  eval "$(pulley login --servers https://10.0.0.1:8443 --ca sha256:… --token-file token)"
  pulley login --renew --servers https://10.0.0.1:8443`,
		Args: arguments(0, 1, "takes at most one file"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(o.env); err != nil {
				return err
			}
			file, err := loginFile(o.env, args)
			if err != nil {
				return err
			}
			var l join.Login
			if f.renew {
				l, err = join.RenewLogin(c.Context(), f.servers, file)
			} else {
				l, err = join.LogIn(c.Context(), f.servers, f.pins, f.token, file)
			}
			if err != nil {
				return err
			}
			o.printLogin(l)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.servers, "servers", nil, "`URLs` of pulley serve, https://host:port, separated by commas [PULLEY_SERVERS]")
	flags.StringSliceVar(&f.pins, "ca", nil, "fingerprints of the fleet's CA, sha256:…, separated by commas; see pulley ca show")
	flags.StringVar(&f.token, "token", "", "the join token; other users of this machine can see it, unlike with --token-file")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the join token, - for standard input")
	flags.BoolVar(&f.renew, "renew", false, "renew the certificate in FILE")
	return cmd
}

func (f *loginFlags) check(env cli.Env) error {
	if len(f.servers) == 0 && env.Getenv("PULLEY_SERVERS") != "" {
		f.servers = strings.Split(env.Getenv("PULLEY_SERVERS"), ",")
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
	f.token, err = readToken(env, f.tokenFile)
	return err
}

// loginFile returns the path of the identity.
func loginFile(env cli.Env, args []string) (string, error) {
	if len(args) == 1 {
		return filepath.Abs(args[0])
	}
	config := env.Getenv("XDG_CONFIG_HOME")
	if config == "" {
		home := env.Getenv("HOME")
		if home == "" {
			return "", cli.Usagef("cannot choose a file: HOME is not set\ngive a FILE")
		}
		config = filepath.Join(home, ".config")
	}
	return filepath.Join(config, "pulley", "operator.pem"), nil
}

func (o *options) printLogin(l join.Login) {
	fmt.Fprintf(o.env.Stderr, "you are %s, as %s, until %s\n", quoted(l.Operator), quoted(l.As), l.Until.UTC().Format(time.DateOnly))
	if len(l.Endpoints) > 0 {
		fmt.Fprintf(o.env.Stdout, "export PULLEY_ENDPOINTS=%s\n", shellquote.Word(strings.Join(l.Endpoints, ",")))
	}
	if l.Prefix != "" {
		fmt.Fprintf(o.env.Stdout, "export PULLEY_PREFIX=%s\n", shellquote.Word(l.Prefix))
	}
	fmt.Fprintf(o.env.Stdout, "export PULLEY_CACERT=%s\nexport PULLEY_CERT=%s\nexport PULLEY_KEY=%s\n", shellquote.Word(l.Bundle), shellquote.Word(l.File), shellquote.Word(l.File))
}
