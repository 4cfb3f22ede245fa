package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pulley/internal/applications"
	"pulley/internal/rollout"
)

// etcd refuses a value of more than 1.5 MiB: a job over nodes with many components would not start.
func TestChunksOfMembersAreBounded(t *testing.T) {
	t.Parallel()
	long := applications.Name{Application: strings.Repeat("a", 255), Instance: strings.Repeat("b", 255), Component: strings.Repeat("c", 255)}
	for _, names := range []int{0, 1, 50} {
		var members []rollout.Member
		for i := range 5000 {
			m := rollout.Member{Node: fmt.Sprintf("web%d", i+1), Machine: strings.Repeat("0", 32)}
			for range names {
				m.Does = append(m.Does, long)
			}
			members = append(members, m)
		}
		for rest := members; len(rest) > 0; {
			size := chunkOf(rest)
			b, err := json.Marshal(rest[:size])
			if err != nil || size == 0 || size > membersInChunk || len(b) > 1<<20 {
				t.Fatalf("%d names: a chunk of %d nodes has %d bytes: %v", names, size, len(b), err)
			}
			rest = rest[size:]
		}
	}
}
