package steps

import "testing"

// A machine that leaves the fleet at a reboot comes back without an identity. One that stays after a poweroff is missed
// in the host list forever.
func TestLeaveOnlyAtPoweroff(t *testing.T) {
	const others = "  71 cron.service stop waiting\n2 umount.target start waiting\n"
	for jobs, want := range map[string]bool{
		"1 poweroff.target start waiting\n" + others:        true,
		others + "1 halt.target            start waiting\n": true,
		"1 reboot.target start waiting\n" + others:          false,
		"1 kexec.target start waiting\n" + others:           false,
		"1 soft-reboot.target start waiting\n" + others:     false,
		"1 poweroff.target stop waiting\n" + others:         false,
		"9 poweroff.target.d start waiting\n" + others:      false,
		others:             false, // `systemctl stop pulley-leave`
		"":                 false,
		"No jobs running.": false,
		"1 poweroff.target start waiting\n2 reboot.target start waiting\n": false, // it is unknown which one wins
	} {
		if got := endsForGood(jobs); got != want {
			t.Errorf("with these jobs it leaves: %t\n%s", got, jobs)
		}
	}
}
