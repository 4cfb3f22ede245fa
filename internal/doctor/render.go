package doctor

import (
	"fmt"
	"strings"
	"time"

	"pulley/agent"
)

// Code names a kind of finding.
type Code string

// The codes, by check.
const (
	EtcdAnswers Code = "etcd_answers"
	EtcdSilent  Code = "etcd_silent"

	EtcdVersionFine Code = "etcd_version_fine"
	EtcdVulnerable  Code = "etcd_vulnerable"

	QuotaUse        Code = "quota_use"
	QuotaUnknown    Code = "quota_unknown"
	QuotaFragmented Code = "quota_fragmented"

	NoAlarm          Code = "no_alarm"
	EtcdFull         Code = "etcd_full"
	EtcdCorrupt      Code = "etcd_corrupt"
	AlarmsUnreadable Code = "alarms_unreadable"

	TLSFine              Code = "tls_fine"
	PlainText            Code = "plain_text"
	PlainTextLoopback    Code = "plain_text_loopback"
	NoClientCertificates Code = "no_client_certificates"

	AuthOn           Code = "auth_on"
	AuthOff          Code = "auth_off"
	AuthOffPlainText Code = "auth_off_plain_text"

	RootFine     Code = "root_fine"
	RootPassword Code = "root_password"

	CertificateEnds          Code = "certificate_ends"
	CertificateEnded         Code = "certificate_ended"
	NodeCertificateEnds      Code = "node_certificate_ends"
	NodeCertificateEnded     Code = "node_certificate_ended"
	OperatorCertificateEnds  Code = "operator_certificate_ends"
	OperatorCertificateEnded Code = "operator_certificate_ended"

	RoleFine        Code = "role_fine"
	RoleMissing     Code = "role_missing"
	RoleExceeds     Code = "role_exceeds"
	RoleLacks       Code = "role_lacks"
	RolesUnread     Code = "roles_unread"
	UserRolesDiffer Code = "user_roles_differ"
	GrantsRepaired  Code = "grants_repaired"

	AccessUnreadable Code = "access_unreadable"
	UserMissing      Code = "user_missing"
	NotJoined        Code = "not_joined"

	OperatorsFine       Code = "operators_fine"
	OperatorsUnreadable Code = "operators_unreadable"
	OperatorUserMissing Code = "operator_user_missing"

	Unreadable         Code = "unreadable"
	OperatorUnreadable Code = "operator_unreadable"

	Floods   Code = "floods"
	Flooded  Code = "flooded"
	ManyKeys Code = "many_keys"

	Duplicate Code = "duplicate"

	FirstBootStalled Code = "first_boot_stalled"
	FirstBootFails   Code = "first_boot_fails"

	MachineUnwanted Code = "machine_unwanted"
	MoreMachines    Code = "more_machines"
	ApplyHangs      Code = "apply_hangs"

	EnvironmentMissing Code = "environment_missing"
	IdentityUnlisted   Code = "identity_unlisted"
	KeysLeft           Code = "keys_left"
	KeysLeftRemoved    Code = "keys_left_removed"
	MoreKeysLeft       Code = "more_keys_left"
	PrecreatedUnused   Code = "precreated_unused"
	Stray              Code = "stray_user"
	MoreStrays         Code = "more_stray_users"
	StrayRoles         Code = "stray_roles"
	StraysKept         Code = "strays_kept"
	StraysDeleted      Code = "strays_deleted"

	NoticeFailed      Code = "notice_failed"
	NoticeUnsure      Code = "notice_unsure"
	NoticeInterrupted Code = "notice_interrupted"

	NodesFine Code = "nodes_fine"

	CAFine         Code = "ca_fine"
	CAJoinObstacle Code = "ca_join_obstacle"
)

const fixIt = "`pulley doctor --fix`"

// Sentence renders the finding.
func (f Finding) Sentence() string { s, _ := f.render(); return s }

