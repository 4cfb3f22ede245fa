//go:build bench

package bench

import (
	"fmt"
	"runtime"
	"testing"
)

// Measures the answer of a Puppet server's classifier, which each catalog of its nodes waits for, against a minimal Go program that reads
// the node's entry.
func TestBenchClassify(t *testing.T) {
	w := newWorld(t)
	w.converge()
	for name, value := range map[string]string{"PULLEY_ENDPOINTS": w.server.Endpoint, "PULLEY_CACERT": w.pki.CA, "PULLEY_CERT": w.pki.ClientCert, "PULLEY_KEY": w.pki.ClientKey} {
		t.Setenv(name, value)
	}
	enc := []string{w.bin("pulley"), "enc", "controller1", "--cache", w.dir("answers")}
	bare := []string{w.bin("bare"), w.server.Endpoint, w.pki.CA, w.pki.ClientCert, w.pki.ClientKey, "/pulley/v1/environments/dev/hosts/nodes/controller1"}
	samples := w.meter(enc, bare)
	fmt.Printf("\nan answer for a Puppet server (whole process, mTLS to etcd on loopback), %d runs each, in turn; %s, %d CPUs\n\n", ticks, runtime.Version(), runtime.NumCPU())
	fmt.Println("|                     | wall median | wall p90 | CPU median | peak memory |")
	fmt.Println("|---|---|---|---|---|")
	for i, name := range []string{"pulley enc", "bare Go client"} {
		fmt.Printf("| %s | %.1f ms | %.1f ms | %.1f ms | %.1f MiB |\n", name, 1e3*samples.wall(i, 50), 1e3*samples.wall(i, 90), 1e3*samples.cpu(i, 50), samples.peak(i))
	}
	fmt.Printf("| ratio, pair by pair | %.2f | | | wanted: a median of at most 50 ms |\n\n", samples.ratio())
}
