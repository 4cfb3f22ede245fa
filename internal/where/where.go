// Package where selects nodes by an expression over what the fleet knows about them: `os.family == "Debian" && role == "web"`.
// The language is that of github.com/expr-lang/expr; this package owns the names in it. Facts that a node lacks are nil.
//
// It must never read etcd, and never let the facts of a node decide about another node.
package where

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/vm"
)

// The limits of an expression.
const (
	maxText  = 4 << 10
	maxNodes = 1000 // of its syntax tree
)

// allFacts is the variable of all facts.
const allFacts = "facts"

// variables are all names that are no facts; docs/facts.md has their meaning. A fact of the same name is facts.NAME.
var variables = []struct {
	name   string
	zero   any  // of its type
	judged bool // it needs the targets and the status of the node
}{
	{"node", "", false},
	{"role", "", false},
	{"environment", "", false},
	{"stack", "", false},
	{"registered", false, false},
	{"state", "", true},
	{"reason", "", true},
	{"release", "", true},
	{"desired", "", true},
	{"data", 0, true},
	{"outcome", "", true},
	{"unclassified", false, true},
	{"agent", "", true},
	{"trusted", map[string]any{}, false},
	{allFacts, map[string]any{}, false},
}

// Names returns the names of the variables.
func Names() []string {
	names := make([]string, len(variables))
	for i, v := range variables {
		names[i] = v.name
	}
	return names
}

// IsVariable reports whether a name is a variable.
func IsVariable(name string) bool {
	return slices.Contains(Names(), name)
}

// Expression selects nodes.
type Expression struct {
	text   string
	facts  []string   // names of the facts that it reads, in order
	paths  [][]string // parts of facts that it reads, as {os, family}
	all    bool       // it may read any fact
	judged bool
}

// environment returns the variables with a value of their type.
func environment() map[string]any {
	env := map[string]any{}
	for _, v := range variables {
		env[v.name] = v.zero
	}
	return env
}

// Parse compiles an expression. Its error shows the place of a mistake, and lists the names.
func Parse(text string) (*Expression, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("cannot read the expression: it has %d bytes, more than %d", len(text), maxText)
	}
	read := &reads{names: map[string]bool{}, own: map[string]bool{}, facts: map[string]bool{}, bare: map[ast.Node]bool{}, paths: map[ast.Node][]string{}}
	_, err := expr.Compile(text, without(expr.Patch(read), expr.Patch(optional{}))...)
	if err == nil && read.call != nil { // its name may be a fact's
		err = (&file.Error{Location: read.call.Location(), Message: "there is no such function"}).Bind(file.NewSource(text))
	}
	if err != nil {
		return nil, explain(err)
	}
	e := &Expression{text: text, all: len(read.bare) > 0}
	for _, v := range variables {
		e.judged = e.judged || v.judged && read.names[v.name]
		delete(read.names, v.name)
	}
	for name := range read.own {
		delete(read.names, name)
	}
	for name := range read.facts {
		read.names[name] = true
	}
	e.facts = slices.Sorted(maps.Keys(read.names))
	for _, path := range read.paths {
		if path[0] == allFacts {
			path = path[1:]
		}
		if len(path) > 1 && read.names[path[0]] {
			e.paths = append(e.paths, path)
		}
	}
	slices.SortFunc(e.paths, slices.Compare)
	return e, nil
}

// Check returns the mistake of an expression, or nil.
func Check(text string) error {
	_, err := Parse(text)
	return err
}

// String returns the text of the expression.
func (e *Expression) String() string { return e.text }

// Judged reports whether the expression needs the targets and the statuses of the nodes.
func (e *Expression) Judged() bool { return e.judged }

// Facts returns the names of the facts that the expression reads. all: it may read any fact.
func (e *Expression) Facts() (names []string, all bool) { return e.facts, e.all }

// Paths returns the parts of facts that the expression reads, as {os, family}, in order.
func (e *Expression) Paths() [][]string { return e.paths }

// explain returns the mistake of an expression with its place, and the names.
func explain(err error) error {
	problem := err.Error()
	if at := (*file.Error)(nil); errors.As(err, &at) {
		problem = fmt.Sprintf("column %d: %s", at.Column+1, at.Message)
		if at.Snippet != "" {
			problem += at.Snippet
		}
	}
	return fmt.Errorf("cannot read the expression: %s\nits names are %s, and facts such as os.family", problem, strings.Join(Names(), ", "))
}

// reads collects the names that an expression reads.
type reads struct {
	names, own, facts map[string]bool
	bare              map[ast.Node]bool // `facts`, not as in facts.NAME
	call              ast.Node          // of a function that does not exist
	paths             map[ast.Node][]string
}

