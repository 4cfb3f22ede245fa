package nspawn

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"pulley/environments"
	"pulley/internal/machines"
)

// namePattern is one label of a hostname (RFC 1123, 2.1), in lower case.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// check refuses what can't be had here. What could be ignored would be taken for granted.
func check(o machines.Order) error {
	refused := func(what string) error { return fmt.Errorf("%w: %s", machines.ErrRefused, what) }
	flaw := environments.NotGiven(environments.DriverNspawn, o.Flavor, o.Image, o.Networks)
	switch {
	case !namePattern.MatchString(o.Name):
		return refused(fmt.Sprintf("%q is no hostname of one label", o.Name))
	case flaw != nil:
		return refused(flaw.Problem + "\n" + flaw.Advice)
	case os.Geteuid() != 0:
		return refused("it needs root\nrun the same command as root, for example with sudo")
	}
	if err := need("systemd-nspawn"); err != nil {
		return fmt.Errorf("%w: %w", machines.ErrRefused, err)
	}
	return nil
}

// openImage opens what a machine boots from. Debian is built for as long as that takes, also when whoever asked first has
// given up.
func (p *Provider) openImage(ctx context.Context, name string) (Image, error) {
	if filepath.IsAbs(name) {
		if info, err := os.Stat(filepath.Join(name, "usr")); err != nil || !info.IsDir() {
			return Image{}, fmt.Errorf("%w: image %s is no root folder: it has no /usr", machines.ErrRefused, name)
		}
		return Image{Dir: name}, nil
	}
	type opened struct {
		Image
		err error
	}
	done := make(chan opened, 1)
	go func() {
		i, err := OpenImage(context.WithoutCancel(ctx), p.config.Log)
		done <- opened{i, err}
	}()
	select {
	case o := <-done:
		return o.Image, o.err
	case <-ctx.Done():
		go func() { o := <-done; _ = o.Close() }()
		return Image{}, fmt.Errorf("the image is not ready yet: %w", ctx.Err())
	}
}
