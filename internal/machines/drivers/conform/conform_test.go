package conform_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/testbed/conformtest"
)

func (m *model) config() conform.Config {
	return conform.Config{
		New:  func(mark machines.Mark) (machines.Provider, error) { return view{m, mark}, nil },
		Boot: time.Minute, Gone: time.Minute, Poll: 10 * time.Millisecond,
		Userdata: func(_ context.Context, want machines.Machine) ([]byte, error) {
			have, err := m.the(want)
			return have.userdata, err
		},
		Labels: func(_ context.Context, want machines.Machine) (map[string]string, error) {
			have, err := m.the(want)
			return have.labels, err
		},
		Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
			foreign := &modelled{Machine: machines.Machine{Name: name, ID: "foreign", State: machines.Running}}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.machines = append(m.machines, foreign)
			return func(context.Context) error {
				m.mu.Lock()
				defer m.mu.Unlock()
				for _, have := range m.machines {
					if have == foreign {
						return nil
					}
				}
				return errors.New("the machine is gone")
			}, nil
		},
	}
}

// the returns a machine of the model.
func (m *model) the(want machines.Machine) (modelled, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, have := range m.machines {
		if have.ID == want.ID {
			return *have, nil
		}
	}
	return modelled{}, errors.New("no such machine")
}

// A correct driver must pass.
func TestCorrectModelConforms(t *testing.T) {
	conformtest.Test(t, (&model{}).config())
}

// A trial of a broken provider must not delete foreign machines.
func TestForeignMachinesOutliveBrokenDriver(t *testing.T) {
	for _, fault := range []string{"lists every fleet", "deletes any fleet's"} {
		synctest.Test(t, func(t *testing.T) {
			other := &modelled{Machine: machines.Machine{Name: "mail", ID: "m", State: machines.Running}}
			m := &model{fault: fault, machines: []*modelled{other}}
			if err := conform.Run(t.Context(), m.config(), func(conform.Result) {}); err == nil {
				t.Errorf("%s: the checks passed", fault)
			}
			if !slices.Contains(m.machines, other) {
				t.Errorf("%s: the foreign machine is gone", fault)
			}
		})
	}
}

// Each fault of a driver must fail a check.
func TestEachFaultIsFound(t *testing.T) {
	for fault, check := range map[string]string{
		"lists every fleet":                          "machines of other fleets are not listed",
		"compares the beginning of the fleet's name": "machines of other fleets are not listed",
		"ignores the owner":                          "machines of other fleets are not listed",
		"hangs":                                      "each call ends with its context",
		"never boots":                                "the machine runs within",
		"fails":                                      "the machine runs within",
		"lists late":                                 "is listed at once",
		"invents a state":                            "is listed at once",
		"takes any name and cuts it":                 "a name that is not a hostname",
		"makes any flavor":                           "an unknown flavor",
		"says that a flavor failed":                  "an unknown flavor",
		"makes what it refuses":                      "failed, and the machine is listed",
		"makes a second one":                         "a repeated create returns the same",
		"returns another fleet's":                    "a name of another fleet",
		"keeps text for userdata":                    "userdata of any bytes",
		"drops labels":                               "labels of any bytes",
		"cuts its list at three":                     "a list of six machines is complete",
		"deletes by ID whatever the name":            "the name of one machine with the ID of another",
		"hangs in the middle of a create":            "an interrupted create",
		"makes it although it was given up":          "an interrupted create",
		"uses IDs again":                             "the name of a deleted machine can be used again",
		"deletes any fleet's":                        "machines of other fleets are not deleted",
		"deletes by name although an ID is given":    "reaches no other machine",
		"deletes by a pattern":                       "a deletion by pattern",
		"keeps what is deleted":                      "leaves the list",
		"can't delete twice":                         "a deletion of a missing machine",
	} {
		t.Run(fault, func(t *testing.T) {
			m := &model{fault: fault}
			var failed []string
			synctest.Test(t, func(t *testing.T) {
				err := conform.Run(t.Context(), m.config(), func(r conform.Result) {
					if r.Err != nil {
						failed = append(failed, r.Check+": "+r.Err.Error())
					}
				})
				if err == nil {
					t.Error("the checks passed")
				}
				<-time.After(2 * time.Hour) // hanging calls must end in the bubble
			})
			if !strings.Contains(strings.Join(failed, "\n"), check) {
				t.Errorf("%q is not among the failures:\n%s", check, strings.Join(failed, "\n"))
			}
		})
	}
}

// Checks that cannot read userdata or labels must be skipped, and must not pass.
func TestUnreadableIsSkipped(t *testing.T) {
	for _, fault := range []string{"keeps text for userdata", "drops labels"} {
		synctest.Test(t, func(t *testing.T) {
			m := &model{fault: fault}
			config := m.config()
			config.Userdata, config.Labels = nil, nil
			skipped := 0
			if err := conform.Run(t.Context(), config, func(r conform.Result) {
				if strings.Contains(r.Check, "of any bytes") && r.Skipped != "" {
					skipped++
				}
			}); err != nil || skipped != 2 {
				t.Errorf("%s: %d checks were skipped, %v", fault, skipped, err)
			}
		})
	}
}

// An error must not contradict itself.
func TestErrorsAreConsistent(t *testing.T) {
	for fault, want := range map[string]string{"makes any flavor": "the order was not refused", "says that a flavor failed": "the kind of the error is not refused"} {
		synctest.Test(t, func(t *testing.T) {
			err := conform.Run(t.Context(), (&model{fault: fault}).config(), func(r conform.Result) {
				if r.Err != nil && (!strings.HasPrefix(r.Err.Error(), want) || strings.Contains(r.Err.Error(), "listed")) {
					t.Errorf("%s: %s: %v", fault, r.Check, r.Err)
				}
			})
			if err == nil {
				t.Errorf("%s: the checks passed", fault)
			}
		})
	}
}

// "5 of 25 failed" would be wrong for a provider of which 7 things are not known.
func TestSkippedChecksAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{fault: "fails"}
		config := m.config()
		config.Userdata, config.Labels, config.Foreign = nil, nil, nil
		failed, skipped, all := 0, 0, 0
		err := conform.Run(t.Context(), config, func(r conform.Result) {
			all++
			switch {
			case r.Err != nil:
				failed++
			case r.Skipped != "":
				skipped++
			}
		})
		want := fmt.Sprintf("%d of %d checks failed, %d were skipped", failed, all-skipped, skipped)
		if skipped < 2 || err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

// Machines of a fleet without a known name would run, and cost money, unnoticed.
func TestCleanRemovesLeftovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{}
		owner := conform.NewOwner()
		word := strings.TrimPrefix(owner, "conform-")
		for _, mark := range []machines.Mark{{Owner: owner, Fleet: "conform"}, {Owner: owner, Fleet: "conform@t42"}, {Owner: owner + "x", Fleet: "conform"}, {Owner: "other", Fleet: "conform"}} {
			if _, err := (view{m, mark}).Create(t.Context(), machines.Order{Name: "conform" + word + "1"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := conform.Clean(t.Context(), m.config(), owner); err != nil {
			t.Fatal(err)
		}
		if len(m.machines) != 1 || m.machines[0].mark.Owner != "other" {
			t.Errorf("%d are left", len(m.machines))
		}
		for _, owner := range []string{"other", "conform-", "conform-other", "8c1f0a52d6b7e934"} {
			if err := conform.Clean(t.Context(), m.config(), owner); err == nil || len(m.machines) != 1 {
				t.Errorf("%s: %v, %d are left", owner, err, len(m.machines))
			}
		}
	})
}
