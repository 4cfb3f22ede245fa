package conform_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/internal/machines"
)

// model is a provider in memory that does what it promises, but for the fault that it is given.
type model struct {
	mu       sync.Mutex
	fault    string
	made     int
	machines []*modelled
}

type modelled struct {
	machines.Machine
	mark     machines.Mark
	userdata []byte
	labels   map[string]string
}

// view is a model as one fleet sees it.
type view struct {
	*model
	mark machines.Mark
}

func (v view) sees(m *modelled) bool {
	switch v.fault {
	case "lists every fleet":
		return true
	case "compares the beginning of the fleet's name":
		return m.mark.Owner == v.mark.Owner && strings.HasPrefix(m.mark.Fleet, v.mark.Fleet)
	case "ignores the owner":
		return m.mark.Fleet == v.mark.Fleet
	}
	return m.mark == v.mark
}

func (v view) List(ctx context.Context) ([]machines.Machine, error) {
	if err := ctx.Err(); err != nil {
		if v.fault == "hangs" {
			<-time.After(time.Hour) // in a synctest bubble
		}
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []machines.Machine
	for _, m := range v.machines {
		if !v.sees(m) {
			continue
		}
		if time.Since(m.Created) > 50*time.Millisecond && m.State == machines.Building && v.fault != "never boots" {
			m.State = machines.Running
		}
		if v.fault != "lists late" || time.Since(m.Created) > 50*time.Millisecond {
			all = append(all, m.Machine)
		}
	}
	if v.fault == "cuts its list at three" {
		all = all[:min(3, len(all))]
	}
	if v.fault == "invents a state" && len(all) > 0 {
		all[0].State = "fine"
	}
	return all, nil
}

// ask takes as long as a provider does to answer.
func (v view) ask(ctx context.Context) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
	}
	if v.fault == "hangs in the middle of a create" {
		<-time.After(time.Hour)
	}
	return ctx.Err()
}

func (v view) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if err := ctx.Err(); err != nil {
		return machines.Machine{}, err
	}
	if v.fault == "makes it although it was given up" {
		<-time.After(10 * time.Second)
	} else if err := v.ask(ctx); err != nil {
		return machines.Machine{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !machines.Hostname.MatchString(o.Name) && v.fault != "takes any name and cuts it" {
		return machines.Machine{}, fmt.Errorf("%w: %q is not a hostname", machines.ErrRefused, o.Name)
	}
	if o.Flavor+o.Image != "" && v.fault != "makes any flavor" {
		if v.fault == "says that a flavor failed" {
			return machines.Machine{}, fmt.Errorf("no flavor %q", o.Flavor)
		}
		if v.fault == "makes what it refuses" {
			v.machines = append(v.machines, &modelled{mark: v.mark, Machine: machines.Machine{Name: o.Name, ID: o.Name, State: machines.Running, Created: time.Now()}})
		}
		return machines.Machine{}, fmt.Errorf("%w: no flavor %q or image %q", machines.ErrRefused, o.Flavor, o.Image)
	}
	for _, m := range v.machines {
		if m.Name == o.Name && v.fault != "makes a second one" && (m.mark == v.mark || v.fault == "returns another fleet's") {
			return m.Machine, nil
		}
	}
	v.made++
	name := o.Name[:min(63, len(o.Name))]
	m := &modelled{mark: v.mark, userdata: slices.Clone(o.Userdata), labels: o.Labels, Machine: machines.Machine{Name: name, State: machines.Building, ID: fmt.Sprint("id", v.made), Created: time.Now()}}
	switch v.fault {
	case "keeps text for userdata":
		m.userdata = []byte(strings.ToValidUTF8(string(o.Userdata), "?"))
	case "drops labels":
		m.labels = nil
	case "uses IDs again":
		m.ID = o.Name
	case "fails":
		m.State, m.Problem = machines.Failed, "no valid host was found"
	}
	v.machines = append(v.machines, m)
	return m.Machine, nil
}

func (v view) Delete(ctx context.Context, d machines.Ref) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(v.machines)
	v.machines = slices.DeleteFunc(v.machines, func(m *modelled) bool {
		switch {
		case v.fault == "deletes any fleet's", v.sees(m):
		default:
			return false
		}
		byID := d.ID == "" || d.ID == m.ID || v.fault == "deletes by name although an ID is given"
		byName := m.Name == d.Name || v.fault == "deletes by ID whatever the name" && d.ID != "" || v.fault == "deletes by a pattern" && strings.HasPrefix(m.Name, strings.TrimSuffix(d.Name, "*"))
		return byName && byID && v.fault != "keeps what is deleted"
	})
	if before == len(v.machines) && v.fault == "can't delete twice" {
		return fmt.Errorf("there is no %q", d.Name)
	}
	return nil
}
