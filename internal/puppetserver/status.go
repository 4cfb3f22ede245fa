package puppetserver

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// Health is what a server reports of itself.
type Health struct {
	Version string        // of puppetserver; "" if it does not report its services
	HasCA   bool          // it runs the CA service
	Stopped []string      // services that do not run: the server is starting or ending
	Skew    time.Duration // how far its clock is ahead of this machine's, to a second
}

// Health reads the server's status service. Everybody may.
func (c *Client) Health(ctx context.Context) (Health, error) {
	r := request{doing: "read the status of the server", method: http.MethodGet, path: "/status/v1/services", accept: typeJSON}
	began := c.now()
	a, err := c.do(ctx, r)
	if err != nil {
		return Health{}, err
	}
	var h Health
	if date, err := http.ParseTime(a.header.Get("Date")); err == nil {
		// The date was made between request and answer, and has no fractions of a second.
		if early, late := date.Sub(a.at), date.Add(time.Second).Sub(began); early > 0 {
			h.Skew = early
		} else if late < 0 {
			h.Skew = late
		}
	}
	if a.status != http.StatusOK && a.status != http.StatusServiceUnavailable { // with 503, a service does not run
		return h, c.refused(r, a)
	}
	if err := h.parse(a.body); err != nil {
		return h, c.unreadable(r, err)
	}
	return h, nil
}

func (h *Health) parse(b []byte) error {
	var services map[string]struct {
		Version string `json:"service_version"`
		State   string `json:"state"`
	}
	if err := json.Unmarshal(b, &services); err != nil {
		return err
	}
	for name, s := range services {
		if s.State != "running" {
			h.Stopped = append(h.Stopped, name)
		}
	}
	slices.Sort(h.Stopped)
	_, h.HasCA = services["ca"]
	h.Version = services["server"].Version
	return nil
}
