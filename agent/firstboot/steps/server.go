package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pulley/agent"
	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/environments/settings"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/desired/control"
	"pulley/internal/firstboot"
	"pulley/internal/join"
	"pulley/internal/puppet"
)

// server provisions a machine into an existing Puppet server, if the promoted release names an environment of one. Its settings
// are those of the environment file in that release, which is authentic where the node has allowed signers.
type server struct {
	*boot
	read bool // whether the rest is known
	on   bool // the node has a Puppet server

	puppet.ServedNode
	certname string
	sslDir   string // of the machine's own Puppet

	turn      join.TurnAnswer // of serve, to a machine that waits
	published bool            // it published its facts, or failed to
}

// ssl returns the places of the node's certificate.
func (b *server) ssl() sslFiles { return sslFiles{b.sslDir, b.certname} }

// errNoRelease means that it is not known yet whether the node has a Puppet server.
var errNoRelease = errors.New("the environment has Puppet servers, and no release is promoted for this node\npromote one that names an environment of the Puppet server: `pulley promote VERSION -e ENV`; if there is none, publish it first: `pulley publish --puppet-environment NAME`")

// applies reports whether the node has a Puppet server.
func (b *server) applies(ctx context.Context) (bool, error) {
	err := b.find(ctx)
	return b.on, err
}

// find reads the promoted release, once. An environment without Puppet servers costs one request.
func (b *server) find(ctx context.Context) error {
	if b.read {
		return nil
	}
	c, err := b.known()
	if err != nil {
		return err
	}
	s, err := control.Open(c.Store)
	if err != nil {
		return err
	}
	has, err := s.Node.HasPuppetServers(ctx, c.Identity.Environment)
	if err = passingStore(errors.Join(err, s.Close())); err != nil {
		return err
	}
	if has {
		err = b.withNode(ctx, b.look)
	}
	b.read = err == nil
	return err
}

// withNode calls do with the node's agent and its lock.
func (b *server) withNode(ctx context.Context, do func(context.Context, *node.Node) error) error {
	c, err := b.known()
	if err != nil {
		return err
	}
	n, err := b.Setup(c).Open(ctx)
	if errors.Is(err, agent.ErrLocked) {
		return firstboot.Passing(err)
	}
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, n), n.Close())
}

// serverLeft chooses the server. The reason is in the log, and in the records of the runs.
func (b *server) serverLeft(ctx context.Context) (string, error) {
	if err := b.find(ctx); err != nil || !b.on {
		return "", err
	}
	return "use " + b.Choice.String(), nil
}

func (b *server) useServer(context.Context) error {
	if b.Choice.Server != "" {
		return nil
	}
	if b.Choice.Reason == settings.ChoiceNoFile {
		return fmt.Errorf("%s\nwrite them into environments/ENVIRONMENT.yaml; then publish and promote it", b.Choice)
	}
	return fmt.Errorf("%s\nadd the value to a server's attributes, or name a fallback, in the environment file; then publish and promote it", b.Choice)
}

// chosen returns the chosen server.
func (b *server) chosen(ctx context.Context) (settings.PuppetServer, error) {
	if err := b.find(ctx); err != nil {
		return settings.PuppetServer{}, err
	}
	if b.Choice.Server == "" {
		return settings.PuppetServer{}, b.useServer(ctx)
	}
	return b.ServedNode.Server, nil
}

// change is the remaining change of a text file: nil if there is none.
type change struct{ path, text string }

func (b *server) changeOf(path string, with func(old string) string) (*change, error) {
	old, err := bounded.ReadFile(path, nodeconfig.MaxFileBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if text := with(string(old)); err != nil && text != "" || text != string(old) {
		return &change{path, text}, nil
	}
	return nil, nil
}

// write replaces a file at once: it is never seen half written, and keeps its mode.
func (b *server) write(c *change, step firstboot.Name) error {
	if c == nil {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(c.path), 0o755)
	if err == nil {
		err = atomicfile.Replace(c.path, []byte(c.text), 0o644)
	}
	if errors.Is(err, syscall.EBUSY) { // as in containers: no rename replaces it
		err = fmt.Errorf("it is a mount of its own: %w", err)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w\nif something else manages this file, leave the step out: --steps %s=off; on this machine, write `%[3]s: \"off\"` below `steps` of %[4]s",
			c.path, err, step, b.PlanPath)
	}
	return nil
}

// hosts returns the change of /etc/hosts: the names of a server that has only an address.
func (b *server) hosts(ctx context.Context) (*change, error) {
	s, err := b.chosen(ctx)
	if err != nil {
		return nil, err
	}
	address, numeric := s.IP()
	if !numeric {
		address = netip.Addr{}
	}
	return b.changeOf(b.path("etc/hosts"), func(old string) string { return withServerHosts(old, address, s.CertificateName()) })
}

func (b *server) hostsLeft(ctx context.Context) (string, error) {
	c, err := b.hosts(ctx)
	if err != nil || c == nil {
		return "", err
	}
	return "name the Puppet server in " + c.path, nil
}

