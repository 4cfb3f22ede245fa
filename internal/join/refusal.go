package join

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/hieradata"
	"pulley/internal/model"
)

// Reason is the code of a refusal. Versions compare codes. Sentence and Hint make the text.
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
	MachineRemoved       Reason = "machine_removed"
	ForeignClaim         Reason = "name_or_address_of_other_node" // Params.Claimed, Params.Node
	NoCertificate        Reason = "certificate_missing"
	WrongKind            Reason = "certificate_of_other_kind"
	UntrustedCertificate Reason = "certificate_untrusted"
	WrongCertificate     Reason = "certificate_replaced"
	WrongMachine         Reason = "other_machine"
	NotAnOperator        Reason = "operator_required"
	NotAnAdmin           Reason = "administrator_required"
	IdentityLost         Reason = "identity_lost"
	NothingLost          Reason = "identity_not_lost"
	SecretsKeyUnusable   Reason = "secrets_key_unusable" // Params.Problem
	TooManyRecipients    Reason = "too_many_recipients"
	BadSecret            Reason = "secret_unreadable"
	TurnsUsedUp          Reason = "turns_used_up"
	NoPuppetCA           Reason = "puppet_ca_not_set"
	PuppetCARefused      Reason = "puppet_ca_refused" // Params.Problem
	CertnameTaken        Reason = "certname_taken"    // of a node of another environment
)

// The reasons of temporary refusals: the client retries.
const (
	TooManyRefused Reason = "too_many_refused"
	TooOften       Reason = "too_many_requests"
	TooBusy        Reason = "busy"
	NoEtcd         Reason = "etcd_unreachable"
	Broken         Reason = "internal_error"

	NoPuppetCredentials Reason = "puppet_credentials_missing"
	PuppetCAFailed      Reason = "puppet_ca_failed" // Params.Problem
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
	Layer       string      `json:"layer,omitempty"`   // of the secret Claimed
	Machine     string      `json:"machine,omitempty"` // the first digits of the ID of the machine that holds the name
	Sender      string      `json:"sender,omitempty"`  // ID of the requesting machine
	Step        string      `json:"step,omitempty"`    // of the first boot that locks the name
	Used        int         `json:"used,omitempty"`    // uses of the token
	Limit       int         `json:"limit,omitempty"`
	At          time.Time   `json:"at,omitzero"`     // of the event: joined, removed, expired
	Server      time.Time   `json:"server,omitzero"` // the server's clock
	By          string      `json:"by,omitempty"`
	Why         model.Prose `json:"why,omitempty"`
	Problem     model.Prose `json:"problem,omitempty"` // of a library
}

// LogValue returns the parameters that are set, one attribute each.
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

func (e *RefusedError) Error() string { return "pulley serve refuses: " + sentence(e.Reason, e.Params) }

// Hint returns the remedy, or "" if there is none.
func (e *RefusedError) Hint() string { return explain(e.Reason, e.Params).remedy }

// sentence renders a reason. A code of a newer version renders as itself.
func sentence(r Reason, p Params) string {
	x := explain(r, p)
	text := cmp.Or(x.text, string(r))
	if x.detail != "" {
		text += ": " + x.detail
	}
	return text
}

// explanation is what a person reads about a reason. Detail and remedy may be "".
type explanation struct{ text, detail, remedy string }

