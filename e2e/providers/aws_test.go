//go:build e2e

package providers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/testbed/conformtest"
	"pulley/internal/testbed/ec2test"
)

// region starts a region of EC2, and returns it with the environment of its client.
func region(t *testing.T, c ec2test.Config) (*ec2test.Region, []string) {
	t.Helper()
	folder, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	region := ec2test.New(c)
	server := httptest.NewServer(region)
	t.Cleanup(server.Close)
	return region, []string{
		"AWS_ENDPOINT_URL=" + server.URL, "AWS_ACCESS_KEY_ID=" + ec2test.KeyID, "AWS_SECRET_ACCESS_KEY=" + ec2test.Secret,
		"AWS_REGION=eu-north-1", "AWS_EC2_METADATA_DISABLED=true", "PATH=" + folder + ":" + path[len("PATH="):],
	}
}

var (
	shared string         // folder of what all tests use
	life   io.WriteCloser // its end, with that of this program, ends the loaded client
)

func TestMain(m *testing.M) {
	var err error
	if shared, err = os.MkdirTemp("", "pulley-providers-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(shared)
	os.Exit(code)
}

// loaded returns a folder with an aws client that is a fork of a process that has already loaded it (aws_server.py). The
// code is the same, and four hundred calls save four hundred seconds of processor time.
var loaded = sync.OnceValues(func() (string, error) {
	socket := filepath.Join(shared, "socket")
	server := exec.Command("./aws_server.py", socket)
	server.Env, server.Stderr = []string{path, "HOME=" + shared}, os.Stderr
	var err error
	if life, err = server.StdinPipe(); err == nil {
		err = server.Start()
	}
	if err != nil {
		return "", err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			break
		} else if time.Now().After(deadline) {
			return "", fmt.Errorf("cannot load the aws client: %w", err)
		}
	}
	client := fmt.Sprintf(`#!/usr/bin/python3 -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(%q)
request = json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}).encode() + b"\n"
rest = request[socket.send_fds(server, [request], [0, 1, 2]):]
if rest:  # the server may have answered and closed, and even to send nothing fails then
    server.sendall(rest)
code = server.recv(1)
sys.exit(code[0] if code else 1)
`, socket)
	return shared, os.WriteFile(filepath.Join(shared, "aws"), []byte(client), 0o700)
})

func instanceOrder(name string) machines.Order {
	return machines.Order{Name: name, Flavor: ec2test.Type, Image: ec2test.Image, Networks: []string{ec2test.Subnet}}
}

// Users copy the documented command: it must pass the checks of every driver.
func TestAWSCommandConforms(t *testing.T) {
	t.Parallel()
	region, environ := region(t, ec2test.Config{Pending: 100 * time.Millisecond, ShuttingDown: 100 * time.Millisecond, PageSize: 2})
	conformtest.Test(t, slow(conform.Config{
		New:   documented(t, environ, "aws", "--key-name", "operators"),
		Order: instanceOrder,
		Userdata: func(_ context.Context, m machines.Machine) ([]byte, error) {
			instances := region.Instances()
			i := slices.IndexFunc(instances, func(i ec2test.Instance) bool { return i.ID == m.ID })
			if i < 0 {
				return nil, fmt.Errorf("instance %s does not exist", m.ID)
			}
			return instances[i].Userdata, nil
		},
		Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
			foreign := region.Add(name)
			return func(context.Context) error {
				for _, i := range region.Instances() {
					if state, _ := i.State(); i.ID == foreign.ID && state == "running" {
						return nil
					}
				}
				return fmt.Errorf("instance %s is gone", foreign.ID)
			}, nil
		},
	}))
}