func (b *server) writeHosts(ctx context.Context) error {
	c, err := b.hosts(ctx)
	if err != nil {
		return err
	}
	return b.write(c, firstboot.Hosts)
}

// puppetConf returns the change of puppet.conf of the machine's own Puppet.
func (b *server) puppetConf(ctx context.Context) (*change, error) {
	s, err := b.chosen(ctx)
	if err != nil {
		return nil, err
	}
	conf := map[string]string{}
	maps.Copy(conf, b.Settings.Settings)
	if conf["factpath"] != "" {
		conf["factpath"] = settings.FactPath(settings.AgentFacts, conf)
	}
	conf["certname"], conf["server"], conf["environment"] = b.certname, s.CertificateName(), b.Environment
	if s.Port != 0 && s.Port != settings.DefaultPort {
		conf["serverport"] = strconv.Itoa(s.Port)
	}
	return b.changeOf(filepath.Join(puppet.ConfDir(b.Root, b.sslDir), "puppet.conf"), func(old string) string { return withAgentSettings(old, conf) })
}

func (b *server) confLeft(ctx context.Context) (string, error) {
	c, err := b.puppetConf(ctx)
	if err != nil || c == nil {
		return "", err
	}
	return "write the settings of Puppet's own agent into " + c.path, nil
}

func (b *server) writeConf(ctx context.Context) error {
	c, err := b.puppetConf(ctx)
	if err != nil {
		return err
	}
	return b.write(c, firstboot.PuppetConf)
}

// turnLeft asks pulley serve for the machine's turn.
func (b *server) turnLeft(ctx context.Context) (string, error) {
	if err := b.find(ctx); err != nil || !b.on {
		return "", err
	}
	return b.askTurn(ctx)
}

// askTurn returns what the machine waits for; "" is its turn. A machine that did not join has no queue.
func (b *server) askTurn(ctx context.Context) (string, error) {
	c, err := b.known()
	if err != nil || !c.Joined() || len(c.Servers) == 0 {
		return "", err
	}
	client, err := c.ServeClient(c.Servers)
	if err != nil {
		return "", err
	}
	a, err := client.Turn(ctx, b.machine())
	if err != nil {
		return "", passingJoin(err)
	}
	if a.Granted {
		return "", nil
	}
	b.turn = a
	return "wait for its turn: " + a.String(), nil
}

func (b *server) waitForTurn(ctx context.Context) error {
	left, err := b.askTurn(ctx)
	if err != nil || left == "" {
		return err
	}
	if b.turn.Wait == join.WaitFiltered && !b.published {
		b.published = true
		if err := b.withNode(ctx, b.publishFacts); err != nil {
			b.Log.Warn("cannot publish the facts of this machine, which puppet.provision.where may read", "err", err)
		} else {
			b.turn.After = time.Second
		}
	}
	return &firstboot.PassingError{Err: errors.New(strings.TrimPrefix(left, "wait for its turn: ")), After: b.turn.After, Known: b.turn.Wait != join.WaitFiltered}
}

// publishFacts publishes the facts of a machine that never ran Puppet: an expression that does not select it may read them.
func (b *server) publishFacts(ctx context.Context, n *node.Node) error {
	job, done, err := n.Stage(ctx)
	if err != nil {
		return passingStore(err)
	}
	defer done()
	facts, err := n.Puppet.KnownFacts(ctx, job)
	if err != nil {
		return err
	}
	s, err := control.Open(n.Config.Store)
	if err == nil {
		err = errors.Join(s.Node.PublishFacts(ctx, job.Identity, facts), s.Close())
	}
	return passingStore(err)
}

// inTurn wraps the work of a step that needs the machine's turn: a machine that failed has lost it, and another one may have it.
func (b *server) inTurn(left func(context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		work, err := left(ctx)
		if err != nil || work == "" || b.plan.Steps[string(firstboot.Turn)] != "" {
			return work, err
		}
		if err := b.waitForTurn(ctx); err != nil {
			return "", err
		}
		return work, nil
	}
}

// daemonLeft concerns environments whose nodes have Puppet's own daemon instead of the agent's runs.
func (b *server) daemonLeft(ctx context.Context) (string, error) {
	if err := b.find(ctx); err != nil || !b.on || b.Settings.Enforce != settings.EnforceDaemon {
		return "", err
	}
	if !b.systemd() {
		return "", errors.New("this machine has no systemd to start the service puppet\nstart it by a program of your own: --steps daemon=/PROGRAM")
	}
	if b.Root == "/" {
		_, disabled := systemctl(ctx, "--quiet", "is-enabled", puppetService)
		if _, inactive := systemctl(ctx, "--quiet", "is-active", puppetService); disabled == nil && inactive == nil {
			return "", nil
		}
	}
	return "enable the service " + puppetService, nil
}

// puppetService is the unit of Puppet's own daemon, in the packages of the distributions, Puppet and OpenVox.
const puppetService = "puppet.service"

func (b *server) enableDaemon(ctx context.Context) error {
	args := []string{"enable", "--now", puppetService}
	if b.Root != "/" {
		args = []string{"--root", b.Root, "enable", puppetService}
	}
	_, err := systemctl(ctx, args...)
	return err
}
