package serve

import (
	"context"
	"errors"
	"slices"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/puppetserver"
)

const (
	cleanupInterval = 5 * time.Second
	unreadInterval  = time.Minute      // without credentials: of looks at environments that could not be read at a removal
	cleanupPause    = 10 * time.Second // after a failure of a server; doubled with each further one
	maxCleanupPause = 5 * time.Minute
)

// cleanups removes from Puppet servers what they have of removed nodes: certificates, and nodes in PuppetDB. Several serves may do
// the same: each step may be repeated. It is not safe for concurrent use.
type cleanups struct {
	*Tasks
	dir    string // of the credentials; "": another serve has them
	failed pauses // of servers, by their URLs, and of single nodes there
}

// work does all that is due.
func (c *cleanups) work(ctx context.Context) error {
	all, damaged, err := access.JoinsIn(c.DB).Cleanups(ctx)
	var problems []error
	if len(damaged) > 0 {
		problems = append(problems, damagedError(damaged))
	}
	if err != nil || len(all) == 0 {
		return errors.Join(append(problems, err)...)
	}
	for i, one := range all {
		if one.Unread() {
			all[i], err = access.JoinsIn(c.DB).FindSteps(ctx, one)
			problems = append(problems, err)
		}
	}
	if c.dir == "" {
		return errors.Join(problems...)
	}
	own, err := puppetserver.LoadCredentials(c.dir) // at each round: they are renewed while serve runs
	if err != nil {
		return errors.Join(append(problems, err)...)
	}
	for _, one := range all {
		if ctx.Err() != nil {
			return errors.Join(append(problems, ctx.Err())...)
		}
		problems = append(problems, c.clean(ctx, one, own))
	}
	return errors.Join(problems...)
}

// clean works on one node. It stores what is left, and why.
func (c *cleanups) clean(ctx context.Context, of access.Cleanup, own puppetserver.Credentials) error {
	if rewound, err := c.rewound(ctx, of.Environment); err != nil || rewound { // the node may be back since then
		return err
	}
	log := c.Log.With("env", of.Environment, "node", of.Node)
	left := of
	left.Steps = nil
	for _, step := range of.Steps {
		if step.Kind == access.CleanUnread {
			left.Steps = append(left.Steps, step)
			continue
		}
		here := step.URL + " " + of.Environment.String() + " " + of.Node
		if c.failed.wait(step.URL, c.Now()) || c.failed.wait(here, c.Now()) {
			left.Steps = append(left.Steps, step)
			continue
		}
		returned, moved, failed := false, (*model.Ref)(nil), error(nil)
		err := access.JoinsIn(c.DB).AtPuppetCA(ctx, of.Certname, func(ctx context.Context) error {
			holder, err := access.JoinsIn(c.DB).Holder(ctx, of.Environment, of.Node)
			if err == nil && holder.Returned() {
				leaves, err := access.JoinsIn(c.DB).Leaves(ctx, of.Environment)
				if returned = err == nil && !leaves; leaves {
					err = etcd.ErrConflict
				}
				return err
			}
			if err != nil {
				return err
			}
			if moved, err = access.JoinsIn(c.DB).NamesakeAt(ctx, of.Environment, of.Node, step.URL); err == nil && moved == nil {
				failed = c.do(ctx, step, of, own)
			}
			return err
		})
		if returned {
			log.Info("a removed node is back: its join cleans its old certificate")
			left.Steps = nil
			break
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, etcd.ErrConflict): // another serve does the same, the next machine gets its certificate, or its environment is being destroyed
			left.Steps = append(left.Steps, step)
		case err != nil:
			return err
		case moved != nil:
			log.Info("a removed node stays at a Puppet server: a node of another environment has its name there", "kind", step.Kind, "url", step.URL, "other", moved)
		case failed == nil:
			c.failed.end(step.URL, here)
			log.Info("a removed node is gone from a Puppet server", "kind", step.Kind, "url", step.URL)
		default:
			var refused *puppetserver.Error
			if errors.As(failed, &refused) && refused.OfServer() { // the other steps there would fail as well
				here = step.URL
			}
			c.failed.begin(here, c.Now())
			if step.Problem = model.Prose(failed.Error()); !slices.Contains(of.Steps, step) {
				log.Warn("a Puppet server still has a removed node", "kind", step.Kind, "url", step.URL, "error", failed)
			}
			left.Steps = append(left.Steps, step)
		}
	}
	if slices.Equal(left.Steps, of.Steps) {
		return nil
	}
	return access.JoinsIn(c.DB).PutCleanup(ctx, left)
}

// do does one step.
func (c *cleanups) do(ctx context.Context, step access.CleanupStep, of access.Cleanup, own puppetserver.Credentials) error {
	if step.Kind == access.CleanPuppetDB {
		client, err := puppetserver.NewPuppetDB(step.URL, own, c.Now)
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Deactivate(ctx, of.Certname, c.Now())
	}
	client, err := puppetserver.NewNamed(step.URL, step.Name, own, c.Now)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Clean(ctx, of.Certname)
	return err
}