func explain(r Reason, p Params) explanation {
	of := "" // the scope of a new token, as far as serve named it
	switch {
	case p.Operator != "":
		of = " --operator " + p.Operator
	case p.Environment != "":
		of = " -e " + p.Environment
	}
	newToken := "make another token: pulley token create" + of
	inLayer := p.Claimed + of + hieradata.Layer(p.Layer).Flags()
	claims, environment, node := "", newToken, "pulley token create"+of+" --node "+p.Node
	if p.Claimed != "" {
		claims, environment = "the machine claims "+p.Claimed, "make a token: pulley token create -e "+p.Claimed
	}
	switch {
	case r == BadRequest && p.Field == FieldMachine:
		return explanation{"the request is not valid", p.field(), "check /etc/machine-id; operators log in with a token of `pulley token create --operator NAME`"}
	case r == WrongRole && p.Node != "":
		claims = p.Node + " has role " + p.Role
	case r == WasRemoved && p.Operator != "":
		return explanation{"this operator was revoked", p.Operator, newToken}
	case r == WrongCertificate && p.Operator != "":
		node = newToken
	case r == WrongCertificate:
		node = "to add this machine again, make a new token: " + node
	}
	return map[Reason]explanation{
		BadRequest:           {"the request is not valid", p.field(), ""},
		BadCSR:               {"the certificate signing request is not valid", string(p.Problem), ""},
		CSRHasName:           {"the certificate signing request contains a name or extensions", "", "make the request without subject and extensions: pulley serve chooses the name"},
		NotThisTransport:     {"the request was made for another connection", "", ""},
		MalformedToken:       {"the join token is not complete", "", "copy the complete output of `pulley token create`"},
		UnknownToken:         {"the join token does not exist", "", newToken},
		ForgedToken:          {"the secret of the join token is wrong", "", "copy the complete output of `pulley token create`"},
		RevokedToken:         {"the join token was revoked", "", newToken},
		ExpiredToken:         {"the join token has expired", fmt.Sprintf("at %s, and the server's clock shows %s", stamp(p.At), stamp(p.Server)), newToken},
		UsedUpToken:          {"the join token has no uses left", fmt.Sprintf("used: %d", p.Used), newToken},
		WrongEnvironment:     {"the join token is for another environment", claims, environment},
		WrongRole:            {"the join token is for another role", claims, newToken},
		WrongNode:            {"the join token is for another node", claims, newToken},
		OperatorToken:        {"the join token is for an operator", "", newToken},
		OtherToken:           {"this machine has joined with another token", "", ""},
		TooManyMachines:      {"too many machines are in their first boot with this token", "", newToken},
		NoEnvironment:        {"the environment does not exist", p.Environment, "store the environment: pulley env apply"},
		NoRole:               {"the environment has no such role", p.Role + " in " + p.Environment, "add the role to the environment: pulley env apply"},
		NotAnOperator:        {"this request needs the certificate of an operator or administrator", "", "log in with a token of `pulley token create --operator NAME --as operator`"},
		NotAnAdmin:           {"this request needs the certificate of an administrator", "", "log in with a token of `pulley token create --operator NAME --as admin`"},
		IdentityLost:         {"the identities of these secrets are lost", p.ofSecrets() + ": secrets.key in the CA folder is missing or another one", "restore pki/secrets.key of serve's data folder from a backup; without a backup, run `pulley secret rotate --lost" + of + p.roleFlag() + "` and set each secret again"},
		NothingLost:          {"the identities of these secrets are not lost", p.ofSecrets(), "rotate without --lost: pulley secret rotate" + of + p.roleFlag()},
		SecretsKeyUnusable:   {"pulley serve cannot use secrets.key in its CA folder", string(p.Problem), "mount its volume, or restore pki/secrets.key of serve's data folder from a backup; without a backup, delete the file, and repeat the command"},
		TooManyRecipients:    {"stored generations of data use too many recipients of these secrets", fmt.Sprintf("%s: %d is the most", p.ofSecrets(), p.Limit), "remove old generations: pulley releases prune"},
		BadSecret:            {"a secret cannot be decrypted", p.Claimed + " of layer " + p.Layer, "set it again: pulley secret set " + inLayer + "; or remove it: pulley data unset " + inLayer},
		NoPuppetCA:           {"the environment has no CA of Puppet servers", p.Environment, "write `puppet: {ca: {url: https://…}}` into the environment file, and run `pulley env apply`; or switch off the step: --steps certificate=off"},
		PuppetCARefused:      {"the CA of the Puppet servers does not sign the certificate", string(p.Problem), "run `pulley puppetserver check" + of + "` on the machine of serve"},
		CertnameTaken:        {"a node of another environment has this name at the CA of the Puppet servers", p.Node + " of " + p.Claimed, "give one of the environments a stack or other roles, or remove the node: pulley nodes remove " + p.Node + " -e " + p.Claimed},
		PuppetCAFailed:       {"Puppet's CA failed", string(p.Problem), ""},
		NoPuppetCredentials:  {"this pulley serve has no credentials of the CA of the Puppet servers", "", "start serve with --puppet-credentials DIR"},
		TurnsUsedUp:          {"the provisioning of this machine ended too often without success", fmt.Sprintf("turns: %d", p.Used), "repair the cause in the log of the machine, then allow new turns: pulley nodes unlock " + p.Node + of + " -m REASON"},
		NoName:               {"neither the token nor the machine names the node", fmt.Sprintf("hostname %q is not the name of a node", p.Claimed), "name the node or the role in the machine's userdata"},
		NotCalledFor:         {"the environment does not contain this node", p.Node, "raise the cardinality of its role or add it to the role's members with `pulley env apply`, or run `pulley nodes add " + p.Node + " -e " + p.Environment + "`"},
		AllTaken:             {"every number of this role is taken", fmt.Sprintf("role %s of %s has %d", p.Role, p.Environment, p.Limit), "raise the role's cardinality with `pulley env apply`, or remove nodes with `pulley nodes remove NODE -e " + p.Environment + "`"},
		NameTaken:            {"this node has joined already", p.holder(), "if the machine was installed again, make a new token for it: " + node},
		HeldByAnother:        {"another machine has this node's name", p.holder(), "if this machine replaces it, make a new token for it: " + node},
		LockedByAnother:      {"another machine is in its first boot under this node's name", p.holder() + ": step " + p.Step, "wait until it has finished, or free the name: pulley nodes unlock " + p.Node + of + " -m REASON"},
		WasRemoved:           {"this node was removed from the fleet", p.removal(), "to add it again, make a new token: " + node},
		MachineRemoved:       {"a machine with the same machine id was removed from the fleet", "machine id " + p.Sender + " was " + p.removal(), "if this machine is a copy, give it a machine id of its own: rm -f /etc/machine-id && systemd-machine-id-setup, and boot it again; if it is the removed machine, make a new token: " + node},
		ForeignClaim:         {"a hostname or an address of this machine belongs to another node", p.Claimed + " belongs to " + p.Node, "if " + p.Node + " does not have it any more, run `pulley-agent bootstrap --from register` on " + p.Node + ", or remove it: pulley nodes remove " + p.Node + of + "; else give this machine another one, and run `pulley-agent bootstrap --from register` on it"},
		NoCertificate:        {"this request needs a certificate", "", "a machine without a certificate joins with a token"},
		WrongKind:            {"this request needs the certificate of a node", "the certificate is of kind " + p.Claimed, ""},
		UntrustedCertificate: {"the certificate's CA or fleet is not trusted here", "", "join again with a new token"},
		WrongCertificate:     {"the certificate is not the current one", p.Node + p.Operator + " has a newer one, was revoked, or came after the backup from which etcd was restored", node},
		WrongMachine:         {"another machine has joined as this node", p.holder() + ": this machine has id " + p.Sender, "a copy of a machine needs its own token; remove /var/lib/pulley/identity on the copy first"},
		TooManyRefused:       {"too many requests from this address were refused", "", ""},
		TooOften:             {"too many requests", "", ""},
		TooBusy:              {"too many machines join at this moment", "", ""},
		NoEtcd:               {"etcd does not answer", "", ""},
		Broken:               {"pulley serve has an internal error; its log contains the details", "", ""},
	}[r]
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

func (p Params) ofSecrets() string {
	if p.Role == "" {
		return "those of environment " + p.Environment
	}
	return "those of role " + p.Role + " in " + p.Environment
}

func (p Params) roleFlag() string {
	if p.Role == "" {
		return ""
	}
	return " --role " + p.Role
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
