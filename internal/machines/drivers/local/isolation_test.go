package local

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A trial of a release must not change the user's computer.
func TestWritesStayInMachine(t *testing.T) {
	word := marker(t)
	a, b := startMachine(t, Config{}), startMachine(t, Config{})
	hostPasswd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	places := []string{"/etc", "/usr/bin", "/var/lib", "/root", "/run", "/tmp", "/dev", "/dev/shm"}
	all := strings.Join(places, " ")
	sh(t, a, "for dir in "+all+"; do echo x >$dir/"+word+"; done")
	sh(t, a, "echo '"+word+":x:4242:4242::/:/bin/false' >>/etc/passwd; rm -r /usr/share/doc /etc/cron.d; getent passwd 4242")
	if got := sh(t, a, "for dir in "+all+"; do cat $dir/"+word+"; done"); strings.Count(got, "x") != len(places) {
		t.Errorf("in the machine's %s: %q", all, got)
	}
	if got := sh(t, b, "for dir in "+all+"; do ! test -e $dir/"+word+" || echo $dir; done"); got != "" {
		t.Errorf("another machine has it in %q", got)
	}
	for _, dir := range places {
		if _, err := os.Lstat(filepath.Join(dir, word)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s/%s is on the host: %v", dir, word, err)
		}
	}
	if now, _ := os.ReadFile("/etc/passwd"); !bytes.Equal(now, hostPasswd) {
		t.Error("the host's /etc/passwd changed")
	}
	if _, err := os.Stat("/usr/share/doc"); err != nil {
		t.Error(err)
	}
	if host, _ := os.Hostname(); host == a.hostname {
		t.Error("the host has the machine's name")
	}
}

// Puppet code in a machine must not change the host's sysctls, clock or firewall.
func TestMachineCannotChangeKernelSettings(t *testing.T) {
	m := startMachine(t, Config{})
	for _, script := range []string{
		"echo 1 >/proc/sys/vm/swappiness", "echo h >/proc/sysrq-trigger", "touch /sys/x", "mknod /root/disk b 254 0",
		"date -s 2000-01-01", "ip link set lo down",
	} {
		if out, err := m.Command(t.Context(), "sh", "-c", script).CombinedOutput(); err == nil {
			t.Errorf("%s worked: %s", script, out)
		}
	}
	if out := sh(t, m, "ls /dev"); strings.Contains(out, "vda") || strings.Contains(out, "sda") || strings.Contains(out, "loop") {
		t.Errorf("a machine has disks: %s", out)
	}
	sh(t, m, "echo x >/dev/null; head -c 16 /dev/urandom >/dev/zero; : >/dev/stdout; test -c /dev/ptmx; script -qc 'test -t 0' /dev/null >/dev/null")
}

// The agent in a machine must reach etcd.
func TestMachineReachesHostLoopback(t *testing.T) {
	m := startMachine(t, Config{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			fmt.Fprintln(conn, "hello")
			conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if got := sh(t, m, "timeout 5 bash -c 'cat </dev/tcp/127.0.0.1/"+port+"'"); got != "hello" {
		t.Errorf("the machine read %q", got)
	}
}

// An agent must not find the process of another machine.
func TestMachinesHaveSeparateProcesses(t *testing.T) {
	a, b := startMachine(t, Config{}), startMachine(t, Config{})
	word := marker(t)
	sh(t, a, "setsid sleep 1000 "+strings.Repeat("0", 3)+" >/dev/null 2>&1 </dev/null & setsid sh -c 'sleep 1000; :' "+word+" >/dev/null 2>&1 </dev/null &")
	count := "n=0; for f in /proc/[0-9]*/cmdline; do if tr '\\0' ' ' <$f | grep -q '[s]leep 1000; : '; then n=$((n+1)); fi; done; echo $n"
	if got := sh(t, a, count); got != "1" {
		t.Errorf("the machine sees %s of its own process", got)
	}
	if got := sh(t, b, count); got != "0" {
		t.Errorf("another machine sees %s of it", got)
	}
	if got := sh(t, b, "cat /proc/1/cmdline | tr '\\0' ' '"); got != argInit+" "+b.hostname {
		t.Errorf("process 1 is %q", got)
	}
	sh(t, b, "kill -TERM 1; kill -INT 1; kill -KILL 1; true")
	sh(t, b, "true") // none of which ends it
}
