package conform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"pulley/internal/machines"
)

// Config is what the checks need to know of a driver. Only New has to be given.
type Config struct {
	// New opens the provider for the fleet of a mark, as another program would: nothing is shared but the provider itself.
	New func(mark machines.Mark) (machines.Provider, error)
	// Order says what a machine of that name is ordered as, for a provider that needs a flavor or an image. Without userdata
	// it gets a script that does nothing.
	Order func(name string) machines.Order
	// Userdata reads what a running machine was given; without it nothing is known of that.
	Userdata func(ctx context.Context, m machines.Machine) ([]byte, error)
	// Labels reads what labels a machine has; without it nothing is known of that.
	Labels func(ctx context.Context, m machines.Machine) (map[string]string, error)
	// Script is what machines do with their userdata, in the words of sh: where they keep none of it, it may copy "$0".
	Script string
	// Owner is whose the machines are while it lasts, of NewOwner; "" is a new one.
	Owner string
	// Foreign makes a machine without any mark and returns what says whether it is still as it was. Who gives it cleans up.
	Foreign func(ctx context.Context, name string) (unharmed func(context.Context) error, err error)

	Call time.Duration // how long one call may take; 0 is DefaultCall
	Boot time.Duration // how long a machine may take until it runs; 0 is DefaultBoot
	Gone time.Duration // how long a machine that was deleted may be listed; 0 is DefaultGone
	Poll time.Duration // between two looks; 0 is DefaultPoll
}

// Defaults of a Config, for clouds. Whoever tests a model has shorter ones.
const (
	DefaultCall = 5 * time.Minute
	DefaultBoot = 10 * time.Minute
	DefaultGone = 10 * time.Minute
	DefaultPoll = 2 * time.Second
)

// Result is what came of one check.
type Result struct {
	Check   string        // what was checked, a sentence
	Err     error         // why it failed
	Skipped string        // why it was not checked
	Took    time.Duration //
}

// Run does all checks in order and reports each when it is done. Its error says how many failed, or what was left behind.
func Run(ctx context.Context, config Config, report func(Result)) error {
	s, err := newSuite(config)
	if err != nil {
		return fmt.Errorf("cannot check a driver: %w", err)
	}
	failed, skipped := 0, 0
	for i, check := range checks {
		start := time.Now()
		result := Result{Check: check.name}
		switch err := check.do(ctx, s); {
		case ctx.Err() != nil:
			return errors.Join(fmt.Errorf("cannot go on: %w", context.Cause(ctx)), s.cleanUp(ctx))
		case errors.Is(err, errSkip):
			result.Skipped = strings.TrimSuffix(err.Error(), ": "+errSkip.Error())
			skipped++
		case err != nil:
			result.Err = err
			failed++
		}
		result.Took = time.Since(start)
		report(result)
		s.harmful = failed > 0
		if i == 0 && failed > 0 { // what is listed may be other people's: nothing is made beside it, and nothing deleted
			return fmt.Errorf("cannot go on: %w", result.Err)
		}
	}
	err = s.cleanUp(ctx)
	if failed > 0 {
		err = errors.Join(tally(failed, skipped), err)
	}
	return err
}

// tally counts what failed among what was checked: of what was skipped nothing is known.
func tally(failed, skipped int) error {
	text := fmt.Sprintf("%d of %d checks failed", failed, len(checks)-skipped)
	switch skipped {
	case 0:
		return errors.New(text)
	case 1:
		return errors.New(text + ", 1 was skipped")
	}
	return fmt.Errorf("%s, %d were skipped", text, skipped)
}

// NewOwner returns an owner that nobody has. Who tells it before Run can Clean afterwards, whatever ended that.
func NewOwner() string { return ownerPrefix + randomWord() }

const ownerPrefix = "conform-"

var ownerPattern = regexp.MustCompile(`^` + ownerPrefix + `[a-z]{6}$`)

