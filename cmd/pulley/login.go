package main

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/atomicfile"
	"pulley/internal/cli"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/shellquote"
)

// loginFlags say where to join as an operator, and with what.
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
		Short: "Create a key, and get an operator's certificate for it with a join token",
		Long: `login makes a key, which never leaves this machine, and asks ` + "`pulley serve`" + ` for a certificate with a token of
` + "`pulley token create --operator NAME`" + `. Both go into FILE, which only its owner can read (default: operator.pem in
$XDG_CONFIG_HOME/pulley or ~/.config/pulley), and the fleet's CA certificates into a file beside it (operator-ca.pem). It
prints the variables that all verbs read. If the answer is lost, the same command goes on with the same key.

With --renew it asks for a new certificate by the one that is in FILE, which must not have ended.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
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
			if f.renew {
				return o.renewLogin(c.Context(), f, file)
			}
			return o.login(c.Context(), f, file)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.servers, "servers", nil, "`URLs` of pulley serve, https://host:port, with commas [PULLEY_SERVERS]")
	flags.StringSliceVar(&f.pins, "ca", nil, "fingerprints of the fleet's CA, sha256:…, with commas; pulley ca show tells them")
	flags.StringVar(&f.token, "token", "", "the join token; others on this machine see it, --token-file does not show it")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the join token, - for standard input")
	flags.BoolVar(&f.renew, "renew", false, "renew the certificate that is in FILE")
	return cmd
}

func (f *loginFlags) check(env cli.Env) error {
	if len(f.servers) == 0 && env.Getenv("PULLEY_SERVERS") != "" {
		f.servers = strings.Split(env.Getenv("PULLEY_SERVERS"), ",")
	}
	switch {
	case len(f.servers) == 0:
		return cli.Usagef("where is `pulley serve`? give --servers https://host:port")
	case f.renew && (f.token != "" || f.tokenFile != ""):
		return cli.Usagef("--renew needs no token: the certificate that is there says who you are")
	case f.renew:
		return nil
	case len(f.pins) == 0:
		return cli.Usagef("how is the server known? give --ca sha256:…, as `pulley ca show` prints it beside `pulley serve`")
	case (f.token == "") == (f.tokenFile == ""):
		return cli.Usagef("give --token-file FILE or --token TOKEN, as an administrator made it with `pulley token create --operator NAME`")
	}
	if f.tokenFile == "" {
		return nil
	}
	var err error
	f.token, err = readToken(env, f.tokenFile)
	return err
}

// loginFile is where the identity goes.
func loginFile(env cli.Env, args []string) (string, error) {
	if len(args) == 1 {
		return filepath.Abs(args[0])
	}
	config := env.Getenv("XDG_CONFIG_HOME")
	if config == "" {
		home := env.Getenv("HOME")
		if home == "" {
			return "", cli.Usagef("where to? HOME is not set: give a FILE")
		}
		config = filepath.Join(home, ".config")
	}
	return filepath.Join(config, "pulley", "operator.pem"), nil
}

// bundleBeside is where the fleet's CA certificates go. The name follows the identity's, so that nobody else's are replaced.
func bundleBeside(file string) string { return strings.TrimSuffix(file, ".pem") + "-ca.pem" }

func (o *options) login(ctx context.Context, f loginFlags, file string) error {
	trust, err := pki.Pinned(f.pins)
	if err != nil {
		return cli.Usagef("%v", err)
	}
	client, err := join.NewClient(f.servers, trust, 0)
	if err != nil {
		return cli.Usagef("%v", err)
	}
	was, err := pki.LoadIdentity(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot write to %s: what is there is no identity: %w\ngive another FILE", file, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("cannot make the folder of %s: %w", file, err)
	}
	key, err := keptKey(file + ".key")
	if err != nil {
		return err
	}
	answer, err := client.Join(ctx, key, join.Request{Token: f.token})
	if err != nil {
		return fmt.Errorf("cannot log in: %w", err)
	}
	if answer.Operator == "" {
		return errors.New("cannot log in: the token is one for nodes\nan administrator makes another: pulley token create --operator NAME")
	}
	if was.Key != nil {
		if name, err := was.Name(); err == nil && name.Subject != answer.Operator {
			return fmt.Errorf("cannot write to %s: it has the identity of %s, and this one is of %s\nmove that file away, and run this again: the token is good for it", file, name.Subject, answer.Operator)
		}
	}
	if err := o.keepLogin(key, answer, file); err != nil {
		return err
	}
	return os.Remove(file + ".key")
}

// keptKey is the key of a login that was not answered, or a new one, which is kept before anybody hears of it.
func keptKey(file string) (crypto.Signer, error) {
	key, err := pki.LoadKey(file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = pki.NewKey(); err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	return key, pki.SaveKey(file, key)
}

func (o *options) renewLogin(ctx context.Context, f loginFlags, file string) error {
	was, err := pki.LoadIdentity(file)
	if err != nil {
		return fmt.Errorf("%w\n`pulley login` with a token makes one", err)
	}
	bundle, err := os.ReadFile(bundleBeside(file))
	if err != nil {
		return fmt.Errorf("cannot read the fleet's CA certificates: %w", err)
	}
	trust, err := was.TLS(bundle)
	if err != nil {
		return err
	}
	client, err := join.NewClient(f.servers, trust, 0)
	if err != nil {
		return cli.Usagef("%v", err)
	}
	key, err := pki.NewKey()
	if err != nil {
		return fmt.Errorf("cannot make a key: %w", err)
	}
	answer, err := client.Renew(ctx, key, join.Machine{})
	if err != nil {
		return fmt.Errorf("cannot renew the certificate: %w", err)
	}
	return o.keepLogin(key, answer, file)
}

// keepLogin writes what was answered, and says how to use it. The bundle comes first: with it the old certificate still works.
func (o *options) keepLogin(key crypto.Signer, answer join.Answer, file string) error {
	identity, err := pki.NewIdentity(key, []byte(answer.Certificate))
	if err != nil {
		return err
	}
	_, err = pki.ParseCertificates([]byte(answer.CA))
	if err == nil {
		err = atomicfile.Write(bundleBeside(file), []byte(answer.CA), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot keep the fleet's CA certificates: %w", err)
	}
	if err := identity.Save(file); err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stderr, "you are %s, as %s, until %s\n", quoted(answer.Operator), quoted(answer.As), identity.Leaf().NotAfter.UTC().Format("2006-01-02"))
	if len(answer.Endpoints) > 0 {
		fmt.Fprintf(o.env.Stdout, "export PULLEY_ENDPOINTS=%s\n", shellquote.Word(strings.Join(answer.Endpoints, ",")))
	}
	if answer.Prefix != "" && answer.Prefix != "/pulley" {
		fmt.Fprintf(o.env.Stdout, "export PULLEY_PREFIX=%s\n", shellquote.Word(answer.Prefix))
	}
	fmt.Fprintf(o.env.Stdout, "export PULLEY_CACERT=%s\nexport PULLEY_CERT=%s\nexport PULLEY_KEY=%s\n", shellquote.Word(bundleBeside(file)), shellquote.Word(file), shellquote.Word(file))
	return nil
}
