package environments

import (
	"strings"
	"testing"
)

// A time that is shorter than the pause between two reports would make healthy nodes silent again and again.
func TestSilenceAllowsTheSchedule(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"silence: 15m": "", "silence: 720h": "", "silence: 14m59s": "at least 15m0s are needed", "silence: 721h": "at most 720h0m0s are allowed", "silence: soon": "silence",
		"silence: 2h\nuserdata: {schedule: '@hourly'}":                "",
		"silence: 1h59m\nuserdata: {schedule: '@hourly'}":             `nodes of role "web" do not tick for 1h0m0s, by userdata.schedule`,
		"silence: 24h\nuserdata: {schedule: '*/5 8-18 * * mon-fri'}":  "do not tick for 61h5m0s",
		"silence: 123h\nuserdata: {schedule: '*/5 8-18 * * mon-fri'}": "",
		"silence: 48h\nuserdata: {schedule: '* * * * mon-fri'}":       "do not tick for 48h1m0s",
		"silence: 97h\nuserdata: {schedule: '* * * * mon-fri'}":       "",
		"silence: 720h\nuserdata: {schedule: '*/5 8-18 * 1-6 *'}":     "do not tick for 4429h5m0s",
		"userdata: {schedule: '@hourly'}":                             "",
	} {
		_, err := Parse("dev.yaml", []byte(text+"\nroles: {web: {cardinality: 1}}\n"))
		if got := ""; err != nil {
			got = err.Error()
			if want == "" || !strings.Contains(got, want) {
				t.Errorf("%s: %s", text, got)
			}
		} else if want != "" {
			t.Errorf("%s is accepted", text)
		}
	}
}
