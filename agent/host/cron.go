package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pulley/internal/bounded"
)

// Unscheduled returns why cron does not start the agent although its crontab exists; nil if nothing shows a reason.
func Unscheduled(root, crontab string, now time.Time) error {
	info, err := os.Stat(crontab)
	if _, link := os.Readlink(crontab); link == nil && errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cron does not read %s: it is a link to a file that does not exist\nremove the link, and run `pulley-agent bootstrap --from schedule`", crontab)
	}
	text, unread := bounded.ReadFile(crontab, 1<<20)
	if err != nil || unread != nil || len(AgentJobs(text)) == 0 {
		return nil // something else starts the agent
	}
	if err := CronRefuses(root, now); err != nil {
		return err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("cron does not read %s: others than root can write it\nrun `chmod 644 %[1]s`", crontab)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 && os.Geteuid() == 0 {
		return fmt.Errorf("cron does not read %s: root does not own it\nrun `chown root:root %[1]s`", crontab)
	}
	if filepath.Join("/", root) == "/" && !cronRuns() {
		return errors.New("cron does not start the agent: no cron runs on this machine\nstart cron, or let `pulley-agent daemon` run")
	}
	return nil
}

// Starts refuses a crontab that does not start the agent, where no `pulley-agent daemon` runs. Something else may start it.
func Starts(root, crontab string) error {
	text, err := bounded.ReadFile(crontab, 1<<20)
	if err == nil && len(AgentJobs(text)) > 0 || filepath.Join("/", root) == "/" && runs(isDaemon) {
		return nil
	}
	return fmt.Errorf("%s does not start the agent\nunless something else does: `pulley-agent bootstrap --from schedule`; where puppet agent runs: `pulley-agent takeover look`", crontab)
}

// CronRefuses returns why cron's check of root's account (pam_unix(8)) refuses its jobs, or nil.
func CronRefuses(root string, now time.Time) error {
	pam, _ := filepath.Glob(filepath.Join("/", root, "etc/pam.d/cron*")) // cron, crond
	text, err := bounded.ReadFile(filepath.Join("/", root, "etc/shadow"), 1<<20)
	if err != nil || len(pam) == 0 {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ":") // shadow(5)
		if f[0] != "root" || len(f) < 8 {
			continue
		}
		day := func(i int) (int, bool) { n, err := strconv.Atoi(f[i]); return n, err == nil && n >= 0 }
		date := func(n int) string { return time.Unix(int64(n)*86400, 0).UTC().Format(time.DateOnly) }
		today := int(now.Unix() / 86400)
		changed, aged := day(2)
		longest, limited := day(4)
		switch expires, ends := day(7); {
		case ends && today >= expires:
			return fmt.Errorf("cron does not run the jobs of root: the account of root expired on %s\nrun `chage -E -1 root`", date(expires))
		case aged && changed == 0:
			return errors.New("cron does not run the jobs of root: the password of root must be changed first\nrun `passwd root`")
		case aged && limited && today-changed > longest:
			return fmt.Errorf("cron does not run the jobs of root: the password of root expired on %s\nrun `chage -M -1 root`, or `passwd root`", date(changed+longest))
		}
	}
	return nil
}

// cronRuns reports whether a cron or the agent's own daemon runs here, or systemd runs cron's jobs (systemd-cron). Where processes cannot be
// read, it does.
func cronRuns() bool {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	generators, _ := filepath.Glob("/usr/lib/systemd/system-generators/*cron*")
	return len(names) == 0 || len(generators) > 0 || runs(func(comm, dir string) bool {
		return isDaemon(comm, dir) || strings.Contains(comm, "cron") // cron, crond, cronie, fcron, bcron-sched
	})
}

func isDaemon(comm, dir string) bool {
	if comm != "pulley-agent\n" {
		return false
	}
	args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	return strings.Contains(string(args), "\x00daemon\x00")
}

// runs reports whether a process is such a one. A zombie does not run.
func runs(such func(comm, dir string) bool) bool {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	return slices.ContainsFunc(names, func(name string) bool {
		comm, err := os.ReadFile(name)
		if err != nil || !such(string(comm), filepath.Dir(name)) {
			return false
		}
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "stat")) // proc_pid_stat(5)
		return !strings.Contains(string(stat), ") Z ")
	})
}
