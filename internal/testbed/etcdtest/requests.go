package etcdtest

import "github.com/prometheus/client_golang/prometheus"

// Requests returns the number of gRPC requests that etcd has begun to serve in this process, over all members. It
// reads etcd's metric grpc_server_started_total.
func (s *Server) Requests() int {
	s.t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	total := 0.0
	for _, f := range families {
		if f.GetName() != "grpc_server_started_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			total += m.GetCounter().GetValue()
		}
	}
	return int(total)
}
