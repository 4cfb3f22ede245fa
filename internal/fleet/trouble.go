package fleet

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/model"
)

// Trouble is what one cause does to nodes of an environment.
type Trouble struct {
	Silent  bool     `json:"silent"`            // the nodes report nothing; else they fail
	Cause   string   `json:"-"`                 // the same for nodes that fail alike
	Release string   `json:"release,omitempty"` // that the nodes fail to take; "": they fail on what they have
	Text    string   `json:"text"`              // the sentence of the first node, for people
	Count   int      `json:"nodes"`
	Stuck   int      `json:"stuck"` // of these
	Nodes   []string `json:"first"`
}

// troubles groups nodes by cause.
type troubles map[string]*Trouble

// nodesOfTrouble is the number of nodes that a trouble names, and causesShown that of the causes of an environment that are told apart.
const (
	nodesOfTrouble = 5
	causesShown    = 10
)

// Troubles groups the nodes that fail or are silent by their causes: those of most nodes first, and the rarest failures as one.
func Troubles(nodes []Node) []Trouble {
	all := troubles{}
	for _, n := range nodes {
		all.add(n)
	}
	return Fold(all.list())
}

// add adds a node if it is in trouble. A node that failed is until it converges, whatever it does in between: unsure is that it failed, and
// reports no cause while it tries something else.
func (all troubles) add(n Node) (unsure bool) {
	one := Trouble{Silent: n.State == model.Silent}
	tries := n.View.Failing && (n.State == model.InRun || n.State == model.Pending)
	switch {
	case one.Silent:
		one.Text = n.View.Sentence()
		if n.Reason == model.ReasonLockedOut { // its remedy is another one
			one.Cause = string(n.Reason)
		}
	case tries && (n.attempt == nil || n.attempt.Problem.Code == ""):
		return true
	case n.State == model.FailedState, n.State == model.Stuck, tries:
		one.Cause, one.Text = n.failure()
	default:
		return false
	}
	if a := n.attempt; !one.Silent && a != nil && a.Target != n.lastGood {
		one.Release = a.Target.String()
	}
	key := one.Release + "\n" + one.Cause
	if one.Silent {
		key = "silent " + one.Cause
	}
	t := all[key]
	if t == nil {
		t = &one
		all[key] = t
	}
	if n.State == model.Stuck {
		t.Stuck++
	}
	if t.Count++; len(t.Nodes) < nodesOfTrouble {
		t.Nodes = append(t.Nodes, n.Node)
	}
	return false
}

// failure returns why a node fails: as text to compare, without what differs between nodes that fail alike, and as a sentence.
func (n Node) failure() (cause, text string) {
	p := n.Params
	switch {
	case p.Refusal != nil:
		return "refused " + string(p.Refusal.Code), n.View.Sentence()
	case p.Problem != nil:
		return string(p.Problem.Code) + alike(n.Node, p.Problem.Text), n.View.Sentence()
	case n.attempt != nil && n.attempt.Problem.Code != "":
		return string(n.attempt.Problem.Code) + alike(n.Node, n.attempt.Problem.Text), n.attempt.Problem.String()
	}
	return string(n.Reason), n.View.Sentence()
}

var numbers = regexp.MustCompile(`[0-9]+`)

// alike removes the name of a node, and numbers such as times and processes, from a message.
func alike(node string, text model.Prose) string {
	return numbers.ReplaceAllString(strings.ReplaceAll(string(text), node, "NODE"), "0")
}

// list returns each cause.
func (all troubles) list() []Trouble {
	var some []Trouble
	for _, t := range all {
		some = append(some, *t)
	}
	slices.SortFunc(some, func(a, b Trouble) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Release, b.Release), cmp.Compare(a.Cause, b.Cause), strings.Compare(a.Text, b.Text))
	})
	return some
}

// Others is the cause of failures that Fold does not tell apart.
const Others = "others"

// Fold makes one trouble, the last one, of the rarest failures if there are too many causes. Silence is none of them. The troubles are those of most
// nodes first.
func Fold(all []Trouble) []Trouble {
	failures := 0
	for _, t := range all {
		if !t.Silent {
			failures++
		}
	}
	if failures <= causesShown {
		return all
	}
	var some []Trouble
	rest := Trouble{Cause: Others, Text: "for many different reasons"}
	failures = 0
	for _, t := range all {
		if !t.Silent {
			failures++
		}
		if t.Silent || failures < causesShown {
			some = append(some, t)
			continue
		}
		rest.Count, rest.Stuck = rest.Count+t.Count, rest.Stuck+t.Stuck
		rest.Nodes = append(rest.Nodes, t.Nodes[:min(len(t.Nodes), nodesOfTrouble-len(rest.Nodes))]...)
	}
	return append(some, rest)
}