// Clean deletes what a run of that owner left behind.
func Clean(ctx context.Context, config Config, owner string) error {
	config.Owner = owner
	s, err := newSuite(config)
	if err != nil {
		return fmt.Errorf("cannot clean up: %w", err)
	}
	return s.cleanUp(ctx)
}

// Checks returns the names of all checks, in their order.
func Checks() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// errSkip ends a check that can't be made; what it is wrapped in says why.
var errSkip = errors.New("not checked")

func skip(why string) error { return fmt.Errorf("%s: %w", why, errSkip) }

// suite is what checks share: fleets, and the machines that some of them need and others made.
type suite struct {
	config Config
	word   string // in every name, so that two runs at one provider don't meet

	harmful bool // a check failed: what could reach other people's machines is left alone

	ours   *fleet
	again  *fleet // ours, as another program sees it
	prefix *fleet // its name begins like ours
	owner  *fleet // of the same name, and somebody else's

	took time.Duration // of a create

	second  machines.Machine // of ours, from then on
	first   machines.Machine // of ours, from its creation to its deletion
	deleted machines.Machine // of ours
	theirs  machines.Machine // of prefix
}

func newSuite(config Config) (*suite, error) {
	config.Call = cmp.Or(config.Call, DefaultCall)
	config.Boot = cmp.Or(config.Boot, DefaultBoot)
	config.Gone = cmp.Or(config.Gone, DefaultGone)
	config.Poll = cmp.Or(config.Poll, DefaultPoll)
	mine := cmp.Or(config.Owner, NewOwner())
	if !ownerPattern.MatchString(mine) { // others' machines are not for checks
		return nil, fmt.Errorf("%q is not an owner that a check had", mine)
	}
	others := mine + "x"
	s := &suite{config: config, word: strings.TrimPrefix(mine, ownerPrefix)}
	for _, f := range []struct {
		to   **fleet
		mark machines.Mark
	}{
		{&s.ours, machines.Mark{Owner: mine, Fleet: "conform"}},
		{&s.again, machines.Mark{Owner: mine, Fleet: "conform"}},
		{&s.prefix, machines.Mark{Owner: mine, Fleet: "conform@t42"}},
		{&s.owner, machines.Mark{Owner: others, Fleet: "conform"}},
	} {
		p, err := config.New(f.mark)
		if err != nil {
			return nil, err
		}
		*f.to = &fleet{Provider: p, mark: f.mark, config: config, word: s.word}
	}
	return s, nil
}

// randomWord is of letters: digits are for the numbers of nodes.
func randomWord() string {
	word := make([]byte, 6)
	for i := range word {
		word[i] = 'a' + byte(rand.IntN(26))
	}
	return string(word)
}

// order returns the order of the n-th machine.
func (s *suite) order(n int) machines.Order { return s.orderOf(fmt.Sprintf("conform%s%d", s.word, n)) }

func (s *suite) orderOf(name string) machines.Order {
	var o machines.Order
	if s.config.Order != nil {
		o = s.config.Order(name)
	}
	o.Name = name
	o.Node = cmp.Or(o.Node, strings.ReplaceAll(name, "-", "_"))
	o.Role = cmp.Or(o.Role, "conform")
	if o.Userdata == nil {
		o.Userdata = []byte("#!/bin/sh\n# " + name + " " + randomWord() + "\n" + s.config.Script + "\nexit 0\n")
	}
	return o
}

// cleanUp deletes all that is left in the fleets of this run, also after the context has ended.
func (s *suite) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.Gone+s.config.Call)
	defer cancel()
	var errs []error
	for _, f := range []*fleet{s.ours, s.prefix, s.owner} {
		if err := f.empty(ctx); err != nil {
			errs = append(errs, fmt.Errorf("cannot clean up fleet %s: %w\ndelete its machines by the provider's own means", f.mark, err))
		}
	}
	return errors.Join(errs...)
}
