package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/fleet"
	"pulley/internal/pki"
	"pulley/internal/store"
	"pulley/userdata"
)

const (
	defaultTokenLife = 24 * time.Hour
	maxTokenLife     = 90 * 24 * time.Hour
)

// placeholderToken is as long as a real one, and is what the rest is checked with before a token is made.
const placeholderToken = "plt_00000000_0000000000000000000000000000000000000000000000000000000000000000"

// maxStepBytes bounds the file of a step of one's own; userdata as a whole has less.
const maxStepBytes = 64 << 10

// who says which node the machine becomes, or of which role, and how it is called then.
func (u *userdataOptions) who(ref environments.Ref, args []string) (environments.Ref, error) {
	u.told.Role = first(u.group, u.role)
	hostname := "node"
	switch {
	case len(args) == 0 && u.told.Role == "":
		return ref, cli.Usagef("`pulley userdata` takes one node, like controller1, or --role ROLE, or --group ROLE")
	case u.role != "" && u.group != "":
		return ref, cli.Usagef("--role and --group exclude each other")
	case len(args) > 0 && u.group != "":
		return ref, cli.Usagef("--group is for many machines: leave out %s", quoted(args[0]))
	case len(args) == 0:
		if err := environments.CheckRole(u.told.Role); err != nil {
			return ref, err
		}
	default:
		n, err := environments.ParseNode(args[0])
		// One that keeps its name is there already: its name may look like that of a node of another role.
		member := u.role != "" && (err != nil || u.role != n.Role && u.hostname == "keep")
		switch {
		case member:
			if err := environments.CheckMember(args[0]); err != nil {
				return ref, err
			}
			u.told.Node, hostname = args[0], ""
		case err == nil && u.role != "" && u.role != n.Role:
			return ref, cli.Usagef("%s is of role %s, not of %s\nfor a machine that exists and keeps this name, give --hostname keep", n, n.Role, u.role)
		case err == nil:
			if ref, err = ref.Of(n); err != nil {
				return ref, err
			}
			u.told.Node, u.told.Role, hostname = n.String(), n.Role, n.Hostname()
		default:
			return ref, fmt.Errorf("%w\nfor a machine of another name, give its role: --role ROLE", err)
		}
	}
	u.told.Environment = ref.String()
	switch u.hostname {
	case "":
		u.told.Hostname = hostname
	case "keep":
		u.told.Hostname = ""
	case "node":
		if u.told.Hostname = hostname; hostname == "" {
			u.told.Hostname = u.told.Node
		}
	default:
		u.told.Hostname = u.hostname
	}
	if u.group != "" {
		u.told.Leave = "poweroff"
	}
	return ref, nil
}

func first(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

func (u *userdataOptions) checkForm() error {
	forms := []string{nocloud}
	for _, f := range userdata.Forms {
		forms = append(forms, string(f))
	}
	switch {
	case !slices.Contains(forms, u.form):
		return cli.Usagef("there is no format %s; there are %s", quoted(u.form), strings.Join(forms, ", "))
	case u.form == nocloud && u.to == "" && u.iso == "":
		return cli.Usagef("where to? give --to DIR for a seed folder, or --iso FILE")
	case u.to != "" && u.iso != "":
		return cli.Usagef("--to and --iso exclude each other")
	case u.form != nocloud && u.to+u.iso+u.networkYML != "":
		return cli.Usagef("--to, --iso and --network-config are of --format nocloud")
	}
	return nil
}

// stored takes the environment's words for a machine that gets a new token, where the command line does not say where it joins;
// what the flags say stands for them. Scripts and steps are not taken: a machine that exists already has its own.
func (u *userdataOptions) stored(c *cobra.Command, ref environments.Ref) error {
	if !u.newToken || len(u.told.Servers) > 0 || u.env.Getenv("PULLEY_SERVERS") != "" {
		return nil
	}
	return u.withStore(c, func(ctx context.Context, s *store.Store) error {
		e, _, err := s.Environments.MustSpec(ctx, ref)
		if err != nil {
			return err
		}
		if err := fleet.CheckRole(e, u.told.Role); err != nil {
			return err
		}
		r, _ := e.Role(u.told.Role)
		words := e.UserdataOf(r)
		for _, l := range []struct {
			to    *[]string
			words []string
		}{{&u.told.Servers, words.Servers}, {&u.told.CA, words.CA}, {&u.told.Mirrors, words.Mirrors}, {&u.told.AgentURLs, words.AgentURLs}} {
			if len(*l.to) == 0 {
				*l.to = l.words
			}
		}
		for _, s := range []struct {
			to   *string
			word string
		}{
			{&u.told.PuppetPackage, words.PuppetPackage}, {&u.told.PuppetVersion, words.PuppetVersion}, {&u.told.PackageRepo, words.PackageRepo},
			{&u.told.Proxy, words.Proxy}, {&u.told.Schedule, words.Schedule},
		} {
			*s.to = first(*s.to, s.word)
		}
		if u.files.signers == "" && words.AllowedSigners != "" { // else signers and agent read them
			u.told.AllowedSigners = []byte(words.AllowedSigners)
		}
		if len(words.AgentSHA256) > 0 {
			u.told.AgentSHA256 = checksums(words.AgentSHA256)
		}
		return nil
	})
}

// reach says where the machine joins and finds etcd. An operator's own endpoints are not taken for a machine that is told
// them when it joins.
func (u *userdataOptions) reach(c *cobra.Command) error {
	u.connection.Fill(u.env)
	if s := u.env.Getenv("PULLEY_SERVERS"); s != "" && !c.Flags().Changed("servers") && !c.Flags().Changed("endpoints") {
		u.told.Servers = strings.Split(s, ",")
	}
	config := u.connection.Config()
	u.told.Prefix = config.Prefix
	if len(u.told.Servers) == 0 {
		switch {
		case u.told.Node == "":
			return cli.Usagef("where does the machine claim its number? give --servers, --ca and a token")
		case u.token+u.tokenFile != "" || len(u.told.CA) > 0:
			return cli.Usagef("where does the machine join? give --servers too")
		case len(u.connection.Endpoints) == 0:
			return cli.Usagef("which etcd is the machine to reach? give --endpoints or set PULLEY_ENDPOINTS\nor, to join, --servers, --ca and a token")
		}
		u.told.Endpoints = config.Endpoints
		if config.CACert != "" {
			var err error
			if u.told.CACert, err = os.ReadFile(config.CACert); err != nil {
				return fmt.Errorf("cannot read the CA certificate: %w", err)
			}
		}
		return nil
	}
	if c.Flags().Changed("endpoints") {
		u.told.Endpoints = config.Endpoints
	}
	if len(u.told.CA) > 0 {
		for i, pin := range u.told.CA {
			var err error
			if u.told.CA[i], err = pki.ParseFingerprint(pin); err != nil {
				return cli.Usagef("%v", err)
			}
		}
		return nil
	}
	if config.CACert == "" {
		return cli.Usagef("how does the machine know the servers? give --ca sha256:…, or --cacert with their CA's certificates\n`pulley ca show` prints the pins on the machine of `pulley serve`")
	}
	var err error
	u.told.CA, err = pinsOf(config.CACert)
	return err
}

// pinsOf are the pins of a bundle: of the last two, as the one before them is that of a CA which signs no more.
func pinsOf(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the CA certificate: %w", err)
	}
	certs, err := pki.ParseCertificates(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read the CA certificate %s: %w", file, err)
	}
	var pins []string
	for _, c := range certs[max(0, len(certs)-2):] {
		pins = append(pins, pki.Fingerprint(c))
	}
	return pins, nil
}

