package cluster

import "testing"

// Nodes can read or write past their roles in a version that doctor wrongly accepts.
func TestVulnerableVersionsOfEtcd(t *testing.T) {
	t.Parallel()
	for v, ok := range map[string]bool{
		"3.5.32": false, "3.5.33": true, "3.5.40": true, "3.6.13": false, "3.6.14": true, "3.7.0": false, "3.7.1": true, "3.7.3": true, "3.8.0": true,
		"4.0.0": true, "3.4.99": false, "3.7.1-rc.0": true, "": false, "unknown": false,
	} {
		if _, bad := Outdated(v); bad == ok {
			t.Errorf("etcd %q: outdated is %v", v, bad)
		}
	}
}
