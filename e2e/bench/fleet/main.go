// Command fleet runs many nodes in one process, each with its own connection and folder. It prints "ready" when all are
// connected and waits for a line. Then it makes all nodes install a release at once, and prints the seconds for each.
// Finally it removes old trees.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: fleet ENDPOINT FOLDER VERSION, with a folder for each node in FOLDER")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Stdout, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// node is one of the nodes.
type node struct {
	db    *etcd.DB
	trees *content.Store
	took  time.Duration
	err   error
}

func run(stdin io.Reader, stdout io.Writer, endpoint, dir, version string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	folders, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	var nodes []*node
	for _, f := range folders {
		n, err := connect(ctx, endpoint, f, version)
		if err != nil {
			return err
		}
		defer n.db.Close()
		nodes = append(nodes, n)
	}
	fmt.Fprintln(stdout, "ready")
	if _, err := bufio.NewReader(stdin).ReadString('\n'); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() { n.update(ctx, version) })
	}
	wg.Wait()
	for _, n := range nodes {
		err = errors.Join(err, n.err)
		fmt.Fprintln(stdout, n.took.Seconds())
	}
	fmt.Fprintln(stdout, "done")
	for _, n := range nodes {
		_, _, collectErr := n.trees.Collect(nil, 1)
		err = errors.Join(err, collectErr)
	}
	return err
}

// connect returns an idle node: connected, with the followed release in place.
func connect(ctx context.Context, endpoint, dir, version string) (*node, error) {
	s, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	n := &node{db: s}
	if n.trees, err = content.OpenStore(dir); err == nil {
		n.trees.Reserve = 0 // the nodes share one file system without other files
		_, err = release.In(s).Get(ctx, version)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return n, nil
}

func (n *node) update(ctx context.Context, version string) {
	start := time.Now()
	r, err := release.In(n.db).Get(ctx, version)
	if err == nil {
		err = n.trees.Install(ctx, release.In(n.db), r.Content)
	}
	if err == nil {
		err = n.trees.Activate(r.Content.Tree)
	}
	n.took, n.err = time.Since(start), err
}
