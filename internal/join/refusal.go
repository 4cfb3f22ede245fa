package join

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/agent"
)

// Reason is the code of a refusal. Versions compare codes. Sentence and Remedy make the text.
type Reason string

// The reasons of final refusals.
const (
	BadRequest           Reason = "bad_request" // Params.Field
	BadCSR               Reason = "bad_csr"
	CSRHasName           Reason = "csr_has_name"
	NotThisTransport     Reason = "other_connection"
	MalformedToken       Reason = "token_malformed"
	UnknownToken         Reason = "token_unknown"
	ForgedToken          Reason = "token_secret_wrong"
	RevokedToken         Reason = "token_revoked"
	ExpiredToken         Reason = "token_expired"
	UsedUpToken          Reason = "token_used_up"
	WrongEnvironment     Reason = "token_of_other_environment"
	WrongRole            Reason = "token_of_other_role"
	WrongNode            Reason = "token_of_other_node"
	OperatorToken        Reason = "token_of_operator"
	OtherToken           Reason = "joined_with_other_token"
	TooManyMachines      Reason = "token_has_too_many_machines"
	NoEnvironment        Reason = "environment_unknown"
	NoRole               Reason = "role_unknown"
	NoName               Reason = "node_not_named"
	NotCalledFor         Reason = "node_not_in_environment"
	AllTaken             Reason = "role_full"
	NameTaken            Reason = "node_joined_already"
	HeldByAnother        Reason = "name_of_other_machine"
	LockedByAnother      Reason = "name_locked"
	WasRemoved           Reason = "removed"
	NoCertificate        Reason = "certificate_missing"
	WrongKind            Reason = "certificate_of_other_kind"
	UntrustedCertificate Reason = "certificate_untrusted"
	WrongCertificate     Reason = "certificate_replaced"
	WrongMachine         Reason = "other_machine"
)

// The reasons of temporary refusals: the client retries.
const (
	TooManyRefused Reason = "too_many_refused"
	TooOften       Reason = "too_many_requests"
	TooBusy        Reason = "busy"
	NoEtcd         Reason = "etcd_unreachable"
	Broken         Reason = "internal_error"
)

// Field is a part of a request.
type Field string

// The fields that can be wrong in a bad request.
const (
	FieldBody     Field = "body"
	FieldMachine  Field = "machine"
	FieldNode     Field = "node"
	FieldOperator Field = "operator"
	FieldState    Field = "state"
	FieldStep     Field = "step"
)

// Params are the facts behind a reason. Each reason has few of them.
type Params struct {
	Field       Field       `json:"field,omitempty"`
	Environment string      `json:"environment,omitempty"`
	Role        string      `json:"role,omitempty"`
	Node        string      `json:"node,omitempty"`
	Operator    string      `json:"operator,omitempty"`
	Claimed     string      `json:"claimed,omitempty"` // the machine's claim
	Machine     string      `json:"machine,omitempty"` // the first digits of the ID of the machine that holds the name
	Sender      string      `json:"sender,omitempty"`  // ID of the requesting machine
	Step        string      `json:"step,omitempty"`    // of the first boot that locks the name
	Used        int         `json:"used,omitempty"`    // uses of the token
	Limit       int         `json:"limit,omitempty"`
	At          time.Time   `json:"at,omitzero"`     // of the event: joined, removed, expired
	Server      time.Time   `json:"server,omitzero"` // the server's clock
	By          string      `json:"by,omitempty"`
	Why         agent.Prose `json:"why,omitempty"`
	Problem     agent.Prose `json:"problem,omitempty"` // of a library
}

// LogValue returns the parameters that are set, for the log.
func (p Params) LogValue() slog.Value {
	b, _ := json.Marshal(p) // plain fields: it can't fail
	var set map[string]any
	_ = json.Unmarshal(b, &set)
	var attrs []slog.Attr
	for _, key := range slices.Sorted(maps.Keys(set)) {
		attrs = append(attrs, slog.Any(key, set[key]))
	}
	return slog.GroupValue(attrs...)
}

