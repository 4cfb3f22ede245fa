// Command consumers runs many nodes that see the host list in one process, each with its own connection and folder: the ticks
// of the agent, with a Puppet that only counts its runs. It prints "ready" when all have run once, and ticks until its
// standard input ends. Then it prints for each node its runs, the reads of the host list, and the ticks that did not reach etcd.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/agent/stage"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "consumers:", err)
		os.Exit(1)
	}
}

func run(stdin io.Reader, stdout io.Writer, args []string) error {
	if len(args) != 6 {
		return errors.New("usage: consumers ENDPOINT FOLDER ROLE NUMBER SECONDS, with the time between two ticks")
	}
	number, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	seconds, err := strconv.Atoi(args[5])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	all := make([]*consumer, number)
	for i := range all {
		if all[i], err = open(args[1], filepath.Join(args[2], strconv.Itoa(i)), args[3], i+1); err != nil {
			return err
		}
		defer all[i].content.Close()
		if err := all[i].tick(ctx); err != nil {
			return err
		}
		all[i].runs, all[i].reads = 0, 0
	}
	fmt.Fprintln(stdout, "ready")
	over, end := context.WithCancel(ctx)
	var ticking sync.WaitGroup
	every := time.Duration(seconds) * time.Second
	for i, c := range all {
		ticking.Go(func() { c.err = c.ticks(over, every*time.Duration(i)/time.Duration(number), every) })
	}
	_, err = io.Copy(io.Discard, stdin)
	end()
	ticking.Wait()
	for _, c := range all {
		err = errors.Join(err, c.err)
		fmt.Fprintln(stdout, c.runs, c.reads, c.missed)
	}
	return err
}

// consumer is a node. It counts the runs of Puppet, the reads of the host list, and the ticks that did not reach etcd.
type consumer struct {
	*agent.Agent
	content *stage.Content
	err     error

	runs, reads, missed int
}

func open(endpoint, root, role string, number int) (*consumer, error) {
	name := fmt.Sprint(role, number)
	log := slog.New(slog.DiscardHandler)
	c := &consumer{}
	config := nodeconfig.Config{
		Root: root, Identity: model.Identity{Node: name, Certname: name, Role: role, Environment: "dev", PuppetEnvironment: "dev"},
		Settings: model.DefaultSettings(), Store: etcd.Config{Endpoints: []string{endpoint}, Timeout: time.Minute},
	}
	config.DiskReserveMiB = 1 // the nodes share one file system
	if err := os.MkdirAll(config.StateDir(), 0o700); err != nil {
		return nil, err
	}
	disk, err := agent.OpenDisk(config.StateDir())
	if err != nil {
		return nil, err
	}
	if c.content, err = stage.Open(config, time.Now, log); err != nil {
		return nil, err
	}
	c.Agent = &agent.Agent{
		Identity: config.Identity, Settings: config.Settings, Version: "1.0.0", MachineID: fmt.Sprintf("%032d", number),
		Control: c.content.Store.Node, Content: c.content, Puppet: c, Machine: c, Memory: disk, Hosts: reader{c.content, c},
		Now: time.Now, Log: log, VerifyTimeout: time.Minute,
	}
	return c, nil
}

// ticks runs ticks like cron, after a first wait.
func (c *consumer) ticks(ctx context.Context, wait, every time.Duration) error {
	for next := time.After(wait); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
		next = time.After(every)
		if err := c.tick(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
}

func (c *consumer) tick(ctx context.Context) error {
	r := c.Tick(ctx, agent.Options{})
	if r.Unreachable { // on a busy machine; the next tick repeats it
		c.missed++
		return nil
	}
	if r.Err != nil {
		return fmt.Errorf("the tick of %s failed: %w", c.Identity.Node, r.Err)
	}
	return nil
}

// reader counts the reads of the host list.
type reader struct {
	agent.Hosts
	*consumer
}

func (r reader) FetchHosts(ctx context.Context, id model.Identity) error {
	r.reads++
	return r.Hosts.FetchHosts(ctx, id)
}

// Blocked lets Puppet run.
func (c *consumer) Blocked() *model.Blocked { return nil }

func (c *consumer) Reach(context.Context, model.Job) *model.Problem { return nil }

// Apply counts.
func (c *consumer) Apply(context.Context, model.Job) (model.Result, error) {
	c.runs++
	return model.Result{Kind: model.Success, Outcome: model.Unchanged}, nil
}

// The machine has no files and no hooks.

func (c *consumer) Remember() error                         { return nil }
func (c *consumer) Restore() error                          { return nil }
func (c *consumer) Verify(context.Context, model.Job) error { return nil }
func (c *consumer) Tell(context.Context, model.Job, []byte, string, func(string) error) error {
	return nil
}
func (c *consumer) Retire(context.Context, model.Job, model.Prose) error { return nil }
