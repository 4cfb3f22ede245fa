package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/firstboot"
	"pulley/internal/fleet"
	"pulley/internal/join/tokens"
	"pulley/internal/machines/boots"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/userdata"
)

// nocloud is the only form that is a folder, not a text.
const nocloud = "nocloud"

// userdataOptions are the flags for one machine, or for a group.
type userdataOptions struct {
	firstBootFlags
	role, group, hostname string
	token, tokenFile      string
	newToken              bool
	expires               time.Duration

	form           string
	to, networkYML string
}

func newUserdata(o *options) *cobra.Command {
	u := userdataOptions{firstBootFlags: firstBootFlags{options: o}}
	cmd := &cobra.Command{
		Use:   "userdata NODE -e ENVIRONMENT",
		Short: "Print the payload that turns a bare machine into a node",
		Long: `userdata prints the program that cloud-init runs on a machine's first boot. It installs the agent and starts
` + "`pulley-agent bootstrap`" + ` with the settings of the machine.

  userdata NODE          for one machine, which becomes this node
  userdata --role ROLE   for one machine, which claims the next free number of the role
  userdata --group ROLE  for the machines of an autoscaling group: each claims a number, and leaves when it is powered off

With --servers the machine joins at these servers and gets a certificate of its own. --ca verifies the servers; --token or
--new-token authorizes the join. With --new-token and without --servers, missing settings come from the userdata of the
environment, except scripts and steps, and the servers from your context. Without both, the machine uses etcd at --endpoints, and does not join.

With --allowed-signers the machine accepts, from its first run on, only releases and data that one of them signed. Without,
it verifies no signatures.`,
		Args: arguments(0, 1, "takes one node, like controller1, or --role ROLE, or --group ROLE"),
		RunE: func(c *cobra.Command, args []string) error { return u.run(c, args) },
	}
	f := cmd.Flags()
	u.fleet.AddFlag(f)
	f.BoolVar(&u.dryRun, "dry-run", false, "with --new-token, create no token: the userdata has a placeholder")
	f.StringVar(&u.role, "role", "", "role whose next free number the machine claims; with NODE, the role of a machine of another name")
	f.StringVar(&u.group, "group", "", "role of an autoscaling group, whose machines leave when they are powered off")
	f.StringVar(&u.form, "format", string(userdata.Script), "script, cloud-config, multipart or nocloud (a seed, with --to)")
	f.StringVar(&u.to, "to", "", "folder to write a NoCloud seed to")
	f.StringVar(&u.networkYML, "network-config", "", "file with the machine's network, for the seed")
	u.add(f)
	f.StringVar(&u.token, "token", "", "join token")
	f.StringVar(&u.tokenFile, "token-file", "", "file with the join token; - for standard input")
	f.BoolVar(&u.newToken, "new-token", false, "create a token for this purpose: for one use, with --group for any number")
	cli.DurationVar(f, &u.expires, "expires", tokens.DefaultLifetime, "lifetime of the new token")
	f.StringVar(&u.hostname, "hostname", "", "hostname of the machine: node (the name of the node), keep, or a name (default: node)")
	return cmd
}

func (u *userdataOptions) run(c *cobra.Command, args []string) error {
	u.payload = true
	ref, err := u.fleet.Ref(u.env)
	if err == nil {
		err = u.checkFlags(args)
	}
	if err != nil {
		return err
	}
	if ref, err = u.name(ref, args); err != nil {
		return err
	}
	if err := u.read(c, ref); err != nil {
		return err
	}
	if err = u.addStored(c, ref); err == nil {
		err = u.addConnection(c)
	}
	if err == nil {
		err = u.addToken(c, ref)
	}
	if err != nil {
		return err
	}
	if u.form == nocloud {
		return u.writeSeed()
	}
	text, err := userdata.Render(u.plan, userdata.Form(u.form))
	if err == nil {
		_, err = u.env.Stdout.Write(text)
	}
	return err
}

