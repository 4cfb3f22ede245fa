package firstboot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"pulley/internal/failpoint"
)

// Step is one step and its functions on this machine.
type Step struct {
	Name     Name
	Words    string        // the action, after "cannot": "install Puppet"
	Deadline time.Duration // of all its tries together, and with Patience of each one
	Patience time.Duration // of a step that needs the machine's turn: of all its tries. Each wait is reported and ends the turn
	Optional bool          // a failure does not stop the first boot
	// Applies reports whether the step concerns this machine; otherwise nothing reports it. nil: always. After an error, Left
	// returns the cause.
	Applies func(context.Context) (bool, error)
	// returns the remaining work, for people, and changes nothing; "" is none
	Left func(context.Context) (string, error)
	Do   func(context.Context) error // does the work; may be repeated at any point
}

// Reporter reports the machine's progress to serve. Engine.report limits the time of each report. The problem of a step that is
// started is what it waits for.
type Reporter interface {
	Report(ctx context.Context, step Name, state Progress, problem string) error
}

// Memory stores the state.
type Memory interface {
	Load() (State, error)
	Save(State) error
}

// Engine runs the steps in their order.
type Engine struct {
	Steps    []Step
	Replaced map[string]string                                          // steps by name: Off, or a program
	Program  func(ctx context.Context, step Name, program string) error // runs the replacement of a step
	Memory   Memory                                                     // nil: no stored state, every start is the first
	Machine  string                                                     // machine id
	Plan     string                                                     // digest of the plan
	Token    string                                                     // digest of the plan's token; "" without one
	Reporter Reporter                                                   // nil: no reports
	Patient  bool                                                       // retries temporary failures
	Log      *slog.Logger
	Now      func() time.Time
	Sleep    func(context.Context, time.Duration) error // nil waits

	state State
	mute  time.Time // no reports until then: a silent server must not delay each step
}

// Options are the options of one start.
type Options struct {
	From Name // repeat this step and the later ones; "" resumes
}

// ErrFinished means that this machine's first boot is finished.
var ErrFinished = errors.New("the first boot of this machine is finished")

// Run does the remaining steps of the first boot. It does not repeat a step that an earlier start finished. It returns
// ErrFinished if no step remained, and the error of the step that failed.
func (e *Engine) Run(ctx context.Context, o Options) error {
	if err := e.open(o); err != nil {
		return err
	}
	for _, s := range e.Steps {
		if err := e.step(ctx, s); err != nil {
			return err
		}
	}
	e.state.Finished = e.Now().UTC()
	return e.save()
}

// open reads the state of earlier starts.
func (e *Engine) open(o Options) error {
	from := slices.IndexFunc(e.Steps, func(s Step) bool { return s.Name == o.From })
	if o.From != "" && from < 0 {
		return fmt.Errorf("cannot start from step %q: the steps are %s", o.From, NameList())
	}
	fresh := State{ID: fmt.Sprintf("%016x", rand.Uint64()), Machine: e.Machine, Plan: e.Plan, Started: e.Now().UTC(), Steps: map[Name]StepState{}}
	if e.Memory == nil {
		e.state = fresh
		for _, s := range e.Steps[:max(from, 0)] {
			e.state.Steps[s.Name] = StepState{State: Done}
		}
		return nil
	}
	var err error
	if e.state, err = e.Memory.Load(); err != nil {
		return err
	}
	before := e.state.finishedBefore(e.Machine)
	if e.state.Steps == nil || e.state.Machine != e.Machine || e.state.Plan != e.Plan {
		if e.state.ID != "" && e.state.Machine == e.Machine { // another plan: pulley serve continues its record
			fresh.ID = e.state.ID
		}
		e.state = fresh
		e.state.Before = before
	}
	if e.Token != "" && !slices.Contains(e.state.Tokens, e.Token) {
		e.state.Tokens = append(e.state.Tokens, e.Token)
	}
	if from < 0 {
		if !e.state.Finished.IsZero() {
			return ErrFinished
		}
		return nil
	}
	e.state.Before, e.state.Finished = before, time.Time{}
	for _, s := range e.Steps[from:] {
		delete(e.state.Steps, s.Name)
	}
	return nil
}

// step runs one step unless it is done. It is the one place for the log, the time, the error's context, the crash
// points and the reports of all steps.
func (e *Engine) step(ctx context.Context, s Step) error {
	is := e.state.Steps[s.Name]
	if is.State == Done {
		e.Log.Info("first boot", "step", s.Name, "state", "done before")
		return nil
	}
	interrupted := func() error { return fmt.Errorf("cannot %s: %w", s.Words, ctx.Err()) }
	if ctx.Err() != nil {
		return interrupted()
	}
	if s.Applies != nil {
		if applies, err := s.Applies(ctx); err == nil && !applies {
			return nil
		}
	}
	failpoint.Here(before + string(s.Name))
	is = StepState{State: Started, Started: e.Now().UTC(), Attempts: is.Attempts + 1, Replaced: e.Replaced[string(s.Name)]}
	if err := e.note(s.Name, is); err != nil {
		return err
	}
	e.report(ctx, s.Name, Started, "")
	did, err := e.work(ctx, s)
	is.Took = e.Now().Sub(is.Started).Round(time.Millisecond)
	failpoint.Here(after + string(s.Name))
	if err != nil {
		if ctx.Err() != nil { // a reboot is no failure: the machine keeps its turn, and nobody is notified
			e.Log.Info("first boot", "step", s.Name, "state", "interrupted", "took", is.Took, "attempt", is.Attempts, "err", err)
			return interrupted()
		}
		err = fmt.Errorf("cannot %s: %w", s.Words, err)
		is.State, is.Error = Failed, err.Error()
		e.Log.Error("first boot", "step", s.Name, "state", Failed, "took", is.Took, "attempt", is.Attempts)
		noted := e.note(s.Name, is)
		e.report(ctx, s.Name, Failed, is.Error)
		if s.Optional {
			e.Log.Warn("the first boot continues without this step", "step", s.Name, "err", err)
			return noted
		}
		return errors.Join(err, noted)
	}
	is.State = Done
	e.Log.Info("first boot", "step", s.Name, "state", Done, "took", is.Took, "attempt", is.Attempts, "did", did)
	if err := e.note(s.Name, is); err != nil {
		return err
	}
	e.report(ctx, s.Name, Done, "")
	return nil
}

