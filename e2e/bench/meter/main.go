// Command meter runs two commands alternately for a number of times, and prints each run's cost as JSON lines. It is
// small, because the kernel includes the parent's memory at the start of a process in that process's peak.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// sample is one run of one command.
type sample struct {
	Command int     `json:"command"` // 0 or 1
	Wall    float64 `json:"wall"`    // seconds
	CPU     float64 `json:"cpu"`     // seconds, user and system
	PeakKiB int64   `json:"peak_kib"`
}

func main() {
	var work struct {
		Runs     int         `json:"runs"`
		Commands [2][]string `json:"commands"`
	}
	err := json.NewDecoder(os.Stdin).Decode(&work)
	out := json.NewEncoder(os.Stdout)
	for i := 0; err == nil && i < 2*work.Runs; i++ {
		var s sample
		if s, err = run(work.Commands[i%2]); err == nil {
			s.Command = i % 2
			err = out.Encode(s)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "meter:", err)
		os.Exit(1)
	}
}

func run(args []string) (sample, error) {
	cmd := exec.Command(args[0], args[1:]...)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	wall := time.Since(start)
	if err != nil {
		return sample{}, fmt.Errorf("%v: %w: %s", args, err, out)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return sample{
		Wall: wall.Seconds(), CPU: (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), PeakKiB: usage.Maxrss,
	}, nil
}
