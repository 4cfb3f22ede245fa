package fleet

import (
	"fmt"
	"testing"
)

// A node that is silent does not fail, however many other causes there are.
func TestFoldKeepsSilence(t *testing.T) {
	t.Parallel()
	var all []Trouble
	for i := range 12 {
		all = append(all, Trouble{Cause: fmt.Sprint("cause ", 10+i), Count: 20 - i, Stuck: 1, Nodes: []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}})
	}
	all = append(all, Trouble{Silent: true, Count: 1, Nodes: []string{"quiet"}})
	some := Fold(all)
	if len(some) != 11 || !some[9].Silent || some[9].Nodes[0] != "quiet" {
		t.Fatalf("%d troubles: %v", len(some), some)
	}
	if rest := some[10]; rest.Cause != Others || rest.Silent || rest.Count != 11+10+9 || rest.Stuck != 3 || fmt.Sprint(rest.Nodes) != "[a9 b9 a10 b10 a11]" {
		t.Errorf("the rest is %+v", rest)
	}
	if some := Fold(all[2:]); len(some) != 11 || some[9].Cause == Others {
		t.Errorf("ten causes are folded: %v", some)
	}
}
