package steps

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"pulley/internal/firstboot"
)

// network waits for a server that answers or for a route out of the machine, and for a plausible clock. It must never set the clock.
type network struct {
	*boot
	waits time.Time // start of the wait for a time server
}

// The time limits of one check of the network.
const (
	dialTimeout      = 3 * time.Second
	timesyncPatience = time.Minute // for a time server; a machine that reaches none can still have the right time
)

// networkLeft checks once. With flags only, an operator is at the machine.
func (b *network) networkLeft(ctx context.Context) (string, error) {
	if !b.planned {
		return "", nil
	}
	if problem := b.offline(ctx); problem != "" {
		return "wait for the network: " + problem, nil
	}
	if problem := b.wrongTime(ctx); problem != "" {
		return "wait for the time: " + problem, nil
	}
	return "", nil
}

func (b *network) waitForNetwork(ctx context.Context) error {
	problem, err := b.networkLeft(ctx)
	if err != nil || problem == "" {
		return err
	}
	return firstboot.Passing(errors.New(strings.TrimPrefix(problem, "wait for ")))
}

// offline returns the missing part: a route out of this machine, or an answer of a server of the plan.
func (b *network) offline(ctx context.Context) string {
	var far []string
	for _, address := range b.plan.Servers {
		far = append(far, hostPort(address, "443"))
	}
	for _, address := range b.plan.Endpoints {
		far = append(far, hostPort(address, "2379"))
	}
	outside := len(far) == 0
	for _, address := range far {
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err == nil && (host == "localhost" || ip != nil && ip.IsLoopback()) {
			continue
		}
		outside = true
		if reaches(ctx, address) {
			return ""
		}
	}
	if !outside || hasRoute() {
		return ""
	}
	if len(far) == 0 {
		return "there is no default route"
	}
	return "there is no default route, and no server answers at " + strings.Join(far, ", ")
}

func hostPort(address, port string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		address = u.Host
	}
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), port)
}

func reaches(ctx context.Context, address string) bool {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	return err == nil && conn.Close() == nil
}

// hasRoute reports whether the kernel has a default route (proc(5), /proc/net/route and ipv6_route).
func hasRoute() bool {
	four, _ := os.ReadFile("/proc/net/route")
	for line := range bytes.Lines(four) {
		if f := bytes.Fields(line); len(f) > 7 && string(f[1]) == "00000000" && string(f[7]) == "00000000" && string(f[0]) != "lo" {
			return true
		}
	}
	six, _ := os.ReadFile("/proc/net/ipv6_route")
	for line := range bytes.Lines(six) {
		if f := bytes.Fields(line); len(f) > 9 && string(f[1]) == "00" && string(f[0]) == strings.Repeat("0", 32) && string(f[9]) != "lo" {
			return true
		}
	}
	return false
}

// wrongTime describes a clock that is evidently wrong. If the clock is behind, no certificate is valid yet.
func (b *network) wrongTime(ctx context.Context) string {
	now := b.Env.Now()
	if made := builtAt(); now.Before(made) {
		return fmt.Sprintf("the clock shows %s, and this program was built from a commit of %s", utcTime(now), utcTime(made))
	}
	for _, server := range b.plan.Servers {
		if valid := validFrom(ctx, server); now.Before(valid) {
			return fmt.Sprintf("the clock shows %s, and the certificate of %s is valid from %s", utcTime(now), server, utcTime(valid))
		}
	}
	// systemd-timesyncd.service(8): the file exists once the clock was set.
	if _, err := os.Stat(b.path("run/systemd/timesync")); err != nil {
		return ""
	}
	if _, err := os.Stat(b.path("run/systemd/timesync/synchronized")); err == nil {
		return ""
	}
	if b.waits.IsZero() {
		b.waits = now
	}
	if now.Sub(b.waits) > timesyncPatience {
		b.Log.Warn("no time server has set the clock; continuing with its time", "clock", utcTime(now))
		return ""
	}
	return "no time server has set the clock yet"
}

// builtAt returns the time of this program's source; zero if the build does not contain it.
func builtAt() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if at, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return at
			}
		}
	}
	return time.Time{}
}

// validFrom returns the start of the validity of a server's certificate, of any server: it only serves to check the
// clock, and no request is sent. It returns the zero time if the certificate cannot be read.
func validFrom(ctx context.Context, server string) time.Time {
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: dialTimeout},
		Config:    &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13},
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", hostPort(server, "443"))
	if err != nil {
		return time.Time{}
	}
	defer conn.Close()
	var from time.Time
	for _, c := range conn.(*tls.Conn).ConnectionState().PeerCertificates {
		if c.NotBefore.After(from) {
			from = c.NotBefore
		}
	}
	return from
}

func utcTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