// RefusedError is a refusal by serve. It is final: a retry, or another server, changes nothing.
type RefusedError struct {
	Reason Reason `json:"reason"`
	Params Params `json:"params,omitzero"`
}

func (e *RefusedError) Error() string { return "pulley serve refuses: " + Sentence(e.Reason, e.Params) }

// Hint returns the remedy.
func (e *RefusedError) Hint() string { return Remedy(e.Reason, e.Params) }

// Sentence renders a reason. A code of a newer version renders as itself.
func Sentence(r Reason, p Params) string {
	text, details := describe(r, p)
	for _, d := range details {
		if d != "" {
			text += ": " + d
		}
	}
	return text
}

func describe(r Reason, p Params) (text string, details []string) {
	claims := ""
	if p.Claimed != "" {
		claims = "the machine claims " + p.Claimed
	}
	switch r {
	case BadRequest:
		return "the request is not valid", []string{p.field()}
	case BadCSR:
		return "the certificate signing request is not valid", []string{string(p.Problem)}
	case CSRHasName:
		return "the certificate signing request contains a name or extensions", nil
	case NotThisTransport:
		return "the request was made for another connection", nil
	case MalformedToken:
		return "the join token is not complete", nil
	case UnknownToken:
		return "the join token does not exist", nil
	case ForgedToken:
		return "the secret of the join token is wrong", nil
	case RevokedToken:
		return "the join token was revoked", nil
	case ExpiredToken:
		return "the join token has expired", []string{fmt.Sprintf("at %s, and the server's clock shows %s", stamp(p.At), stamp(p.Server))}
	case UsedUpToken:
		return "the join token has no uses left", []string{fmt.Sprintf("used: %d", p.Used)}
	case WrongEnvironment:
		return "the join token is for another environment", []string{claims}
	case WrongRole:
		if p.Node != "" {
			return "the join token is for another role", []string{p.Node + " has role " + p.Role}
		}
		return "the join token is for another role", []string{claims}
	case WrongNode:
		return "the join token is for another node", []string{claims}
	case OperatorToken:
		return "the join token is for an operator", nil
	case OtherToken:
		return "this machine has joined with another token", nil
	case TooManyMachines:
		return "too many machines are in their first boot with this token", nil
	}
	return describeName(r, p)
}

func describeName(r Reason, p Params) (text string, details []string) {
	switch r {
	case NoEnvironment:
		return "the environment does not exist", []string{p.Environment}
	case NoRole:
		return "the environment has no such role", []string{p.Role + " in " + p.Environment}
	case NoName:
		return "neither the token nor the machine names the node", []string{fmt.Sprintf("hostname %q is no node's", p.Claimed)}
	case NotCalledFor:
		return "the environment does not contain this node", []string{p.Node}
	case AllTaken:
		return "every number of this role is taken", []string{fmt.Sprintf("role %s of %s has %d", p.Role, p.Environment, p.Limit)}
	case NameTaken:
		return "this node has joined already", []string{p.holder()}
	case HeldByAnother:
		return "another machine has this node's name", []string{p.holder()}
	case LockedByAnother:
		return "another machine is in its first boot under this node's name", []string{p.holder(), "step " + p.Step}
	case WasRemoved:
		if p.Operator != "" {
			return "this operator was revoked", []string{p.Operator}
		}
		return "this node was removed from the fleet", []string{p.removal()}
	}
	return describeSender(r, p)
}