// Remedy renders what to do; commands are in backquotes. It is empty where there is nothing to do.
func (f Finding) Remedy() string { _, r := f.render(); return r }

func (f Finding) render() (sentence, remedy string) {
	p, env, node := f.Params, f.Environment, f.Node
	forget := "`pulley nodes remove " + node + " -e " + env + " --forget`"
	remove := "`pulley nodes remove " + node + " -e " + env + "`"
	token := "`pulley token create -e " + env + " --node " + node + "`"
	login := "`pulley token create --operator " + p.Operator + " --as " + p.As + "`, then `pulley login` with that token"
	day := p.Ends.UTC().Format(time.DateOnly)
	ago := (time.Duration(p.Seconds) * time.Second).Round(time.Second)
	quota := fmt.Sprintf("%d of %d MiB of the quota of %s are in use, %d MiB are stored", p.Used, p.Quota, p.Endpoint, p.Stored)
	switch f.Code {
	case EtcdAnswers:
		return "etcd answers at " + p.Endpoint, ""
	case EtcdSilent:
		return fmt.Sprintf("etcd does not answer at %s: %s", p.Endpoint, p.Text), "start it, or remove it from --endpoints"
	case EtcdVersionFine:
		return "etcd " + p.Version + " at " + p.Endpoint, ""
	case EtcdVulnerable:
		return fmt.Sprintf("etcd %s at %s lets users read or write past their roles", p.Version, p.Endpoint), "upgrade it to " + p.Needed + " or later"
	case QuotaUse:
		if f.Severity == Fine {
			return quota, ""
		}
		return quota, "run `pulley releases prune`, and see flood; or raise the quota (`pulley serve --quota`)"
	case QuotaUnknown:
		return fmt.Sprintf("%s does not report its quota; %d MiB are in use", p.Endpoint, p.Used), "etcd before 3.6 does not report it; check --quota-backend-bytes"
	case QuotaFragmented:
		return quota, "stored bytes count until defragmentation: `etcdctl defrag`, which stops a member for a moment"
	case NoAlarm:
		return "etcd has raised no alarm", ""
	case EtcdFull:
		return "etcd is full: it accepts only deletions",
			"find the node that fills it (see flood); `pulley nodes remove NODE --forget` makes room; else raise the quota, or `etcdctl compact`, `etcdctl defrag` and `etcdctl alarm disarm`"
	case EtcdCorrupt:
		return "etcd reports that the data of its members differ", "replace the member that differs: https://etcd.io/docs/latest/op-guide/data_corruption/"
	case AlarmsUnreadable:
		return "etcd's alarms cannot be read: " + string(p.Text), ""
	case TLSFine:
		return "etcd accepts only clients with a certificate of its CA", ""
	case PlainText:
		return p.Endpoint + " is in plain text: anybody who reaches it can run code on every node", "start etcd with --cert-file, --key-file, --trusted-ca-file and --client-cert-auth"
	case PlainTextLoopback:
		return p.Endpoint + " is in plain text, for this machine alone: every local user can write everything", "`pulley serve --auth` on the same data folder"
	case NoClientCertificates:
		return p.Endpoint + " accepts clients without a certificate", "start etcd with --client-cert-auth and --trusted-ca-file"
	case AuthOn:
		return "etcd checks its users", ""
	case AuthOff:
		return "etcd does not check its users: anybody with a certificate of its CA may write everything", "`pulley auth setup`, or `pulley serve --auth` for the embedded etcd"
	case AuthOffPlainText:
		return "etcd does not check its users: nodes have no identities of their own", "`pulley serve --auth` on the same data folder, or `pulley auth setup` for another etcd"
	case RootFine:
		return "etcd's user root has no password", ""
	case RootPassword:
		return "etcd's user root has a password: anybody who knows it may do everything", "give it a random password that nobody keeps: `etcdctl user passwd root`; while auth is on, root cannot be deleted"
	case CertificateEnds, CertificateEnded:
		return certificateSentence(f, day)
	case NodeCertificateEnds, NodeCertificateEnded:
		again := "run `pulley-agent run` on the node, which reports why it does not renew; after the end: " + token + ", and boot it again with that token"
		if f.Code == NodeCertificateEnded {
			return "the certificate of " + node + " ended on " + day, again
		}
		return "the certificate of " + node + " ends on " + day + " and was not renewed", again
	case OperatorCertificateEnds:
		return "the certificate of operator " + p.Operator + " ends on " + day, login
	case OperatorCertificateEnded:
		return "the certificate of operator " + p.Operator + " ended on " + day, login
	case RoleFine:
		return "role " + p.Role + " may do what it should, and no more", ""
	case RoleMissing:
		return "role " + p.Role + " is missing", fixIt
	case RoleExceeds:
		return "role " + p.Role + " may do more than it should: " + strings.Join(p.Have, ", "), fixIt
	case RoleLacks:
		return "role " + p.Role + " lacks: " + strings.Join(p.Want, ", "), fixIt
	case RolesUnread:
		return fmt.Sprintf("the roles of %d nodes were not read: there are too many", p.Count), ""
	case UserRolesDiffer:
		return fmt.Sprintf("etcd user %s has the roles %s, and should have %s", p.User, strings.Join(p.Have, ", "), strings.Join(p.Want, ", ")), fixIt
	case GrantsRepaired:
		return "grants of roles and roles of users are as they should be", ""
	case AccessUnreadable:
		return "users and roles cannot be read: you are no admin", "run doctor as an admin: `pulley operators list` shows the admins"
	case UserMissing:
		return node + " has an identity and no etcd user: etcd refuses it", "a removal was interrupted: " + remove + "; to bring the node back after that: " + token
	case NotJoined:
		names := strings.Join(p.Nodes, ", ")
		if more := int(p.Count) - len(p.Nodes); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		return "on the host list without an identity: etcd refuses " + names, "give each a token: `pulley token create -e " + env + " --node NODE`, or remove it: `pulley nodes remove NODE -e " + env + "`"
	case OperatorsFine:
		return fmt.Sprintf("%d operators, of them %d admins", p.Count, p.Count2), ""
	case OperatorsUnreadable:
		return "operators cannot be read: " + string(p.Text), ""
	case OperatorUserMissing:
		return "operator " + p.Operator + " has no etcd user: etcd refuses them", login
	case Unreadable:
		return string(p.Text), "upgrade `pulley` if a newer one wrote it; else write it again"
	case OperatorUnreadable:
		return string(p.Text), "revoke that operator and create a new token: `pulley operators revoke NAME`"
	case Floods, Flooded:
		verb := map[Code]string{Floods: "floods", Flooded: "flooded"}[f.Code]
		return fmt.Sprintf("%s %s etcd: %d KiB and %d writes within its worst minute", node, verb, p.Bytes>>10, p.Count), "remove it and what it wrote: " + forget
	case ManyKeys:
		return fmt.Sprintf("%s has %d keys in etcd, and a node keeps about 20", node, p.Count), "remove it and what it wrote: " + forget
	case Duplicate:
		return fmt.Sprintf("a duplicate machine uses the name %s: machine id %s, hostname %s, from %s, %d times, last %s ago", node, p.Machine, p.Hostname, p.From, p.Count, ago),
			"give the other machine a name and a machine id of its own; if it is to be " + node + ": " + remove + ", and a new token for it"
	case FirstBootStalled:
		return fmt.Sprintf("the first boot of %s is stalled at step %s; last report %s ago%s", firstBootName(f), p.Step, ago.Round(time.Minute), cause(p.Text)),
			"read its console, or `journalctl -u pulley-first-boot`; `pulley nodes unlock` lets another machine take its name"
	case FirstBootFails:
		return fmt.Sprintf("the first boot of %s fails at step %s and retries%s", firstBootName(f), p.Step, cause(p.Text)), ""
	case MachineUnwanted:
		return fmt.Sprintf("pulley made machine %s for %s, which nothing calls for: the machine may still exist", p.Machine, node),
			"`pulley env plan` shows it; `pulley env apply` retires it, and `pulley env destroy` the whole environment"
	case MoreMachines:
		return fmt.Sprintf("and %d more machines", p.Count), ""
	case ApplyHangs:
		return fmt.Sprintf("%s has applied %s for %s, and nobody else can", p.By, env, ago.Round(time.Minute)), "find that process; after its end the lock ends within a minute"
	case EnvironmentMissing:
		return "environment " + env + " does not exist, and keys of its nodes do", "store it: `pulley env apply`; or remove its nodes: `pulley nodes remove NODE -e " + env + " --forget`"
	case IdentityUnlisted:
		return node + " has an identity, and is not on the host list", "`pulley nodes add " + node + " -e " + env + "`, or " + remove
	case KeysLeft:
		return fmt.Sprintf("%s is on no list, and left %d keys", node, p.Count), forget
	case KeysLeftRemoved:
		return fmt.Sprintf("%s was removed, and left %d keys", node, p.Count), forget
	case MoreKeysLeft:
		return fmt.Sprintf("and %d more nodes left keys, from %s to %s", p.Count, p.Nodes[0], p.Nodes[1]), "remove them the same way"
	case PrecreatedUnused:
		return "an etcd user is pre-created for " + node + ", which needs none", "`pulley serve` deletes it by itself; or: " + fixIt
	case Stray:
		return "etcd user " + p.User + " belongs to nobody: its certificate is still valid", fixIt
	case MoreStrays:
		return fmt.Sprintf("and %d more etcd users belong to nobody", p.Count), fixIt
	case StrayRoles:
		return fmt.Sprintf("%d etcd roles are of nodes that are gone", p.Count), fixIt
	case StraysKept:
		return "users that belong to nobody were kept: not every record can be read", ""
	case StraysDeleted:
		return fmt.Sprintf("%d users and %d roles that belonged to nobody were deleted", p.Count, p.Count2), ""
	case NoticeFailed:
		return "a notice was not sent: " + p.Kind + cause(p.Text), "check the URLs of `pulley serve --notify`"
	case NoticeUnsure:
		return "a notice may not have been sent: " + p.Kind, ""
	case NoticeInterrupted:
		return "a notice may not have been sent, because its serve ended: " + p.Kind, ""
	case NodesFine:
		return fmt.Sprintf("nothing is wrong with the %d nodes of %s", p.Count, env), ""
	case CAFine:
		return "etcd knows the CA of " + p.Subject + ", and refuses its certificates without a user", ""
	case CAJoinObstacle:
		return "nodes cannot join with the CA of " + p.Subject + cause(p.Text), string(p.Hint)
	}
	return string(f.Code), ""
}

func certificateSentence(f Finding, day string) (sentence, remedy string) {
	verb := " ends on "
	if f.Code == CertificateEnded {
		verb = " ended on "
	}
	switch certKind(f.Params.Kind) {
	case certEtcd:
		sentence, remedy = "etcd's certificate at "+f.Params.Subject, "`pulley serve` renews its own; give another etcd a new one"
	case certOwn:
		sentence, remedy = "your own certificate, "+f.Params.Subject+",", "ask an admin for a token, then `pulley login` with it"
	case certCA:
		sentence, remedy = "the CA "+f.Params.Subject, "`pulley ca rotate`, long before its end"
	}
	if f.Severity == Fine {
		remedy = ""
	}
	return sentence + verb + day, remedy
}

func firstBootName(f Finding) string {
	if f.Node != "" {
		return f.Node
	}
	return "machine " + f.Params.Machine
}

// cause appends a text, where there is one.
func cause(text agent.Prose) string {
	if text == "" {
		return ""
	}
	return ": " + string(text)
}