// checkFlags rejects flags that exclude each other.
func (u *userdataOptions) checkFlags(args []string) error {
	forms := []string{nocloud}
	for _, f := range userdata.Forms {
		forms = append(forms, string(f))
	}
	switch {
	case len(args) == 0 && u.role+u.group == "":
		return cli.Usagef("`pulley userdata` takes one node, like controller1, or --role ROLE, or --group ROLE")
	case u.role != "" && u.group != "":
		return cli.Usagef("--role and --group exclude each other")
	case len(args) > 0 && u.group != "":
		return cli.Usagef("--group excludes node %s", quoted(args[0]))
	case !slices.Contains(forms, u.form):
		return cli.Usagef("cannot use --format %s: give one of %s", quoted(u.form), strings.Join(forms, ", "))
	case (u.form == nocloud) != (u.to != ""):
		return cli.Usagef("--format nocloud and --to DIR belong together: the seed is a folder")
	case u.form != nocloud && u.networkYML != "":
		return cli.Usagef("--network-config is for --format nocloud")
	case u.token != "" && u.tokenFile != "" || u.newToken && u.token+u.tokenFile != "":
		return cli.Usagef("--token, --token-file and --new-token exclude each other")
	case u.newToken && (u.expires <= 0 || u.expires > tokens.MaxLifetime):
		return cli.Usagef("cannot create a token that is valid for %s: give --expires a time of at most %s", cli.Duration(u.expires), cli.Duration(tokens.MaxLifetime))
	}
	return nil
}

// name sets the node, its role and the name of the machine.
func (u *userdataOptions) name(ref model.Ref, args []string) (model.Ref, error) {
	node := ""
	if len(args) > 0 {
		node = args[0]
	}
	p, ref, err := boots.ForNode(ref, node, cmp.Or(u.group, u.role), u.hostname == "keep")
	if err != nil {
		return ref, &cli.UsageError{Problem: err.Error()}
	}
	switch u.hostname {
	case "":
	case "keep":
		p.Hostname = ""
	case firstboot.NodeHostname:
		p.Hostname = cmp.Or(p.Hostname, p.Node)
	default:
		p.Hostname = u.hostname
	}
	if u.group != "" {
		p.Leave = firstboot.LeavePoweroff
	}
	u.plan = p.Over(u.plan)
	return ref, nil
}

// addStored adds the settings of the stored environment, and the servers of the context, for a machine that gets a new token, unless flags
// set the servers. It skips scripts and steps, because an existing machine has its own.
func (u *userdataOptions) addStored(c *cobra.Command, ref model.Ref) error {
	if !u.newToken || len(u.plan.Servers) > 0 {
		return nil
	}
	return u.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
		e, err := fleet.FindEnvironment(ctx, specs.In(s), ref)
		if err == nil {
			err = fleet.CheckRole(e, u.plan.Role)
		}
		if err != nil {
			return err
		}
		r, _ := e.Role(u.plan.Role)
		stored := e.UserdataOf(r)
		stored.Pre, stored.Post, stored.Steps, stored.Endpoints = nil, nil, nil, nil
		u.plan.Settings = u.plan.Settings.Over(stored)
		if len(u.plan.Servers) == 0 {
			u.plan.Servers = u.servers()
		}
		return nil
	})
}

// addConnection adds the settings of the operator's connection: the pins of the servers or, without servers, etcd.
func (u *userdataOptions) addConnection(c *cobra.Command) error {
	boot, err := u.connectionOnly()
	if err != nil {
		return err
	}
	p := &u.plan
	p.Prefix = boot.Prefix
	switch joins := len(p.Servers) > 0; {
	case joins && len(p.CA) == 0 && len(boot.Pins) == 0:
		return cli.Usagef("cannot make userdata: the machine could not verify its servers\ngive --ca sha256:…, or --cacert with their CA's certificates; `pulley ca show` prints the pins on the machine of `pulley serve`")
	case joins:
		if len(p.CA) == 0 {
			p.CA = boot.Pins
		}
		if c.Flags().Changed("endpoints") { // otherwise the join returns them
			p.Endpoints = boot.Endpoints
		}
		return nil
	case u.newToken:
		return cli.Usagef("cannot create a token: there is no server to join at\ngive --servers too, or `userdata: {servers: […]}` in the environment")
	case p.Node == "":
		return cli.Usagef("cannot make userdata: a machine claims its number by joining\ngive --servers, --ca and a token")
	case u.token+u.tokenFile != "" || len(p.CA) > 0:
		return cli.Usagef("cannot make userdata: there is no server to join at\ngive --servers too")
	case len(u.connection.Endpoints) == 0: // the default is this machine
		return cli.Usagef("cannot make userdata: the machine would reach neither etcd nor a server\ngive --endpoints or set PULLEY_ENDPOINTS; or, to join, give --servers, --ca and a token")
	}
	p.Endpoints, p.CACert = boot.Endpoints, boot.CACert
	return nil
}

