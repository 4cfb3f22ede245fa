//go:build e2e

package providers

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"pulley/e2e/providers/ec2test"
	"pulley/internal/provision"
	"pulley/internal/provision/conform"
	"pulley/internal/provision/conform/conformtest"
)

// region starts a region of EC2, and returns it with what its client has to be told.
func region(t *testing.T, c ec2test.Config) (*ec2test.Region, []string) {
	t.Helper()
	region := ec2test.New(c)
	server := httptest.NewServer(region)
	t.Cleanup(server.Close)
	return region, []string{
		"AWS_ENDPOINT_URL=" + server.URL, "AWS_ACCESS_KEY_ID=" + ec2test.KeyID, "AWS_SECRET_ACCESS_KEY=" + ec2test.Secret,
		"AWS_REGION=eu-north-1", "AWS_EC2_METADATA_DISABLED=true",
	}
}

func instanceOrder(name string) provision.Order {
	return provision.Order{Name: name, Flavor: ec2test.Type, Image: ec2test.Image, Networks: []string{ec2test.Subnet}}
}

// Who starts from the documented command must not start from one that makes machines twice, or deletes others'.
func TestCommandForAWSConforms(t *testing.T) {
	t.Parallel()
	region, environ := region(t, ec2test.Config{Pending: 100 * time.Millisecond, ShuttingDown: 100 * time.Millisecond, Unlisted: 300 * time.Millisecond, PageSize: 2})
	conformtest.Test(t, slow(conform.Config{
		New:   documented(t, environ, "aws", "--key-name", "operators"),
		Order: instanceOrder,
		Userdata: func(_ context.Context, m provision.Machine) ([]byte, error) {
			instances := region.Instances()
			i := slices.IndexFunc(instances, func(i ec2test.Instance) bool { return i.ID == m.ID })
			if i < 0 {
				return nil, fmt.Errorf("there is no instance %s", m.ID)
			}
			return instances[i].Userdata, nil
		},
		Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
			stranger := region.Add(name)
			return func(context.Context) error {
				for _, i := range region.Instances() {
					if state, _ := i.State(); i.ID == stranger.ID && state == "running" {
						return nil
					}
				}
				return fmt.Errorf("instance %s is gone", stranger.ID)
			}, nil
		},
	}))
}

// EC2 forgets for seconds what it has launched: a second order in that time must not launch a second instance.
func TestCommandForAWSLaunchesOnce(t *testing.T) {
	region, environ := region(t, ec2test.Config{Unlisted: 8 * time.Second})
	p, err := documented(t, environ, "aws")(provision.Mark{Owner: "o", Fleet: "dev"})
	if err != nil {
		t.Fatal(err)
	}
	first, second := instanceOrder("compute1"), instanceOrder("compute1")
	first.Userdata, second.Userdata = []byte("one token"), []byte("another token")
	ctx, cutOff := context.WithTimeout(t.Context(), time.Minute)
	defer cutOff()
	go func() { // while it waits to see what it has launched
		for ; len(region.Instances()) == 0 && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		}
		cutOff()
	}()
	if m, err := p.Create(ctx, first); err == nil {
		t.Fatalf("it was not cut off: %+v", m)
	}
	launched := region.Instances()
	m, err := p.Create(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	if len(launched) != 1 || len(region.Instances()) != 1 || m.ID != launched[0].ID {
		t.Errorf("%+v\n%+v\n%+v", m, launched, region.Instances())
	}
}

// What kind an error is decides whether an apply waits, gives up, or asks again.
func TestCommandForAWSTellsErrorsApart(t *testing.T) {
	_, environ := region(t, ec2test.Config{Limit: 1})
	open := func(environ []string, args ...string) provision.Provider {
		p, err := documented(t, environ, "aws", args...)(provision.Mark{Owner: "o", Fleet: "dev"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if _, err := open(environ).Create(t.Context(), instanceOrder("compute1")); err != nil {
		t.Fatal(err)
	}
	if _, err := open(environ).Create(t.Context(), instanceOrder("compute2")); !errors.Is(err, provision.ErrQuota) {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := open(environ, "--key-name", "nobody").Create(t.Context(), instanceOrder("compute3")); !errors.Is(err, provision.ErrRefused) {
		t.Errorf("a key that there is not: %v", err)
	}
	_, throttled := region(t, ec2test.Config{Throttled: 1000})
	if _, err := open(append(throttled, "AWS_MAX_ATTEMPTS=1")).List(t.Context()); !errors.Is(err, provision.ErrThrottle) {
		t.Errorf("throttled: %v", err)
	}
}
