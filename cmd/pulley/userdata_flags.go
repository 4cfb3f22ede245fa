package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/environments"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/firstboot/plans"
)

// firstBootFlags are the flags for first boots, for one machine or for those of an environment.
type firstBootFlags struct {
	*options
	plan firstboot.Plan // the settings of the flags

	signers           string // files
	agents, checksums []string
	pre, post         []string

	unsigned bool // the operator confirmed machines that verify no signatures
}

func (u *firstBootFlags) add(f *pflag.FlagSet) {
	u.plan.AddFlags(f, "servers", "ca", "mirrors", "agent_urls", "puppet_package", "puppet_version", "package_repo", "proxy", "schedule", "steps")
	f.StringVar(&u.signers, "allowed-signers", "", "file of the keys that may sign releases and data, see ssh-keygen(1)")
	f.StringArrayVar(&u.agents, "agent", nil, "file that is the pulley-agent to run, for its checksum; may be given again")
	f.StringArrayVar(&u.checksums, "agent-sha256", nil, "checksum of pulley-agent, as HEX or ARCH=HEX with amd64 or arm64 (default: the image's own agent)")
	f.StringArrayVar(&u.pre, "pre", nil, "script to run before anything is installed; may be given again")
	f.StringArrayVar(&u.post, "post", nil, "script to run at the end; may be given again")
}

// read adds the settings from the files that the flags name, and from PULLEY_SERVERS.
func (u *firstBootFlags) read(c *cobra.Command, ref environments.Ref) (err error) {
	if s := u.env.Getenv("PULLEY_SERVERS"); s != "" && !c.Flags().Changed("servers") {
		u.plan.Servers = strings.Split(s, ",")
	}
	if u.plan.CA, err = plans.ParsePins(u.plan.CA); err != nil {
		return &cli.UsageError{Problem: err.Error()}
	}
	if u.signers != "" {
		if u.plan.AllowedSigners, err = plans.ReadSigners(u.signers, ref.Environment, u.env.Now()); err != nil {
			return err
		}
	}
	sums, err := plans.Checksums(u.checksums, u.agents)
	if err != nil {
		return err
	}
	if sums != nil {
		u.plan.AgentSHA256 = sums
	}
	for _, own := range []struct {
		files []string
		to    *[]string
	}{{u.pre, &u.plan.Pre}, {u.post, &u.plan.Post}} {
		for _, file := range own.files {
			text, err := bounded.ReadFile(file, userdataLimit)
			if err != nil {
				return fmt.Errorf("cannot read a script: %w", err)
			}
			*own.to = append(*own.to, string(text))
		}
	}
	for _, p := range u.plan.Settings.Problems() {
		if !p.Half {
			return flagError(p)
		}
	}
	return nil
}

// userdataLimit limits a script, in bytes. The complete userdata has a lower limit.
const userdataLimit = 64 << 10

// flagError returns a problem with the name of its flag.
func flagError(p *firstboot.Problem) error {
	name, _, _ := strings.Cut(p.Field, ".")
	text := "cannot use --" + strings.ReplaceAll(name, "_", "-")
	if p.Value != "" {
		text += " " + quoted(p.Value)
	}
	text += ": " + p.Text
	if p.Advice != "" {
		text += "\n" + p.Advice
	}
	return &cli.UsageError{Problem: text}
}

// given returns the first of these flags on the command line, or "".
func (u *firstBootFlags) given(c *cobra.Command) (name string) {
	var own pflag.FlagSet
	(&firstBootFlags{}).add(&own)
	own.VisitAll(func(f *pflag.Flag) {
		if name == "" && c.Flags().Changed(f.Name) {
			name = f.Name
		}
	})
	return name
}

// readToken reads a token from a file, or from standard input for "-".
func readToken(env cli.Env, file string) (string, error) {
	if file == "-" {
		return tokenFrom(env.Stdin, "standard input")
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	defer f.Close()
	return tokenFrom(f, file)
}

func tokenFrom(r io.Reader, name string) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, 4<<10))
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("cannot read the token: %s is empty", name)
	}
	return token, nil
}
