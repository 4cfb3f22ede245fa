package puppet

import (
	"testing"

	"pulley/internal/model"
)

// A failure that counts as one of the Puppet server pauses a rollout and never reverts it: only requests to that server may count so.
func TestLostServerIsThePuppetServer(t *testing.T) {
	for text, lost := range map[string]bool{
		"Could not evaluate: Could not retrieve file metadata for puppet:///modules/web/motd: Request to https://puppet:8140/puppet/v3/file_metadata/modules/web/motd?links=manage failed after 0.001 seconds: Failed to open TCP connection to puppet:8140 (Connection refused - connect(2))": true,
		"change from 'absent' to 'file' failed: Could not set 'file' on ensure: Request to https://puppet:8140/puppet/v3/file_content/modules/web/motd interrupted after 0.1 seconds":                                                                                                          true,
		"Error 503 on SERVER: stopping": true,
		"Execution of '/usr/bin/apt-get -q -y install nginx' returned 100: Err:1 http://deb.example bookworm/main\n  Could not connect to deb.example:80 (10.0.0.9), connection timed out": false,
		"Systemd start for app failed!\njournalctl log for app:\ndial tcp 10.0.0.9:5432: Connection refused":                                                                               false,
		"Could not retrieve information from environment production source(s) http://files.example/app.tgz: execution expired":                                                             false,
	} {
		r := runReport{Counts: model.Counts{Failed: 1}, Resources: []model.ResourceEvent{{Status: "failed", Messages: []string{text}}}}
		if got := r.lostServer(); got != lost {
			t.Errorf("%s\nlost: %t", text, got)
		}
	}
}

// A time would make each run one of other code, and pause every rollout.
func TestTimesNameNoCode(t *testing.T) {
	for version, want := range map[string]string{"1795693354": "", "1500000000": "", "4c6e0f1": "4c6e0f1", "1234567": "1234567", "2026-11-26 4c6e0f1": "2026-11-26 4c6e0f1", "": ""} {
		if got := meaningful(&runReport{Version: version}); got != want {
			t.Errorf("%q names %q, want %q", version, got, want)
		}
	}
	if got := meaningful(&runReport{Version: "1795693354", CodeID: "c1"}); got != "c1" {
		t.Errorf("the code id is %q", got)
	}
}