func describeSender(r Reason, p Params) (text string, details []string) {
	switch r {
	case NoCertificate:
		return "this request needs a certificate", nil
	case WrongKind:
		return "this request needs the certificate of a node", []string{"the certificate is of kind " + p.Claimed}
	case UntrustedCertificate:
		return "the certificate's CA or fleet is not trusted here", nil
	case WrongCertificate:
		return "the certificate is not the current one", []string{p.Node + p.Operator + " has a newer one, or was revoked"}
	case WrongMachine:
		return "another machine has joined as this node", []string{p.holder(), "this machine has id " + p.Sender}
	case TooManyRefused:
		return "too many requests from this address were refused", nil
	case TooOften:
		return "too many requests", nil
	case TooBusy:
		return "too many machines join at this moment", nil
	case NoEtcd:
		return "etcd does not answer", nil
	case Broken:
		return "pulley serve has an internal error; its log contains the details", nil
	}
	return string(r), nil
}

func (p Params) field() string {
	switch {
	case p.Field == FieldBody && p.Limit > 0:
		return fmt.Sprintf("it is longer than %d bytes", p.Limit)
	case p.Field == FieldBody:
		return "it is not the JSON of this request"
	case p.Field == FieldMachine:
		return "it contains no valid machine id"
	case p.Problem != "":
		return string(p.Problem)
	}
	return fmt.Sprintf("its %s is not valid", p.Field)
}

// holder describes the machine that holds the name.
func (p Params) holder() string {
	var parts []string
	if !p.At.IsZero() {
		parts = append(parts, "joined at "+stamp(p.At))
	}
	if p.Machine != "" {
		parts = append(parts, "has machine id "+p.Machine)
	}
	if len(parts) == 0 {
		parts = []string{"is on the host list"}
	}
	return strings.TrimSpace(p.Node + " " + strings.Join(parts, " and "))
}

func (p Params) removal() string {
	text := p.Node
	if !p.At.IsZero() {
		text += " at " + stamp(p.At)
	}
	if p.By != "" {
		text += " by " + p.By
	}
	if p.Why != "" {
		text += ": " + string(p.Why)
	}
	return text
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Remedy renders the remedy, or "" if there is none.
func Remedy(r Reason, p Params) string {
	node := func(verb string) string { return verb + ": pulley token create --node " + p.Node }
	switch r {
	case BadRequest:
		if p.Field == FieldMachine {
			return "check /etc/machine-id; operators log in with a token of `pulley token create --operator NAME`"
		}
		return ""
	case CSRHasName:
		return "make the request without subject and extensions: pulley serve chooses the name"
	case MalformedToken, ForgedToken:
		return "copy the whole output of `pulley token create`"
	case UnknownToken, RevokedToken, ExpiredToken, UsedUpToken, WrongRole, WrongNode, OperatorToken, TooManyMachines:
		return "make another token: pulley token create"
	case WrongEnvironment:
		if p.Claimed != "" {
			return "make a token: pulley token create -e " + p.Claimed
		}
		return "make another token: pulley token create"
	case NoEnvironment:
		return "store the environment: pulley env apply"
	case NoRole:
		return "add the role to the environment: pulley env apply"
	case NoName:
		return "name the node or the role in the machine's userdata"
	case NotCalledFor:
		return "raise the cardinality of its role or add it to the role's members with `pulley env apply`, or run `pulley nodes add`"
	case AllTaken:
		return "raise the role's cardinality with `pulley env apply`, or remove nodes with `pulley nodes remove`"
	case NameTaken:
		return node("if the machine was installed again, make a new token for it")
	case HeldByAnother:
		return node("if this machine replaces it, make a new token for it")
	case LockedByAnother:
		return "wait until it has finished, or free the name: pulley nodes unlock " + p.Node + " -m REASON"
	case WasRemoved:
		if p.Operator != "" {
			return "make another token: pulley token create"
		}
		return node("to add it again, make a new token")
	case NoCertificate:
		return "a machine without a certificate joins with a token"
	case UntrustedCertificate:
		return "join again with a new token"
	case WrongCertificate:
		if p.Operator != "" {
			return "make another token: pulley token create --operator " + p.Operator
		}
		return node("to add this machine again, make a new token")
	case WrongMachine:
		return "a copy of a machine needs its own token; remove /var/lib/pulley/identity on the copy first"
	}
	return ""
}
