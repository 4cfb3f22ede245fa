package serve

import (
	"net/http"
	"path"
	"strings"

	"pulley/internal/join"
)

// Web are the parts of what serve answers over HTTPS. Each may be nil.
type Web struct {
	Join    http.Handler // all that package join names
	Agents  http.Handler // /agent/
	Metrics http.Handler // /metrics
	Mirror  http.Handler // everything else
}

// ServeHTTP looks at the path as it was sent, which http.ServeMux would mend: what is no name of ours must stay none.
func (w Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	asked := r.URL.EscapedPath()
	part := w.Mirror
	switch {
	case strings.HasPrefix(asked, path.Dir(join.PathJoin)+"/"):
		part = w.Join
	case strings.HasPrefix(asked, agentPath):
		part = w.Agents
	case asked == "/metrics":
		part = w.Metrics
	}
	if part == nil {
		http.NotFound(rw, r)
		return
	}
	part.ServeHTTP(rw, r)
}
