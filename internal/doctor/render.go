package doctor

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pulley/hieradata"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// Code names a kind of finding.
type Code string

// The codes, by check.
const (
	etcdAnswers Code = "etcd_answers"
	etcdSilent  Code = "etcd_silent"

	etcdVersionFine Code = "etcd_version_fine"
	etcdVulnerable  Code = "etcd_vulnerable"

	quotaUse        Code = "quota_use"
	quotaUnknown    Code = "quota_unknown"
	quotaFragmented Code = "quota_fragmented"

	noAlarm          Code = "no_alarm"
	etcdFull         Code = "etcd_full"
	etcdTight        Code = "etcd_tight"
	etcdHealed       Code = "etcd_healed"
	etcdDefragmented Code = "etcd_defragmented"
	etcdCorrupt      Code = "etcd_corrupt"
	alarmsUnreadable Code = "alarms_unreadable"

	diskLow Code = "disk_low"

	tlsFine              Code = "tls_fine"
	plainText            Code = "plain_text"
	plainTextLoopback    Code = "plain_text_loopback"
	noClientCertificates Code = "no_client_certificates"

	authOn           Code = "auth_on"
	authOff          Code = "auth_off"
	authOffPlainText Code = "auth_off_plain_text"

	rootFine     Code = "root_fine"
	rootPassword Code = "root_password"

	certificateEnds          Code = "certificate_ends"
	certificateEnded         Code = "certificate_ended"
	nodeCertificateEnds      Code = "node_certificate_ends"
	nodeCertificateEnded     Code = "node_certificate_ended"
	operatorCertificateEnds  Code = "operator_certificate_ends"
	operatorCertificateEnded Code = "operator_certificate_ended"

	roleFine        Code = "role_fine"
	roleMissing     Code = "role_missing"
	roleExceeds     Code = "role_exceeds"
	roleLacks       Code = "role_lacks"
	rolesUnread     Code = "roles_unread"
	userRolesDiffer Code = "user_roles_differ"
	grantsRepaired  Code = "grants_repaired"

	accessUnreadable Code = "access_unreadable"
	userMissing      Code = "user_missing"
	notJoined        Code = "not_joined"

	operatorsFine       Code = "operators_fine"
	operatorsUnreadable Code = "operators_unreadable"
	operatorUserMissing Code = "operator_user_missing"

	unreadable     Code = "unreadable"
	moreUnreadable Code = "more_unreadable"
	campaignLost   Code = "campaign_lost"
	unexamined     Code = "unexamined"

	moreMarks Code = "more_marks_above"

	statementEnds Code = "statement_ends"

	signaturesUnchecked Code = "signatures_unchecked"
	signaturesRequired  Code = "signatures_required"
	signersDiffer       Code = "signers_differ"

	secretLost      Code = "secret_lost"
	moreSecretsLost Code = "more_secrets_lost"
	secretsFormer   Code = "secrets_former"
	secretsUnread   Code = "secrets_unread"

	secretsUnrotated Code = "secrets_unrotated"
	identityLost     Code = "identity_lost"
	identitiesFine   Code = "identities_fine"

	Floods   Code = "floods"
	flooded  Code = "flooded"
	manyKeys Code = "many_keys"

	duplicate     Code = "duplicate"
	sameMachineID Code = "same_machine_id"

	claimRefused    Code = "claim_refused"
	addressMoved    Code = "address_moved"
	addressShared   Code = "address_shared"
	hostnamesDiffer Code = "hostnames_differ"

	firstBootStalled   Code = "first_boot_stalled"
	firstBootFails     Code = "first_boot_fails"
	provisioningPaused Code = "provisioning_paused"
	turnHeld           Code = "turn_held"
	turnNotAsked       Code = "turn_not_requested"

	machineUnwanted Code = "machine_unwanted"
	moreMachines    Code = "more_machines"
	applyHangs      Code = "apply_hangs"
	contentHangs    Code = "publish_hangs"
	previewBlocks   Code = "preview_blocks"

	environmentMissing Code = "environment_missing"
	destroyUnfinished  Code = "destroy_unfinished"
	identityUnlisted   Code = "identity_unlisted"
	keysLeft           Code = "keys_left"
	keysLeftRemoved    Code = "keys_left_removed"
	moreKeysLeft       Code = "more_keys_left"
	precreatedUnused   Code = "precreated_unused"
	Stray              Code = "stray_user"
	moreStrays         Code = "more_stray_users"
	ownerUnreadable    Code = "user_owner_unreadable"
	strayRoles         Code = "stray_roles"
	straysKept         Code = "strays_kept"
	straysDeleted      Code = "strays_deleted"

	cleanupPending Code = "cleanup_pending"
	presignPending Code = "presign_pending"

	noticeFailed      Code = "notice_failed"
	noticeUnsure      Code = "notice_unsure"
	noticeInterrupted Code = "notice_interrupted"

	nodesFine   Code = "nodes_fine"
	nodesFail   Code = "nodes_fail"
	nodesSilent Code = "nodes_silent"

	nodesLockedOut Code = "nodes_locked_out"

	nodesUnlisted    Code = "nodes_unlisted"
	unknownLockedOut Code = "unknown_locked_out"
	clocksAhead      Code = "clocks_ahead"
	otherPuppet      Code = "other_puppet"

	notScheduled Code = "not_scheduled"

	caFine         Code = "ca_fine"
	caJoinObstacle Code = "ca_join_obstacle"
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
	case etcdAnswers:
		return "etcd answers at " + p.Endpoint, ""
	case etcdSilent:
		return fmt.Sprintf("etcd does not answer at %s: %s", p.Endpoint, p.Text), cmp.Or(string(p.Hint), "start it, or remove it from --endpoints")
	case etcdVersionFine:
		return "etcd " + p.Version + " at " + p.Endpoint, ""
	case etcdVulnerable:
		return fmt.Sprintf("etcd %s at %s lets users read or write past their roles", p.Version, p.Endpoint), "upgrade it to " + p.Needed + " or later"
	case quotaUse:
		if f.Severity == Fine {
			return quota, ""
		}
		return quota, "run `pulley releases prune`, and see flood; or raise the quota (`pulley serve --quota`)"
	case quotaUnknown:
		return fmt.Sprintf("%s does not report its quota; %d MiB are in use", p.Endpoint, p.Used), "etcd before 3.6 does not report it; check --quota-backend-bytes"
	case quotaFragmented:
		return quota, "stored bytes count until defragmentation: `pulley doctor --fix` as an admin, which stops a member for a moment"
	case noAlarm:
		return "etcd has raised no alarm", ""
	case etcdFull:
		return "etcd is full: it accepts only deletions",
			fixIt + " compacts and defragments it; then `pulley releases prune`, and remove a node that fills it (see flood): `pulley nodes remove NODE -e ENVIRONMENT --forget`; else raise the quota: `pulley serve --quota`"
	case etcdTight:
		return "the values in etcd at " + p.Endpoint + " need nearly the complete quota: compaction frees nothing", string(p.Hint)
	case etcdDefragmented:
		return fmt.Sprintf("etcd was defragmented: %d KiB were freed", p.Bytes>>10), ""
	case etcdHealed:
		return fmt.Sprintf("etcd was full; it was compacted and defragmented, %d KiB were freed, and it accepts writes again", p.Bytes>>10), "run `pulley releases prune`, or raise the quota, before it is full again"
	case etcdCorrupt:
		return "etcd reports that the data of its members differ", "replace the member that differs: https://etcd.io/docs/latest/op-guide/data_corruption/"
	case alarmsUnreadable:
		return "etcd's alarms cannot be read: " + string(p.Text), ""
	case diskLow:
		return p.Disk.Sentence(), "make room on that disk: etcd stops without room for its log, and no command works until it starts again"
	case tlsFine:
		return "etcd accepts only clients with a certificate of its CA", ""
	case plainText:
		return p.Endpoint + " is in plain text: anybody who reaches it can run code on every node", "start etcd with --cert-file, --key-file, --trusted-ca-file and --client-cert-auth"
	case plainTextLoopback:
		return p.Endpoint + " is in plain text, for this machine alone: every local user can write everything", "`pulley serve --auth` on the same data folder"
	case noClientCertificates:
		return p.Endpoint + " accepts clients without a certificate", "start etcd with --client-cert-auth and --trusted-ca-file"
	case authOn:
		return "etcd checks its users", ""
	case authOff:
		return "etcd does not check its users: anybody with a certificate of its CA may write everything", "`pulley auth setup`, or `pulley serve --auth` for the embedded etcd"
	case authOffPlainText:
		return "etcd does not check its users: nodes have no identities of their own", "`pulley serve --auth` on the same data folder, or `pulley auth setup` for another etcd"
	case rootFine:
		return "etcd's user root has no password", ""
	case rootPassword:
		return "etcd's user root has a password: anybody who knows it may do everything", "give it a random password, and do not keep it: `etcdctl user passwd root`; while auth is on, root cannot be deleted"
	case certificateEnds, certificateEnded:
		return certificateSentence(f, day)
	case nodeCertificateEnds, nodeCertificateEnded:
		again := "run `pulley-agent run` on the node, which reports why it does not renew; after the end: " + token + ", and boot it again with that token"
		if f.Code == nodeCertificateEnded {
			return "the certificate of " + node + " ended on " + day, again
		}
		return "the certificate of " + node + " ends on " + day + " and was not renewed", again
	case operatorCertificateEnds:
		return "the certificate of operator " + p.Operator + " ends on " + day, login
	case operatorCertificateEnded:
		return "the certificate of operator " + p.Operator + " ended on " + day, login
	case roleFine:
		return "role " + p.Role + " may do what it should, and no more", ""
	case roleMissing:
		return "role " + p.Role + " is missing", fixIt
	case roleExceeds:
		return "role " + p.Role + " may do more than it should: " + strings.Join(p.Have, ", "), fixIt
	case roleLacks:
		return "role " + p.Role + " lacks: " + strings.Join(p.Want, ", "), fixIt
	case rolesUnread:
		return fmt.Sprintf("the roles of %d nodes were not read: there are too many", p.Count), ""
	case userRolesDiffer:
		return fmt.Sprintf("etcd user %s has the roles %s, and should have %s", p.User, strings.Join(p.Have, ", "), strings.Join(p.Want, ", ")), fixIt
	case grantsRepaired:
		return "all roles have the right grants, and all users have the right roles", ""
	case accessUnreadable:
		return "users and roles cannot be read: you are not an admin", "run doctor as an admin: `pulley operators list` shows the admins"
	case userMissing:
		return node + " has an identity and no etcd user: etcd refuses it", "a removal was interrupted: " + remove + "; to bring the node back after that: " + token
	case notJoined:
		return "on the host list without an identity: etcd refuses " + someNodes(p), "give each a token: `pulley token create -e " + env + " --node NODE`, or remove it: `pulley nodes remove NODE -e " + env + "`"
	case operatorsFine:
		return fmt.Sprintf("%d operators, of them %d admins", p.Count, p.Count2), ""
	case operatorsUnreadable:
		return "operators cannot be read: " + string(p.Text), ""
	case operatorUserMissing:
		return "operator " + p.Operator + " has no etcd user: etcd refuses them", login
	case unreadable:
		return string(p.Text), deletion(f.Node, p.Key)
	case moreUnreadable:
		return fmt.Sprintf("%d more keys cannot be read", p.Count), "delete those above: `pulley doctor` then lists the next"
	case campaignLost:
		return string(p.Text),
			"end it: `pulley recover -e " + env + "`, with --sign-key FILE where nodes have allowed signers"
	case unexamined:
		return "cannot be examined: " + string(p.Text), "run `pulley doctor` as an admin"
	case Code(fleet.TargetDiffers), Code(fleet.EpochDiffers), Code(fleet.HistoryGap):
		return p.Differs.Sentence(), "somebody wrote etcd without `pulley`, or restored a part of it: find out who; `pulley recover -e " + env + " --dry-run` shows what `pulley recover -e " + env + "` restores"
	case Code(fleet.Restored):
		return p.Differs.Sentence(), "compare the releases and data of the nodes with `pulley status -e " + env + "`, publish what is missing, then `pulley recover -e " + env + "`"
	case Code(fleet.MarkAbove):
		return p.Differs.Sentence() + ": the node refuses every target up to its mark", "`pulley recover -e " + env + " --sign-key FILE` lowers it to the node's target"
	case Code(fleet.EpochAbove):
		return p.Differs.Sentence(), "etcd was restored from a backup, somebody deleted the newest changes, or a stolen key signed: revoke that key first; `pulley recover -e " + env + "` continues above that epoch, with --sign-key FILE where nodes have allowed signers"
	case Code(fleet.AssignmentDiffers):
		return p.Differs.Sentence() + ": no command of `pulley` assigns targets", "find out who wrote it; the next change of a target, `pulley promote VERSION -e " + env + "` or `pulley rollback -e " + env + "`, voids it"
	case Code(fleet.RetirementUnconfirmed):
		return p.Differs.Sentence() + ": the nodes refuse it", "find out who wrote it into the host list; `pulley nodes run NODE -e " + env + " --cancel-retirement` replaces the request"
	case Code(fleet.StatementMissing), Code(fleet.StatementExpired), Code(fleet.StatementDiffers):
		return p.Differs.Sentence(), "compare the targets with `pulley history -e " + env + "`, then `pulley sign -e " + env + " --sign-key FILE`"
	case statementEnds:
		return fmt.Sprintf("the statement of the targets ends at %s: after that, nodes take nothing new", p.Ends.UTC().Format(time.RFC3339)), "`pulley sign -e " + env + " --sign-key FILE`; repair the timer that renews it"
	case moreMarks:
		return fmt.Sprintf("and the high-water marks of %d more nodes are above the history", p.Count), ""
	case signaturesUnchecked:
		return "these nodes check no signatures, and others do: " + someNodes(p), "install the file of allowed signers on them; `signatures: required` in the environment file demands it"
	case signaturesRequired:
		return "the environment requires signatures, and these nodes check none and take nothing new: " + someNodes(p), "install the file of allowed signers on them"
	case signersDiffer:
		return fmt.Sprintf("these nodes have the list of signers %s, and most have %s: %s", strings.Join(p.Have, ""), strings.Join(p.Want, ""), someNodes(p)),
			"during a change of signers, wait until `pulley status -e " + env + "` shows every node on its target; else compare the files of two nodes"
	case secretLost:
		of := p.Subject + " -e " + env + hieradata.Layer(p.Kind).Flags()
		return "no node can decrypt the secret " + p.Subject + " of layer " + p.Kind + ": its recipient is lost or is another role's, or no host list has its node",
			"set it again: `pulley secret set " + of + "`; or remove it: `pulley data unset " + of + "`"
	case moreSecretsLost:
		return fmt.Sprintf("and %d more secrets", p.Count), "`pulley secret list -e " + env + "` lists them as unknown"
	case secretsFormer:
		return fmt.Sprintf("%d secrets of %s are encrypted to a former recipient: a rotation was interrupted, or earlier data was restored", p.Count, scope(p.Role, env)),
			"`pulley secret rotate -e " + env + roleFlag(p.Role) + "`"
	case secretsUnrotated:
		return fmt.Sprintf("the identities of %d removed nodes decrypt also later secrets of %s: no rotation followed their removal", p.Count, scope(p.Role, env)),
			"`pulley secret rotate -e " + env + roleFlag(p.Role) + "`; set new values if other people could read their disks"
	case secretsUnread:
		return "the secrets cannot be examined: " + string(p.Text), "repair the cause, and run doctor as an administrator, while `pulley serve` runs"
	case identityLost:
		return "the identities of the secrets of " + scope(p.Role, env) + " are lost: pki/secrets.key in serve's data folder is missing or another one",
			"restore pki/secrets.key from a backup; without one: `pulley secret rotate --lost -e " + env + roleFlag(p.Role) + "`, and set each secret again"
	case identitiesFine:
		return fmt.Sprintf("the identities of secrets of %d roles and environments are readable", p.Count), ""
	case Floods, flooded:
		verb := map[Code]string{Floods: "floods", flooded: "flooded"}[f.Code]
		sentence = fmt.Sprintf("%s %s etcd: %d KiB and %d writes within its worst minute", node, verb, p.Bytes>>10, p.Count)
		if p.Count2 > 0 {
			sentence += fmt.Sprintf(", and %d calls, which were refused", p.Count2)
		}
		if p.Count3 > 0 {
			sentence += fmt.Sprintf(", and %d changes within an hour of what other nodes see of it", p.Count3)
		}
		return sentence, "remove it and what it wrote: " + forget
	case manyKeys:
		return fmt.Sprintf("%s has %d keys in etcd, and a node keeps about 20", node, p.Count), "remove it and what it wrote: " + forget
	case duplicate:
		if p.Machine == "" {
			return fmt.Sprintf("a machine at %s uses the name %s, and claims to be the machine of another node: %d times, last %s ago", p.From, node, p.Count, ago),
				"its key or token may be stolen: find that address; " + remove + " ends the access of the name"
		}
		return fmt.Sprintf("a duplicate machine uses the name %s: machine id %s, hostname %s, from %s, %d times, last %s ago", node, p.Machine, p.Hostname, p.From, p.Count, ago),
			"give the other machine a name and a machine id of its own; if it is to be " + node + ": " + remove + ", and a new token for it"
	case firstBootStalled:
		return fmt.Sprintf("the first boot of %s is stalled at step %s; last report %s ago%s", firstBootName(f), p.Step, ago.Round(time.Minute), cause(p.Text)),
			"read its console, or `journalctl -u pulley-first-boot`; `pulley nodes unlock NODE -e " + env + "` lets another machine take its name"
	case firstBootFails:
		return fmt.Sprintf("the first boot of %s fails at step %s and retries%s", firstBootName(f), p.Step, cause(p.Text)), ""
	case provisioningPaused:
		return fmt.Sprintf("%s paused the provisioning of %s %s ago, no new machine begins%s", p.By, env, ago, cause(p.Text)),
			"`pulley nodes resume -e " + env + "` continues it"
	case turnHeld:
		return fmt.Sprintf("%s has its turn to be provisioned for %s, at step %s, until %s at the latest; %d machines wait: %s", firstBootName(f), ago, p.Step, p.Ends.UTC().Format(time.RFC3339), p.Count, someNodes(p)),
			"read its console, or `journalctl -u pulley-first-boot`; `pulley nodes unlock " + node + " -e " + env + " -m REASON` ends its turn at once"
	case turnNotAsked:
		return fmt.Sprintf("%s is the first machine that waits for its turn, and has not requested it for %s; %d machines wait behind it: %s", firstBootName(f), ago, p.Count, someNodes(p)),
			"it loses its position at " + p.Ends.UTC().Format(time.RFC3339) + "; `pulley nodes unlock " + node + " -e " + env + " -m REASON` ends its wait at once"
	case sameMachineID:
		return fmt.Sprintf("%d nodes have the machine id %s: %s", p.Count, p.Machine, someNodes(p)),
			"give each copy a machine id of its own: " + remove + ", on the machine `rm -f /etc/machine-id /var/lib/pulley/identity/*` and `systemd-machine-id-setup`, then join it again with " + token
	case claimRefused:
		return fmt.Sprintf("%s claimed %s, which belongs to %s, and did not get it", node, p.Subject, someNodes(p)),
			"compare both machines; if the value is " + node + "'s, remove the other node, `pulley nodes remove " + p.Nodes[0] + " -e " + env + "`, or register it again; then run `pulley-agent bootstrap --from register` on " + node
	case addressMoved:
		return fmt.Sprintf("%s was registered from %s, and %s was later: %s has no address now", node, p.Subject, someNodes(p), node),
			"run `pulley-agent bootstrap --from register` on " + node + ", or remove it: " + remove
	case addressShared:
		return fmt.Sprintf("%d nodes have the address %s, which is the `address` of none of them in pulley::hosts: %s", p.Count, p.Subject, someNodes(p)),
			"find the node that it belongs to, and run `pulley-agent bootstrap --from register` on each other one without that address; if it is one of bridges for containers, list only the networks of the nodes in `hosts.networks`"
	case hostnamesDiffer:
		return "hostnames that differ from the names of their nodes: " + someNodes(p), ""
	case machineUnwanted:
		return fmt.Sprintf("pulley made machine %s for %s, which the environment does not need: the machine may still exist", p.Machine, node),
			"`pulley env plan` shows it; `pulley env apply` retires it, and `pulley env destroy` retires the complete environment"
	case moreMachines:
		return fmt.Sprintf("and %d more machines", p.Count), ""
	case applyHangs:
		return fmt.Sprintf("%s has applied %s for %s, and blocks every other apply", p.By, env, ago.Round(time.Minute)), "find that process; after its end the lock ends within a minute"
	case contentHangs:
		what := map[string]string{"publish": "publishes, and blocks each prune", "prune": "prunes, and blocks each publish"}[p.Kind]
		return fmt.Sprintf("%s %s, for %s", p.By, what, ago.Round(time.Minute)), "find that process; after its end the lock ends within a minute"
	case previewBlocks:
		return fmt.Sprintf("%s previews a target in %s for %s, and blocks other previews of %s, and rollouts that demand one", p.By, env, ago.Round(time.Minute), someNodes(p)),
			"find that command and end it: its orders end within a minute"
	case environmentMissing:
		return "environment " + env + " does not exist, and keys of its nodes do", "store it: `pulley env apply`; or remove its nodes: `pulley nodes remove NODE -e " + env + " --forget`"
	case destroyUnfinished:
		return "the destruction of environment " + env + " has begun and is not finished: its nodes apply what is left", "run `pulley env destroy " + env + "` again"
	case identityUnlisted:
		return node + " has an identity, and is not on the host list", "`pulley nodes add " + node + " -e " + env + "`, or " + remove
	case keysLeft:
		return fmt.Sprintf("%s is not on the host list, and left %d keys", node, p.Count), forget
	case keysLeftRemoved:
		return fmt.Sprintf("%s was removed, and left %d keys", node, p.Count), forget
	case moreKeysLeft:
		return fmt.Sprintf("and %d more nodes left keys, from %s to %s", p.Count, p.Nodes[0], p.Nodes[1]), "remove them the same way"
	case precreatedUnused:
		return "an etcd user is pre-created for " + node + ", which needs none", "`pulley serve` deletes it by itself; or: " + fixIt
	case Stray:
		return "etcd user " + p.User + " has no owner: its certificate is still valid", fixIt
	case ownerUnreadable:
		return "etcd user " + p.User + " may belong to " + p.Key + ", which cannot be read: it is kept", "repair that record first: `pulley doctor` has the remedy under readable"
	case moreStrays:
		return fmt.Sprintf("and %d more etcd users have no owner", p.Count), fixIt
	case strayRoles:
		return fmt.Sprintf("%d etcd roles belong to nodes that were removed", p.Count), fixIt
	case straysKept:
		return "users without an owner were kept: not every record can be read", ""
	case straysDeleted:
		return fmt.Sprintf("%d users and %d roles without an owner were deleted", p.Count, p.Count2), ""
	case cleanupPending:
		if p.Kind == kindUnread {
			return "environment " + env + " could not be read when nodes were removed: its Puppet servers may still have them: " + someNodes(p),
				"repair it with `pulley env apply`: `pulley serve` then cleans them. If the environment is gone for ever: clean each at the Puppet CA, then `pulley nodes remove NODE -e " + env + " --forget`"
		}
		what := "the Puppet CA " + p.Endpoint + " may still have valid certificates of removed nodes: " + someNodes(p)
		if p.Kind == kindPuppetDB {
			what = "PuppetDB " + p.Endpoint + " still has removed nodes: " + someNodes(p)
		}
		return what + cause(p.Text), "`pulley serve --puppet-credentials DIR` repeats it until it is done. If the environment no longer names this server and it is gone for ever: `pulley nodes remove NODE -e " + env + " --forget`"
	case presignPending:
		return "the Puppet CA " + p.Endpoint + " did not sign the certificates of machines that are to boot: " + someNodes(p) + cause(p.Text),
			"`pulley serve --puppet-credentials DIR` repeats it, and does it again when the machine joins"
	case noticeFailed:
		return "a notice was not sent: " + p.Kind + cause(p.Text), "check the URLs of `pulley serve --notify`"
	case noticeUnsure:
		return "a notice may not have been sent: " + p.Kind, ""
	case noticeInterrupted:
		return "a notice may not have been sent, because its serve ended: " + p.Kind, ""
	case nodesFail:
		what := "fail"
		if p.Version != "" {
			what = "fail to take " + p.Version
		}
		return fmt.Sprintf("%d of %d nodes %s, %s%s", p.Count, p.Count2, what, someNodes(p), cause(p.Text)),
			"`pulley explain " + p.Nodes[0] + " -e " + env + "` shows what its next tick does, `pulley runs " + p.Nodes[0] + " -e " + env + "` its runs"
	case nodesSilent:
		return fmt.Sprintf("%d of %d nodes do not report, %s%s", p.Count, p.Count2, someNodes(p), cause(p.Text)),
			"run `pulley-agent status` on such a node: it names a schedule that does not run. `pulley-agent run` names other causes; if it runs, its schedule or `pulley-agent daemon` may have stopped"
	case nodesLockedOut:
		return "etcd refuses the certificates of nodes, as after a restore from an older backup: " + someNodes(p), fleet.JoinAgain(env, p.Nodes[0])
	case nodesUnlisted:
		return "nodes report and are not on the host list, as after a restore from an older backup: " + someNodes(p),
			fleet.JoinAgain(env, p.Nodes[0])
	case unknownLockedOut:
		return "etcd refuses the certificates of machines whose names are no nodes of the environment, as after a restore from an older backup: " + someNodes(p),
			"for such a machine to be a node, raise the cardinality of its role in the environment file, or add it to the members, and run `pulley env apply`; " + fleet.JoinAgain(env, p.Nodes[0]) + "; else delete the machine"
	case clocksAhead:
		return fmt.Sprintf("%d of %d nodes have a clock that is ahead, %s%s", p.Count, p.Count2, someNodes(p), cause(p.Text)),
			"correct the clock of such a node: if it stops to report, it does not become silent until another node reports"
	case otherPuppet:
		return fmt.Sprintf("another Puppet changes %d of %d nodes, %s", p.Count, p.Count2, someNodes(p)),
			"run `pulley-agent takeover look` there: it shows each; remove it from the release if the release brings it"
	case notScheduled:
		return fmt.Sprintf("the schedule of %d of %d nodes does not run, %s%s", p.Count, p.Count2, someNodes(p), cause(p.Text)),
			cmp.Or(string(p.Hint), "run `pulley-agent status` there: it names the remedy")
	case nodesFine:
		return fmt.Sprintf("nothing is wrong with the %d nodes of %s", p.Count, env), ""
	case caFine:
		return "etcd knows the CA of " + p.Subject + ", and refuses its certificates without a user", ""
	case caJoinObstacle:
		return "nodes cannot join with the CA of " + p.Subject + cause(p.Text), string(p.Hint)
	}
	return string(f.Code), ""
}