// work runs a step, or its replacement, and describes the work. It retries temporary failures.
func (e *Engine) work(ctx context.Context, s Step) (did string, err error) {
	switch instead := e.Replaced[string(s.Name)]; instead {
	case "":
	case Off:
		return "nothing: it is switched off", nil
	default:
		ctx, cancel := context.WithTimeout(ctx, s.Deadline)
		defer cancel()
		return "ran " + instead, e.Program(ctx, s.Name, instead)
	}
	ctx, cancel := context.WithTimeout(ctx, max(s.Deadline, s.Patience))
	defer cancel()
	reported := ""
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		did, err = s.try(ctx)
		if err == nil && did == "" {
			return "nothing was left to do", nil
		}
		var passing *PassingError
		if err == nil || !e.Patient || !errors.As(err, &passing) {
			return did, err
		}
		wait := max(jittered(pause), passing.After)
		e.Log.Warn("first boot waits", "step", s.Name, "again_in", wait.Round(time.Millisecond), "err", err, "remedy", remedy(err))
		if !passing.Known && (s.Patience > 0 || err.Error() != reported) {
			reported = err.Error()
			e.report(ctx, s.Name, Started, reported)
		}
		if e.sleep(ctx, wait) != nil {
			return "", err // the cause of the last try is more useful than the deadline
		}
	}
}

// try does the remaining work, once.
func (s Step) try(ctx context.Context) (did string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Deadline)
	defer cancel()
	if did, err = s.Left(ctx); err == nil && did != "" {
		err = s.Do(ctx)
	}
	return did, err
}

// The pauses between the tries of a step.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// remedy returns the remedy that came with an error, "" for none.
func remedy(err error) string {
	var advised interface{ Hint() string }
	if errors.As(err, &advised) {
		return advised.Hint()
	}
	return ""
}

func jittered(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5) // machines that boot together must not retry together
}

// PassingError is a temporary failure, such as of the network or of a server that is not running yet.
type PassingError struct {
	Err   error
	After time.Duration // earliest next try; 0 if unknown
	Known bool          // to serve, which made the machine wait: nothing reports it
}

func (e *PassingError) Error() string { return e.Err.Error() }
func (e *PassingError) Unwrap() error { return e.Err }

// Passing marks an error as temporary.
func Passing(err error) error {
	if err == nil {
		return nil
	}
	return &PassingError{Err: err}
}

// The limits of reports.
const (
	reportTimeout = 5 * time.Second
	reportPause   = time.Minute // after a report that failed
)

// report reports a step, best effort: a first boot never waits for a report. There is no report before the network step.
func (e *Engine) report(ctx context.Context, step Name, state Progress, problem string) {
	if e.Reporter == nil || step == Network && state == Started || e.Now().Before(e.mute) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if err := e.Reporter.Report(ctx, step, state, problem); err != nil {
		e.mute = e.Now().Add(reportPause)
		e.Log.Warn("cannot report the progress of the first boot", "step", step, "err", err)
	}
}

// DryRun writes the work that each step would do, and changes nothing.
func (e *Engine) DryRun(ctx context.Context, o Options, out io.Writer) error {
	err := e.open(o)
	if err != nil && !errors.Is(err, ErrFinished) {
		return err
	}
	width := 0
	concerning := slices.DeleteFunc(slices.Clone(e.Steps), func(s Step) bool {
		if s.Applies == nil || e.state.Steps[s.Name].State == Done {
			return false
		}
		applies, err := s.Applies(ctx)
		return err != nil || !applies // whether it applies is often known after the join
	})
	for _, s := range concerning {
		width = max(width, len(s.Name))
	}
	for _, s := range concerning {
		would := ""
		switch instead := e.Replaced[string(s.Name)]; {
		case e.state.Steps[s.Name].State == Done:
			would = "is done"
		case instead == Off:
			would = "is switched off"
		case instead != "":
			would = "would run " + instead
		default:
			left, err := s.Left(ctx)
			switch {
			case err != nil:
				would = fmt.Sprintf("is unknown yet: %v", err)
			case left == "":
				would = "has nothing left to do"
			default:
				would = "would " + left
			}
		}
		if _, err := fmt.Fprintf(out, "%-*s  %s\n", width, s.Name, would); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) note(name Name, s StepState) error {
	e.state.Steps[name] = s
	return e.save()
}

func (e *Engine) save() error {
	if e.Memory == nil {
		return nil
	}
	return e.Memory.Save(e.state)
}

func (e *Engine) sleep(ctx context.Context, d time.Duration) error {
	if e.Sleep != nil {
		return e.Sleep(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
