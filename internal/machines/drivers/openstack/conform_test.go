package openstack_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/machines/drivers/openstack"
	"pulley/internal/testbed/conformtest"
	"pulley/internal/testbed/novatest"
)

// The driver must pass the checks of every driver.
func TestDriverConforms(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{Build: 20 * time.Millisecond, Deletion: 20 * time.Millisecond, MaxLimit: 3})
	conformtest.Test(t, conform.Config{
		New: func(mark machines.Mark) (machines.Provider, error) {
			return openstack.New(t.Context(), openstack.Config{Provider: west, Mark: mark, CloudsFile: file})
		},
		Order: order,
		Userdata: func(_ context.Context, m machines.Machine) ([]byte, error) {
			for _, s := range cloud.Servers() {
				if s.ID == m.ID {
					return s.Userdata, nil
				}
			}
			return nil, fmt.Errorf("server %s does not exist", m.ID)
		},
		Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
			foreign := cloud.Add(novatest.Server{Name: name, Metadata: map[string]string{"pulley-owner": "me"}})
			return func(context.Context) error {
				if !slices.ContainsFunc(cloud.Servers(), func(s novatest.Server) bool { return s.ID == foreign.ID }) {
					return fmt.Errorf("server %s is gone", foreign.ID)
				}
				return nil
			}, nil
		},
		Call: 10 * time.Second, Boot: 10 * time.Second, Gone: 10 * time.Second, Poll: 5 * time.Millisecond,
	})
}