func (u *firstBootFlags) signers(ref environments.Ref) (err error) {
	if u.files.signers != "" {
		u.told.AllowedSigners, err = u.files.signersOf(ref, u.env.Now())
	}
	return err
}

func (u *userdataOptions) tokenGiven() (string, error) {
	switch u.tokenFile {
	case "":
		return u.token, nil
	case "-":
		return tokenFrom(u.env.Stdin, "standard input")
	}
	f, err := os.Open(u.tokenFile)
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	defer f.Close()
	return tokenFrom(f, u.tokenFile)
}

func tokenFrom(r io.Reader, where string) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, 4<<10))
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("cannot read the token: %s is empty", where)
	}
	return token, nil
}

// agent finds the checksums of the agent, each under its architecture as Go calls it; "" is for any.
func (u *firstBootFlags) agent() error {
	sums := map[string]string{}
	add := func(arch, sum, from string) error {
		if other, there := sums[arch]; there && other != sum {
			return cli.Usagef("%s is a second agent for %s", quoted(from), first(arch, "any machine"))
		}
		sums[arch] = sum
		return nil
	}
	for _, s := range u.checksums {
		arch, sum, named := strings.Cut(s, "=")
		if !named {
			arch, sum = "", s
		}
		if err := add(arch, strings.ToLower(strings.TrimPrefix(sum, "sha256:")), s); err != nil {
			return err
		}
	}
	for _, file := range u.agents {
		arch, sum, err := checksum(file)
		if err == nil {
			err = add(arch, sum, file)
		}
		if err != nil {
			return err
		}
	}
	if len(sums) > 0 {
		u.told.AgentSHA256 = sums
	}
	return nil
}

// checksum reads a program for Linux.
func checksum(file string) (arch, sum string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("cannot read the agent: %w", err)
	}
	program, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return "", "", fmt.Errorf("cannot use %s as the agent: it is no program for Linux", file)
	}
	switch program.Machine {
	case elf.EM_X86_64:
		arch = "amd64"
	case elf.EM_AARCH64:
		arch = "arm64"
	default:
		return "", "", fmt.Errorf("cannot use %s as the agent: it is for %s, and there are amd64 and arm64", file, program.Machine)
	}
	digest := sha256.Sum256(text)
	return arch, hex.EncodeToString(digest[:]), nil
}

// ownSteps reads the scripts that run before and after the steps, in the order in which they were given, and what runs
// instead of a step.
func (u *firstBootFlags) ownSteps() error {
	for _, s := range u.steps {
		name, instead, said := strings.Cut(s, "=")
		if !said {
			return cli.Usagef("cannot use --step %s: give NAME=off, or NAME=/PROGRAM", quoted(s))
		}
		if u.told.Steps == nil {
			u.told.Steps = map[string]string{}
		}
		u.told.Steps[name] = instead
	}
	for _, own := range []struct {
		files []string
		to    *[]userdata.Step
	}{{u.pre, &u.told.Pre}, {u.post, &u.told.Post}} {
		for i, file := range own.files {
			info, err := os.Stat(file)
			if err == nil && info.Size() > maxStepBytes {
				err = fmt.Errorf("%s is larger than %s", file, cli.Bytes(maxStepBytes))
			}
			var text []byte
			if err == nil {
				text, err = os.ReadFile(file)
			}
			if err != nil {
				return fmt.Errorf("cannot read a step: %w", err)
			}
			*own.to = append(*own.to, userdata.Step{Name: fmt.Sprintf("%02d-%s", (i+1)*10, filepath.Base(file)), Text: text})
		}
	}
	return nil
}
