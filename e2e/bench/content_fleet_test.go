//go:build bench

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fleetNodes  = 200
	fleetRounds = 3
	etcdCPU     = 0
	nodesCPU    = 1
	quietTime   = 4 * time.Second
)

// benchFleet measures the latency of unrelated puts while many nodes update at once, and without updates. Real nodes
// have their own processors and disks. In both cases here, the nodes share one processor, and etcd and the puts use
// another. The nodes are in memory if there is enough.
func benchFleet(t *testing.T, p *pulley, dir string) {
	t.Helper()
	if runtime.NumCPU() > 1 {
		pin(t, etcdCPU)
		defer pin(t, etcdCPU, nodesCPU)
	}
	where := "on the disk of etcd"
	if memory, ok := memoryFolder(t, p); ok {
		dir, where = memory, "in memory"
	}
	first := commits - fleetRounds
	makeNodes(t, p, dir, first)
	var quietly, during, ratios, nodes figures
	for round := range fleetRounds {
		ended := make(chan struct{})
		time.AfterFunc(quietTime, func() { close(ended) })
		before := p.puts(ended)
		then, took := p.updateAll(dir, first+1+round)
		quietly, during, nodes = append(quietly, before...), append(during, then...), append(nodes, took...)
		ratios = append(ratios, then.percentile(99)/before.percentile(99))
	}
	fmt.Printf("%d nodes, with folders %s and a processor apart from etcd's, update at once, %d times, in turn with no update; meanwhile 100 B are put, again and again\n\n", fleetNodes, where, fleetRounds)
	fmt.Println("| a put of 100 B | puts | median, ms | p99, ms |\n|---|---|---|---|")
	fmt.Printf("| quiet | %d | %.2f | %.2f |\n", len(quietly), 1e3*quietly.median(), 1e3*quietly.percentile(99))
	fmt.Printf("| during updates | %d | %.2f | %.2f |\n", len(during), 1e3*during.median(), 1e3*during.percentile(99))
	fmt.Printf("| ratio of the p99, round by round | | | %s |\n\n", ratios.spread(2))
	fmt.Printf("A node's update took %s s in that crowd.\n\n", nodes.spread(2))
}

// pin restricts this process, including etcd, to these processors.
func pin(t *testing.T, cpus ...int) {
	t.Helper()
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = unix.SchedSetaffinity(id, &set)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // the thread has just ended
			t.Fatal(err)
		}
	}
}

// memoryFolder returns a folder on a tmpfs with space for all nodes' trees, two at a time.
func memoryFolder(t *testing.T, p *pulley) (string, bool) {
	t.Helper()
	var fs unix.Statfs_t
	folders, files := p.h.names(t)
	names := uint64(len(folders) + len(files))
	if unix.Statfs("/dev/shm", &fs) != nil || fs.Type != unix.TMPFS_MAGIC || fs.Ffree < 2*fleetNodes*names {
		return "", false
	}
	dir, err := os.MkdirTemp("/dev/shm", "pulley-bench-")
	if err != nil {
		return "", false
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "nodes"), true
}

// makeNodes creates nodes with a release: one installs it, and the others get links to its files.
func makeNodes(t *testing.T, p *pulley, dir string, commit int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	one := filepath.Join(dir, "node0")
	if err := p.install(p.endpoint, one, commit); err != nil {
		t.Fatal(err)
	}
	tree, err := filepath.EvalSymlinks(filepath.Join(one, "current"))
	if err != nil {
		t.Fatal(err)
	}
	rest := filepath.Join(filepath.Dir(dir), "rest") // without the tree: locks must not be shared
	err = errors.Join(command("cp", "-a", one, rest), os.RemoveAll(filepath.Join(rest, "releases", filepath.Base(tree))))
	for n := 1; n < fleetNodes && err == nil; n++ {
		node := filepath.Join(dir, fmt.Sprintf("node%d", n))
		if err = command("cp", "-a", rest, node); err == nil {
			err = command("cp", "-al", tree, filepath.Join(node, "releases")+"/")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// puts writes a key repeatedly until ended, and returns the duration of each put, in seconds.
func (p *pulley) puts(ended <-chan struct{}) figures {
	p.t.Helper()
	var all figures
	value := strings.Repeat("x", 100)
	for {
		select {
		case <-ended:
			return all
		default:
		}
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
		all = append(all, seconds(p.t, func() error {
			_, err := p.client.Put(ctx, "/unrelated", value)
			return err
		}))
		cancel()
	}
}

// updateAll updates all nodes at once. It returns the durations of the puts meanwhile, and of each node's update.
func (p *pulley) updateAll(dir string, commit int) (put, nodes figures) {
	p.t.Helper()
	args := []string{"chrt", "--idle", "0", filepath.Join(p.bin, "fleet"), p.endpoint, dir, p.h.version(commit)}
	if runtime.NumCPU() > 1 {
		args = append([]string{"taskset", "--cpu-list", strconv.Itoa(nodesCPU)}, args...)
	}
	cmd := exec.CommandContext(p.t.Context(), args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		p.t.Fatalf("the nodes did not start: %q", lines.Text())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := io.WriteString(in, "go\n"); err != nil {
			return
		}
		for lines.Scan() && lines.Text() != "done" {
			if s, err := strconv.ParseFloat(lines.Text(), 64); err == nil {
				nodes = append(nodes, s)
			}
		}
	}()
	put = p.puts(ended)
	if err := cmd.Wait(); err != nil || len(nodes) != fleetNodes {
		p.t.Fatalf("%d nodes of %d have updated: %v", len(nodes), fleetNodes, err)
	}
	return put, nodes
}
