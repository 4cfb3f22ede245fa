// Command installer does a node's work for a release, and nothing else. It reads the record and its deltas from etcd,
// checks the signature, installs the tree, makes it current, and collects old trees. The measurement covers a complete
// process, as for the peers, but neither Puppet nor a decision. It prints the kernel's peak of its own memory, in KiB.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
)

// kept is the number of trees that an agent keeps.
const kept = 3

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: installer ENDPOINT ALLOWED_SIGNERS FOLDER VERSION...")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "installer:", err)
		os.Exit(1)
	}
}

func run(stdout io.Writer, endpoint, signers, dir string, versions []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	allowed, err := os.ReadFile(signers)
	if err != nil {
		return err
	}
	n := node{}
	if n.signers, err = trust.ParseSigners(allowed, nil); err != nil {
		return err
	}
	if n.db, err = etcd.Open(etcd.Config{Endpoints: []string{endpoint}}); err != nil {
		return err
	}
	defer n.db.Close()
	if n.trees, err = content.OpenStore(dir); err != nil {
		return err
	}
	for _, v := range versions {
		if err := n.update(ctx, v); err != nil {
			return err
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	_, err = fmt.Fprintln(stdout, strings.Fields(rest)[0])
	return err
}

type node struct {
	db      *etcd.DB
	trees   *content.Store
	signers *trust.Signers
}

func (n node) update(ctx context.Context, version string) error {
	current, err := n.trees.Current()
	if err != nil {
		return err
	}
	a := approach{Releases: release.In(n.db)}
	if line, seq, ok := n.trees.Position(current); ok {
		a.line, a.seq = line, seq+1
	}
	r, delta, err := release.In(n.db).GetWithDelta(ctx, version, a.line, a.seq)
	if err != nil {
		return err
	}
	if _, err := n.signers.Verify(trust.Release, "bench", r.Record, r.Signatures, time.Now()); err != nil {
		return err
	}
	a.delta = delta
	if err := n.trees.Install(ctx, a, r.Content); err != nil {
		return err
	}
	if err := n.trees.Activate(r.Content.Tree); err != nil {
		return err
	}
	_, _, err = n.trees.Collect([]string{current}, kept)
	return err
}

// approach is etcd, with the one delta that came with the record.
type approach struct {
	*release.Releases
	line  string
	seq   int64
	delta []byte
}

func (a approach) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	if a.delta != nil && line == a.line && from == a.seq && to == a.seq {
		return [][]byte{a.delta}, nil
	}
	return a.Releases.Deltas(ctx, line, from, to)
}