// scope names whose secrets a finding is about.
func scope(role, env string) string {
	if role == "" {
		return "environment " + env
	}
	return "role " + role + " of " + env
}

func roleFlag(role string) string {
	if role == "" {
		return ""
	}
	return " --role " + role
}

func certificateSentence(f Finding, day string) (sentence, remedy string) {
	verb := " ends on "
	if f.Code == certificateEnded {
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

// someNodes lists the first nodes of a finding, and the number of the others.
func someNodes(p Params) string {
	names := strings.Join(p.Nodes, ", ")
	if more := int(p.Count) - len(p.Nodes); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names
}

func firstBootName(f Finding) string {
	if f.Node != "" {
		return f.Node
	}
	return "machine " + f.Params.Machine
}

// cause appends a text, where there is one.
func cause(text model.Prose) string {
	if text == "" {
		return ""
	}
	return ": " + string(text)
}

// deletion is the remedy for a key that cannot be read.
func deletion(node, key string) string {
	quoted, after := key, After(key)
	if strings.IndexFunc(key, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("'\"`\\", r) }) >= 0 {
		quoted = "'" + strings.ReplaceAll(strconv.QuoteToASCII(key), "'", `\x27`) + "'"
	}
	remedy := "upgrade `pulley` if a newer one wrote it; else delete it: `pulley doctor --delete " + quoted + "`"
	switch env, kind := etcd.KindOf(key); {
	case kind == "data":
		return "upgrade `pulley` if a newer one wrote it; else `pulley recover -e " + env + "`; without a history, delete it: `pulley doctor --delete " + quoted + "`"
	case after != "":
		remedy += "; " + after
	case node != "":
		remedy += "; if it comes again, remove the node: `pulley nodes remove " + node + " -e " + env + "`"
	}
	return remedy
}

// After returns what the deletion of a key means, or demands, beyond the loss of its value; "" for nothing.
func After(key string) string {
	switch env, kind := etcd.KindOf(key); kind {
	case "spec":
		return "then run `pulley env apply` with its file"
	case "gate", "desired", "history":
		return "then run `pulley recover -e " + env + "`"
	case "statement":
		return "then run `pulley sign -e " + env + " --sign-key FILE`"
	case "operators":
		return "the operator loses its access: `pulley serve`, or `pulley doctor --fix`, deletes its etcd user. It logs in again with a new token; admin gets a new identity with `pulley ca admin`"
	case "releases":
		return "no node can take the release from then on, and a prune deletes its content: a backup of etcd has the record"
	case "withdrawn":
		return "the release is then allowed again: run `pulley releases withdraw` to withdraw it"
	case "agents":
		return "then publish this version again: `pulley agents publish`"
	case "installation":
		return "it marks the machines at providers: Pulley does not recognize them with a new one, and a backup of etcd has the former"
	case "tokens":
		return "then create another token"
	}
	return ""
}