// EC2 lists a new instance only after seconds. A second order in that time must not launch a second instance.
func TestAWSCommandLaunchesOnce(t *testing.T) {
	t.Parallel()
	region, environ := region(t, ec2test.Config{Unlisted: 8 * time.Second})
	p := open(t, environ, "aws")
	first, second := instanceOrder("compute1"), instanceOrder("compute1")
	first.Userdata, second.Userdata = []byte("one token"), []byte("another token")
	ctx, cutOff := context.WithTimeout(t.Context(), patience)
	defer cutOff()
	go func() { // while the command waits for the instance
		for ; len(region.Instances()) == 0 && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		}
		cutOff()
	}()
	if m, err := p.Create(ctx, first); err == nil {
		t.Fatalf("the create was not interrupted: %+v", m)
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

// The kind of an error decides whether an apply waits, retries or stops.
func TestAWSCommandReportsKindsOfErrors(t *testing.T) {
	t.Parallel()
	_, environ := region(t, ec2test.Config{Limit: 1})
	if _, err := open(t, environ, "aws").Create(t.Context(), instanceOrder("compute1")); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, environ, "aws").Create(t.Context(), instanceOrder("compute2")); !errors.Is(err, machines.ErrQuota) {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := open(t, environ, "aws", "--key-name", "nobody").Create(t.Context(), instanceOrder("compute3")); !errors.Is(err, machines.ErrRefused) {
		t.Errorf("an unknown key: %v", err)
	}
	_, throttled := region(t, ec2test.Config{Throttled: 1000})
	if _, err := open(t, append(throttled, "AWS_MAX_ATTEMPTS=1"), "aws").List(t.Context()); !errors.Is(err, machines.ErrThrottle) {
		t.Errorf("throttled: %v", err)
	}
}

// A replaced machine, and an order after a full region, reuse a name. EC2's idempotency tokens of that name are used
// up.
func TestAWSCommandReusesName(t *testing.T) {
	t.Parallel()
	region, environ := region(t, ec2test.Config{Limit: 1})
	p := open(t, environ, "aws")
	create := func(name, userdata string) (machines.Machine, error) {
		o := instanceOrder(name)
		o.Userdata = []byte(userdata)
		return p.Create(t.Context(), o)
	}
	first, err := create("compute1", "one token")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := create("compute2", "another token"); !errors.Is(err, machines.ErrQuota) {
		t.Fatalf("at the limit: %v", err)
	}
	for _, name := range []string{"compute1", "compute2"} {
		if err := p.Delete(t.Context(), machines.Ref{Name: first.Name, ID: first.ID}); err != nil {
			t.Fatal(err)
		}
		again, err := create(name, "a third token")
		if err != nil || again.ID == first.ID {
			t.Fatalf("%s: %+v, %v", name, again, err)
		}
		first = again
	}
	if n := len(region.Instances()); n != 3 {
		t.Errorf("%d instances were launched", n)
	}
}

// An older instance of the same name, unknown or shutting down, must not hide the fleet's own.
func TestAWSCommandFindsOwnInstance(t *testing.T) {
	t.Parallel()
	region, environ := region(t, ec2test.Config{ShuttingDown: time.Hour})
	p := open(t, environ, "aws")
	made, err := p.Create(t.Context(), instanceOrder("compute1"))
	if err != nil {
		t.Fatal(err)
	}
	going := region.Add("compute1", ec2test.Tag{Key: "pulley-owner", Value: "o"}, ec2test.Tag{Key: "pulley-fleet", Value: "dev"})
	if err := p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: going.ID}); err != nil {
		t.Fatal(err)
	}
	region.Add("compute1")
	if m, err := p.Create(t.Context(), instanceOrder("compute1")); err != nil || m.ID != made.ID {
		t.Errorf("%+v, %v", m, err)
	}
}

// Version 1 of the client is still common.
func TestAWSCommandWorksWithVersion1(t *testing.T) {
	t.Parallel()
	_, environ := region(t, ec2test.Config{})
	old := instead(t, "aws", `case " $* " in *" --no-cli-pager "*) echo "Unknown options: --no-cli-pager" >&2; exit 252; esac; exec "$tool" "$@"`)
	if _, err := open(t, append(environ, old), "aws").Create(t.Context(), instanceOrder("compute1")); err != nil {
		t.Error(err)
	}
}

// An interrupted apply must not leave a join token in /tmp.
func TestAWSCommandLeavesNoUserdata(t *testing.T) {
	t.Parallel()
	_, environ := region(t, ec2test.Config{})
	leavesNoUserdata(t, environ, "aws", "aws", "run-instances", instanceOrder("compute1"))
}
