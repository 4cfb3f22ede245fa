package serve

import (
	"net/http"
	"path"
	"strings"

	"pulley/internal/join"
)

// Web holds the handlers of serve's HTTPS listener. Each may be nil.
type Web struct {
	Join    http.Handler // all paths of package join
	Agents  http.Handler // /agent/
	Metrics http.Handler // /metrics
	Mirror  http.Handler // everything else
}

// ServeHTTP uses the path as it was sent. http.ServeMux would clean the path, and an invalid path could become a valid
// one.
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
