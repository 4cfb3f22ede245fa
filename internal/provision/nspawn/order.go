package nspawn

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"pulley/internal/provision"
)

// namePattern is one label of a hostname (RFC 1123, 2.1), in lower case.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// check refuses what can't be had here. What could be ignored would be taken for granted.
func check(o provision.Order) error {
	refused := func(what string) error { return fmt.Errorf("%w: %s", provision.ErrRefused, what) }
	switch {
	case !namePattern.MatchString(o.Name):
		return refused(fmt.Sprintf("%q is no hostname of one label", o.Name))
	case o.Flavor != "":
		return refused(fmt.Sprintf("machines of nspawn have no flavors, and %q is asked for\nleave `flavor` away", o.Flavor))
	case len(o.Networks) > 0:
		return refused("machines of nspawn are on the bridge that `provider` names\nleave `networks` away")
	case o.Image != "" && o.Image != imageDebian && !filepath.IsAbs(o.Image):
		return refused(fmt.Sprintf("there is no image %q\nuse %s, or the absolute path of a root folder", o.Image, imageDebian))
	case os.Geteuid() != 0:
		return refused("it needs root\nrun the same command as root, for example with sudo")
	}
	if err := need("systemd-nspawn"); err != nil {
		return fmt.Errorf("%w: %w", provision.ErrRefused, err)
	}
	return nil
}

const imageDebian = "debian"

// openImage opens what a machine boots from. Debian is built for as long as that takes, also when whoever asked first has
// given up.
func (p *Provider) openImage(ctx context.Context, name string) (Image, error) {
	if filepath.IsAbs(name) {
		if info, err := os.Stat(filepath.Join(name, "usr")); err != nil || !info.IsDir() {
			return Image{}, fmt.Errorf("%w: image %s is no root folder: it has no /usr", provision.ErrRefused, name)
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
