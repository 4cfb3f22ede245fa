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

	"pulley/internal/drivers/conform"
	"pulley/internal/machines"
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
				return errors.New("it is gone")
			}, nil
		},
	}
}

// the returns a machine as it is.
func (m *model) the(want machines.Machine) (modelled, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, have := range m.machines {
		if have.ID == want.ID {
			return *have, nil
		}
	}
	return modelled{}, errors.New("there is no such machine")
}

func TestAModelThatKeepsItsPromisesConforms(t *testing.T) {
	// A driver that is right would be called wrong.
	conformtest.Test(t, (&model{}).config())
}

func TestOtherPeoplesMachinesOutliveADriverThatListsThem(t *testing.T) {
	// To try out a provider would delete what runs there.
	for _, fault := range []string{"lists every fleet", "deletes any fleet's"} {
		synctest.Test(t, func(t *testing.T) {
			other := &modelled{Machine: machines.Machine{Name: "mail", ID: "m", State: machines.Running}}
			m := &model{fault: fault, machines: []*modelled{other}}
			if err := conform.Run(t.Context(), m.config(), func(conform.Result) {}); err == nil {
				t.Errorf("%s: it passed", fault)
			}
			if !slices.Contains(m.machines, other) {
				t.Errorf("%s: it is gone", fault)
			}
		})
	}
}

func TestEachFaultIsFound(t *testing.T) {
	// A driver that deletes other people's machines would pass.
	for fault, check := range map[string]string{
		"lists every fleet":                          "other fleets' machines are not listed",
		"compares the beginning of the fleet's name": "other fleets' machines are not listed",
		"ignores the owner":                          "other fleets' machines are not listed",
		"hangs":                                      "each call ends when its context does",
		"never boots":                                "it comes to run",
		"fails":                                      "it comes to run",
		"lists late":                                 "is listed at once",
		"invents a state":                            "is listed at once",
		"takes any name and cuts it":                 "a name that is no hostname",
		"makes any flavor":                           "a flavor that does not exist",
		"says that a flavor failed":                  "a flavor that does not exist",
		"makes what it refuses":                      "ended in an error, and it is listed",
		"makes a second one":                         "makes no second one",
		"returns another fleet's":                    "a name that another fleet has",
		"keeps text for userdata":                    "userdata of any bytes",
		"drops labels":                               "labels of any bytes",
		"cuts its list at three":                     "a list of six machines is whole",
		"deletes by ID whatever the name":            "the name of one machine with the ID of another",
		"hangs in the middle of a create":            "a create that is cut off",
		"makes it although it was given up":          "a create that is cut off",
		"uses IDs again":                             "its name can be used again",
		"deletes any fleet's":                        "other fleets' machines are not deleted",
		"deletes by name although an ID is given":    "reaches no other machine",
		"deletes by a pattern":                       "to delete a pattern",
		"keeps what is deleted":                      "is gone from the list",
		"can't delete twice":                         "to delete what is not there",
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
					t.Error("it passed")
				}
				<-time.After(2 * time.Hour) // what hangs has to end in the bubble
			})
			if !strings.Contains(strings.Join(failed, "\n"), check) {
				t.Errorf("%q is not among what failed:\n%s", check, strings.Join(failed, "\n"))
			}
		})
	}
}

func TestWhatIsNotReadBackIsNotCalledRight(t *testing.T) {
	// Who tries out a provider that spoils userdata would be told that it keeps it to the letter.
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
				t.Errorf("%s: %d checks are said not to be made, %v", fault, skipped, err)
			}
		})
	}
}

func TestARunDoesNotContradictItself(t *testing.T) {
	// Who is told in one breath that an order was not refused and that it was looks for a mistake that is not there.
	for fault, want := range map[string]string{"makes any flavor": "it was not refused", "says that a flavor failed": "the error is not of the kind that says that it is refused"} {
		synctest.Test(t, func(t *testing.T) {
			err := conform.Run(t.Context(), (&model{fault: fault}).config(), func(r conform.Result) {
				if r.Err != nil && (!strings.HasPrefix(r.Err.Error(), want) || strings.Contains(r.Err.Error(), "listed")) {
					t.Errorf("%s: %s: %v", fault, r.Check, r.Err)
				}
			})
			if err == nil {
				t.Errorf("%s: it passed", fault)
			}
		})
	}
}

func TestWhatWasSkippedIsNotCountedAsChecked(t *testing.T) {
	// "5 of 27 failed" would be told of a provider of which 7 things are not known.
	synctest.Test(t, func(t *testing.T) {
		m := &model{fault: "fails"}
		config := m.config()
		config.Userdata, config.Labels, config.Foreign = nil, nil, nil
		failed, skipped := 0, 0
		err := conform.Run(t.Context(), config, func(r conform.Result) {
			switch {
			case r.Err != nil:
				failed++
			case r.Skipped != "":
				skipped++
			}
		})
		want := fmt.Sprintf("%d of %d checks failed, %d were skipped", failed, len(conform.Checks())-skipped, skipped)
		if skipped < 2 || err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

func TestWhatAKilledCheckLeftCanBeCleanedUp(t *testing.T) {
	// Machines of a fleet that nobody can name would run until the bill comes.
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