// addToken adds the machine's join token. It creates a new token last, after all checks.
func (u *userdataOptions) addToken(c *cobra.Command, ref model.Ref) (err error) {
	u.plan.Token = u.token
	if u.tokenFile != "" {
		u.plan.Token, err = readToken(u.env, u.tokenFile)
	}
	if !u.newToken || err != nil {
		return err
	}
	u.plan.Token = boots.PlaceholderToken
	if u.form == nocloud {
		_, err = u.seed()
	} else {
		_, err = userdata.Render(u.plan, userdata.Form(u.form))
	}
	if err != nil {
		return err
	}
	r := tokens.Request{Ref: ref, Lifetime: u.expires, Why: "userdata"}
	if r.Node = u.plan.Node; r.Node != "" {
		r.RoleIs = u.plan.Role
	} else {
		r.Role = u.plan.Role
	}
	if u.group == "" {
		r.Uses = 1
	}
	return u.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
		r.By = u.env.User
		text, t, err := tokens.Create(ctx, s, r, u.env.Now())
		switch {
		case err != nil:
			return err
		case u.dryRun:
			fmt.Fprintf(u.env.Stderr, "no token for %s was created: the userdata has a placeholder\n", cli.Clean(tokens.Scope(t)))
			return nil
		}
		u.plan.Token = text
		fmt.Fprintf(u.env.Stderr, "token %s for %s is valid until %s; every reader of this userdata can use it\n", t.ID, cli.Clean(tokens.Scope(t)), t.Expires.Format(time.RFC3339))
		return nil
	})
}

// seed returns the files of a NoCloud seed.
func (u *userdataOptions) seed() ([]userdata.SeedFile, error) {
	var network []byte
	if u.networkYML != "" {
		var err error
		if network, err = bounded.ReadFile(u.networkYML, userdataLimit); err != nil {
			return nil, fmt.Errorf("cannot read the network configuration: %w", err)
		}
	}
	return userdata.Seed(u.plan, network)
}

// writeSeed writes a NoCloud seed with mode 0600, because it may contain a token.
func (u *userdataOptions) writeSeed() error {
	files, err := u.seed()
	if err != nil {
		return err
	}
	err = os.MkdirAll(u.to, 0o700)
	for _, f := range files {
		if err == nil {
			err = atomicfile.WriteNamed(filepath.Join(u.to, f.Name), f.Text, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the seed to %s: %w", u.to, err)
	}
	return nil
}

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
	u.plan.AddFlags(f, "servers", "ca", "mirrors", "agent_urls", "puppet_package", "puppet_version", "package_repo", "proxy", "no_proxy", "schedule", "steps")
	f.StringVar(&u.signers, "allowed-signers", "", "file of the keys that may sign releases and data, see ssh-keygen(1)")
	f.StringArrayVar(&u.agents, "agent", nil, "file of the pulley-agent to run, for its checksum; may be repeated")
	f.StringArrayVar(&u.checksums, "agent-sha256", nil, "checksum of pulley-agent, as HEX or ARCH=HEX with amd64 or arm64 (default: the image's own agent)")
	f.StringArrayVar(&u.pre, "pre", nil, "script to run before anything is installed; may be repeated")
	f.StringArrayVar(&u.post, "post", nil, "script to run at the end; may be repeated")
}

// read adds the settings from the files that the flags name, and from PULLEY_SERVERS.
func (u *firstBootFlags) read(c *cobra.Command, ref model.Ref) (err error) {
	if s := u.env.Getenv("PULLEY_SERVERS"); s != "" && !c.Flags().Changed("servers") {
		u.plan.Servers = strings.Split(s, ",")
	}
	if u.plan.CA, err = boots.ParsePins(u.plan.CA); err != nil {
		return &cli.UsageError{Problem: err.Error()}
	}
	if u.signers != "" {
		if u.plan.AllowedSigners, err = boots.ReadSigners(u.signers, ref.Environment, u.env.Now()); err != nil {
			return err
		}
	}
	sums, err := boots.Checksums(u.checksums, u.agents)
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
	f, err := bounded.Open(file)
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
