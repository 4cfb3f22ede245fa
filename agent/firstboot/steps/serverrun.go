package steps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/agent"
	"pulley/agent/node"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/model"
)

// look stages the promoted release, and reads what it says about the Puppet server of this node.
func (b *server) look(ctx context.Context, n *node.Node) error {
	job, done, err := n.Stage(ctx)
	if err != nil {
		return passingStore(err)
	}
	defer done()
	if job.Tree == "" {
		return firstboot.Passing(errNoRelease)
	}
	found, err := n.Puppet.ServedNode(ctx, job)
	if err != nil || found == nil {
		return err
	}
	b.on, b.ServedNode, b.certname, b.sslDir = true, *found, job.Certname, n.Puppet.SSLDir()
	return nil
}

// bootstrapLeft concerns environments with an environment of the server for first runs.
func (b *server) bootstrapLeft(ctx context.Context) (string, error) {
	if err := b.find(ctx); err != nil || !b.on || b.Settings.Bootstrap == "" {
		return "", err
	}
	return "run Puppet in the environment " + b.Settings.Bootstrap + " of the server", nil
}

// runBootstrap runs Puppet once in the bootstrap environment. Its record reaches etcd with the next tick.
func (b *server) runBootstrap(ctx context.Context) error {
	return b.keepTurn(ctx, func(ctx context.Context) error { return b.withNode(ctx, b.bootstrap) })
}

func (b *server) bootstrap(ctx context.Context, n *node.Node) error {
	job, done, err := n.Stage(ctx)
	if err != nil {
		return passingStore(err)
	}
	defer done()
	begun := b.Env.Now().UTC()
	job.ID = begun.Format("20060102T150405Z") + "-0000" // those of ticks begin at 1
	result, err := n.Puppet.ApplyServed(ctx, job, b.Settings.Bootstrap)
	if err != nil {
		return err
	}
	run := model.Run{ID: job.ID, Node: job.Node, Target: job.Target, Action: model.Enforce, Reason: model.ReasonFirstBoot, Started: begun, Duration: b.Env.Now().Sub(begun), Result: result}
	if err := b.withDisk(func(d *agent.Disk) error { return d.SpoolRun(run) }); err != nil {
		return err
	}
	return judged(result)
}

// judged returns the error of a run that did not succeed. A server that went away is a temporary one.
func judged(r model.Result) error {
	if r.Kind == model.Success && r.Outcome != model.Failed {
		return nil
	}
	err := fmt.Errorf("the run did not succeed: %s", cli.Clean(r.Problem.String()))
	if serverGone(r.Problem) {
		return firstboot.Passing(err)
	}
	return err
}

// serverGone reports whether a run failed by its server, before or during the catalog.
func serverGone(p model.Problem) bool {
	return p.Code == model.PuppetServerAway || p.Code == model.PuppetServerLost
}

// firstRunLeft is the first tick of the node. It also precedes Puppet's own daemon: until it succeeded, ticks run Puppet.
func (b *server) firstRunLeft(ctx context.Context) (string, error) {
	if err := b.find(ctx); err != nil || !b.on {
		return "", err
	}
	return "run Puppet in the environment " + b.Environment + " of the server", nil
}

// runFirst does one tick of the node. A node that an operator holds, or that waits for its turn in a rollout, takes its target
// later by itself.
func (b *server) runFirst(ctx context.Context) error {
	return b.keepTurn(ctx, b.tick)
}

func (b *server) tick(ctx context.Context) error {
	c, err := b.known()
	if err != nil {
		return err
	}
	report, err := b.Setup(c).Tick(ctx, agent.Options{})
	if errors.Is(err, agent.ErrLocked) {
		return firstboot.Passing(err)
	}
	if err != nil {
		return err
	}
	switch d := report.Decision; {
	case report.Run != nil:
		return judged(report.Run.Result)
	case report.Err != nil:
		return report.Err
	case d.Blocked.Reason == model.ReasonServerAway || d.Reason == model.ReasonServerAway || d.Reason == model.ReasonUnreachable || report.Unreachable:
		return firstboot.Passing(errors.New(d.Sentence()))
	case d.Blocked.Reason == model.ReasonBackoff && d.Blocked.Params.Attempt != nil && serverGone(d.Blocked.Params.Attempt.Problem):
		return firstboot.Passing(errors.New(d.Blocked.Sentence()))
	case d.Blocked.Reason == model.ReasonBackoff || d.Blocked.Reason == model.ReasonStuck || d.Blocked.Reason == model.ReasonRefused:
		return errors.New(d.Blocked.Sentence())
	default:
		b.Log.Info("the node runs later", "reason", d.Reason, "sentence", d.Sentence())
		return nil
	}
}

// turnRenewal is the pause between two requests that keep a machine's turn during a long run.
const turnRenewal = time.Minute

// keepTurn does the work of a step while serve knows that the machine still works.
func (b *server) keepTurn(ctx context.Context, do func(context.Context) error) error {
	client, err := b.serve()
	if errors.Is(err, errNotJoined) {
		return do(ctx)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(turnRenewal)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if _, err := client.Turn(ctx, b.machine()); err != nil && ctx.Err() == nil {
				b.Log.Warn("cannot keep the machine's turn", "err", err)
			}
		}
	}()
	err = do(ctx)
	cancel()
	<-done
	return err
}