// Visit implements ast.Visitor. It sees a name before what contains it.
func (r *reads) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		r.names[n.Value] = true
		if n.Value == allFacts {
			r.bare[n] = true
		}
	case *ast.VariableDeclaratorNode:
		r.own[n.Name] = true
	case *ast.CallNode:
		r.call = n
	case *ast.MemberNode:
		base, ok := n.Node.(*ast.IdentifierNode)
		if name, literal := n.Property.(*ast.StringNode); ok && literal && base.Value == allFacts {
			r.facts[name.Value] = true
			delete(r.bare, base)
		}
		if name, literal := n.Property.(*ast.StringNode); literal && !n.Method {
			if path := r.paths[n.Node]; path != nil {
				r.paths[n] = append(slices.Clone(path), name.Value)
				delete(r.paths, n.Node)
			} else if ok {
				r.paths[n] = []string{base.Value, name.Value}
			}
		}
	}
}

// optional makes each access to a part of a missing value nil.
type optional struct{}

// Visit implements ast.Visitor.
func (optional) Visit(node *ast.Node) {
	if m, ok := (*node).(*ast.MemberNode); ok && !m.Method {
		m.Optional = true
		ast.Patch(node, &ast.ChainNode{Node: m})
	}
}

// The limits of an evaluation for one node. The library has none for loops, lists and texts.
const (
	maxSteps     = 1_000_000 // predicates of loops, and elements of the lists that are made
	maxTextBytes = 16 << 20  // of the texts that are made
)

// missing are functions of the library that make more of their arguments than can be counted before it is made, or take its square of steps.
var missing = []string{"repeat", "replace", "join", "uniq"}

// growing are those whose results are larger than their arguments, or new.
var growing = []string{"concat", "flatten", "split", "splitAfter", "string", "toJSON", "fromJSON", "toBase64"}

// without are the options without the missing functions.
func without(more ...expr.Option) []expr.Option {
	more = append(more, expr.Env(environment()), expr.AsBool(), expr.AllowUndefinedVariables(), expr.MaxNodes(maxNodes))
	for _, name := range missing {
		more = append(more, expr.DisableBuiltin(name))
	}
	return more
}

// costName is the function that counts. A user cannot write it.
const costName = "\x00cost"

// ErrTooCostly is the error of an evaluation that reached a limit.
var ErrTooCostly = errors.New("it takes too many steps for one node: a loop is in a loop, or a text or a list grows\nmake the expression simpler")

// counted makes each predicate of a loop, and what makes a text or a list, count.
type counted struct{}

// Visit implements ast.Visitor.
func (counted) Visit(node *ast.Node) {
	count := func(of ast.Node) ast.Node {
		return &ast.CallNode{Callee: &ast.IdentifierNode{Value: costName}, Arguments: []ast.Node{of}}
	}
	switch n := (*node).(type) {
	case *ast.PredicateNode:
		n.Node = count(n.Node)
	case *ast.ArrayNode, *ast.MapNode:
		ast.Patch(node, count(n))
	case *ast.BuiltinNode:
		if slices.Contains(growing, n.Name) {
			ast.Patch(node, count(n))
		}
	case *ast.BinaryNode:
		if n.Operator == "+" {
			ast.Patch(node, count(n))
		}
	}
}

// Matcher evaluates an expression. One goroutine uses it at a time.
type Matcher struct {
	vm          vm.VM
	program     *vm.Program
	broken      error
	ctx         context.Context
	steps, text int   // of this evaluation
	ended       error // why this evaluation was ended
}

// Matcher returns a matcher.
func (e *Expression) Matcher() *Matcher {
	m := &Matcher{}
	m.program, m.broken = expr.Compile(e.text, without(expr.Function(costName, m.cost), expr.Patch(optional{}), expr.Patch(counted{}))...)
	return m
}

// cost counts its argument with all that is in it, and returns it.
func (m *Matcher) cost(of ...any) (any, error) {
	m.count(of[0])
	return of[0], m.ended
}

func (m *Matcher) count(v any) {
	if m.steps++; m.steps > maxSteps || m.text > maxTextBytes {
		m.ended = cmp.Or(m.ended, ErrTooCostly)
	} else if m.steps%10 == 0 && m.ctx.Err() != nil {
		m.ended = context.Cause(m.ctx)
	}
	if m.ended != nil {
		return
	}
	switch v := v.(type) {
	case string:
		if m.text += len(v); m.text > maxTextBytes {
			m.ended = ErrTooCostly
		}
	case []any:
		for _, one := range v {
			m.count(one)
		}
	case map[string]any:
		for name, one := range v {
			m.count(name)
			m.count(one)
		}
	case []string:
		for _, one := range v {
			m.count(one)
		}
	}
}

// Matches reports whether the expression is true for a node with these values: of variables, and of facts by name. An
// error is that of this node alone: its values have other types than the expression expects, or the evaluation is too costly. The
// end of ctx ends an evaluation.
func (m *Matcher) Matches(ctx context.Context, values map[string]any) (bool, error) {
	m.ctx, m.steps, m.text, m.ended = ctx, 0, 0, context.Cause(ctx)
	out, err := any(nil), cmp.Or(m.broken, m.ended)
	if err == nil {
		out, err = m.vm.Run(m.program, values)
	}
	if m.ended != nil {
		err = m.ended
	}
	if at := (*file.Error)(nil); errors.As(err, &at) {
		err = errors.New(at.Message)
	}
	if err != nil {
		return false, fmt.Errorf("cannot evaluate the expression: %w", err)
	}
	is, _ := out.(bool)
	return is, nil
}
