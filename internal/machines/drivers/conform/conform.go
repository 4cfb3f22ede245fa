// Package conform checks that a driver does what machines.Provider promises, with real machines or with models, for `pulley
// provider test` and for tests (package conformtest).
//
// It owns the checks, their order and their names. It works in fleets of its own, under a new owner. It must never leave a machine,
// or touch machines that it did not make.
package conform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"pulley/internal/machines"
)

// Config describes a driver for the checks. Only New is required.
type Config struct {
	// New opens the provider for the fleet of a mark, as another program does.
	New func(mark machines.Mark) (machines.Provider, error)
	// Order returns the order of a machine, for a provider that needs a flavor or an image. The default userdata is a script
	// that does nothing.
	Order func(name string) machines.Order
	// Userdata reads the userdata of a running machine; may be nil.
	Userdata func(ctx context.Context, m machines.Machine) ([]byte, error)
	// Labels reads the labels of a machine; may be nil.
	Labels func(ctx context.Context, m machines.Machine) (map[string]string, error)
	// Script is a part of the userdata, for sh. Where machines do not keep their userdata, it may copy "$0".
	Script string
	// Owner of the machines, from NewOwner; "" is a new one.
	Owner string
	// Foreign makes a machine without a mark, and returns a function that checks that it is unchanged. The caller removes the machine.
	Foreign func(ctx context.Context, name string) (unharmed func(context.Context) error, err error)

	Call time.Duration // deadline of one call; 0 is DefaultCall
	Boot time.Duration // deadline of the start of a machine; 0 is DefaultBoot
	Gone time.Duration // deadline of the end of a deleted machine; 0 is DefaultGone
	Poll time.Duration // pause between two looks; 0 is defaultPoll
}

// Defaults of a Config, for clouds.
const (
	DefaultCall = 5 * time.Minute
	DefaultBoot = 10 * time.Minute
	DefaultGone = 10 * time.Minute
	defaultPoll = 2 * time.Second
)

// Result is the result of one check.
type Result struct {
	Check   string        // its name, a sentence
	Err     error         // why it failed
	Skipped string        // cause, where the check did not run
	Took    time.Duration //
}

// Run runs all checks in order and reports each result. Its error has the number of failures, or the machines that are left.
func Run(ctx context.Context, config Config, report func(Result)) error {
	s, err := newSuite(config)
	if err != nil {
		return fmt.Errorf("cannot check a driver: %w", err)
	}
	failed, skipped := 0, 0
	for i, check := range checks {
		start := time.Now()
		result := Result{Check: check.name}
		err := skip("an earlier check did not make its machine")
		if !slices.ContainsFunc(check.needs, func(name func(*suite) string) bool { return name(s) == "" }) {
			err = check.do(ctx, s)
		}
		switch {
		case ctx.Err() != nil:
			return errors.Join(fmt.Errorf("cannot continue: %w", context.Cause(ctx)), s.cleanUp(ctx))
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
		if i == 0 && failed > 0 { // the list may have foreign machines: nothing is made or deleted beside them
			return fmt.Errorf("cannot continue: %w", result.Err)
		}
	}
	err = s.cleanUp(ctx)
	if failed > 0 {
		err = errors.Join(tally(failed, skipped), err)
	}
	return err
}

// tally returns an error with the counts of failed and skipped checks.
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

// NewOwner returns a new owner. A caller that prints it before Run can Clean after any end of Run.
func NewOwner() string { return ownerPrefix + randomWord() }

const ownerPrefix = "conform-"

var ownerPattern = regexp.MustCompile(`^` + ownerPrefix + `[a-z]{6}$`)

// Clean deletes the machines that a run of that owner left.
func Clean(ctx context.Context, config Config, owner string) error {
	config.Owner = owner
	s, err := newSuite(config)
	if err != nil {
		return fmt.Errorf("cannot clean up: %w", err)
	}
	return s.cleanUp(ctx)
}

// errSkip ends a check that cannot run. The wrapping error has the cause.
var errSkip = errors.New("not checked")

func skip(why string) error { return fmt.Errorf("%s: %w", why, errSkip) }

// suite has the fleets of the checks, and the machines that one check makes and others use.
type suite struct {
	config Config
	word   string // part of every name: separates two runs at one provider

	harmful bool // a check failed: checks that could reach foreign machines are skipped

	ours   *fleet
	again  *fleet // ours, in another program
	prefix *fleet // its name has ours as a prefix
	owner  *fleet // of the same name and another owner

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
	config.Poll = cmp.Or(config.Poll, defaultPoll)
	mine := cmp.Or(config.Owner, NewOwner())
	if !ownerPattern.MatchString(mine) { // checks must not use foreign machines
		return nil, fmt.Errorf("%q is not an owner of a check", mine)
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

// randomWord returns letters: names of nodes end with digits.
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

// cleanUp deletes the machines of this run, also after the end of the context.
func (s *suite) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.Gone+s.config.Call)
	defer cancel()
	var errs []error
	for _, f := range []*fleet{s.ours, s.prefix, s.owner} {
		if err := f.empty(ctx); err != nil {
			errs = append(errs, fmt.Errorf("cannot clean up fleet %s: %w\ndelete its machines with the tools of the provider", f.mark, err))
		}
	}
	return errors.Join(errs...)
}
