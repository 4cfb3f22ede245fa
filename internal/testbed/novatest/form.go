package novatest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// allowedKeys are the keys of "server" in the request's schema, with the microversion that introduced them
// (nova/api/openstack/compute/schemas/servers.py).
var allowedKeys = map[string]int{
	"name": 1, "imageRef": 1, "flavorRef": 1, "adminPass": 1, "metadata": 1, "networks": 1, "OS-DCF:diskConfig": 1, "accessIPv4": 1,
	"accessIPv6": 1, "availability_zone": 1, "block_device_mapping_v2": 1, "config_drive": 1, "key_name": 1, "min_count": 1, "max_count": 1,
	"return_reservation_id": 1, "security_groups": 1, "user_data": 1, "description": 19, "tags": 52, "trusted_image_certificates": 63,
	"host": 74, "hypervisor_hostname": 74, "hostname": 90,
}

var (
	uuid        = regexp.MustCompile(`^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$`)
	metadataKey = regexp.MustCompile(`^[a-zA-Z0-9-_:. ]{1,255}$`)
)

// readForm validates the form of "Create Server" with Nova's messages.
func readForm(body io.Reader, micro int) (raw []byte, problem string) {
	raw, err := io.ReadAll(io.LimitReader(body, 1<<20)) // Nova accepts 112 KiB, oslo's default
	if err != nil || len(raw) > 114688 {
		return nil, "Request is too large."
	}
	var outer map[string]json.RawMessage
	var server map[string]any
	if json.Unmarshal(raw, &outer) != nil || json.Unmarshal(outer["server"], &server) != nil {
		return nil, "Malformed request body"
	}
	for key := range outer {
		if !slices.Contains([]string{"server", "os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"}, key) {
			return nil, unexpected(key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(server)) {
		if since := allowedKeys[key]; since == 0 || micro < since {
			return nil, unexpected(key)
		}
	}
	for _, check := range []func(map[string]any, int) string{words, metadata, userdata, counts, networks} {
		if problem := check(server, micro); problem != "" {
			return nil, problem
		}
	}
	return raw, hints(outer["os:scheduler_hints"])
}

func unexpected(key string) string {
	return fmt.Sprintf("Additional properties are not allowed ('%s' was unexpected)", key)
}

func invalid(key string, value any, why string) string {
	return fmt.Sprintf("Invalid input for field/attribute %s. Value: %v. %s", key, value, why)
}

// words validates the texts. A name has 1 to 255 printable characters, and no space at its ends.
func words(server map[string]any, _ int) string {
	for _, key := range []string{"name", "flavorRef"} {
		if _, ok := server[key]; !ok {
			return fmt.Sprintf("'%s' is a required property", key)
		}
	}
	for _, key := range []string{"name", "flavorRef", "imageRef", "availability_zone", "key_name"} {
		value, ok := server[key]
		if !ok {
			continue
		}
		text, ok := value.(string)
		if !ok {
			return invalid(key, value, fmt.Sprintf("%v is not of type 'string'", value))
		}
		if key == "imageRef" {
			if text != "" && !uuid.MatchString(text) {
				return invalid(key, text, "'"+text+"' is not a 'uuid'")
			}
			continue
		}
		bad := strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
		if n := len([]rune(text)); n < 1 || n > 255 || bad || strings.TrimSpace(text) != text {
			return invalid(key, text, "Leading/trailing spaces, control characters, and lengths beyond 1 to 255 are not allowed.")
		}
	}
	if value, ok := server["config_drive"]; ok && value != true && value != false && value != "True" && value != "False" {
		return invalid("config_drive", value, "is not one of [True, 'True', False, 'False']")
	}
	return ""
}

func metadata(server map[string]any, _ int) string {
	value, ok := server["metadata"]
	if !ok {
		return ""
	}
	all, ok := value.(map[string]any)
	if !ok {
		return invalid("metadata", value, "is not of type 'object'")
	}
	for key, value := range all {
		text, ok := value.(string)
		if !metadataKey.MatchString(key) || !ok || len([]rune(text)) > 255 {
			return invalid("metadata", value, fmt.Sprintf("'%s' does not match any of the regexes: '^[a-zA-Z0-9-_:. ]{1,255}$'", key))
		}
	}
	return ""
}

func userdata(server map[string]any, _ int) string {
	value, ok := server["user_data"]
	if !ok {
		return ""
	}
	text, ok := value.(string)
	if !ok {
		return invalid("user_data", value, "is not of type 'string'")
	}
	if len(text) > 65535 {
		return invalid("user_data", "…", "is too long")
	}
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		return invalid("user_data", "…", "is not a 'base64'")
	}
	return ""
}

// counts accepts requests for one server only. More are not modelled.
func counts(server map[string]any, _ int) string {
	for _, key := range []string{"min_count", "max_count"} {
		if value, ok := server[key]; ok && value != float64(1) && value != "1" {
			return "novatest makes one server at a time"
		}
	}
	if devices, ok := server["block_device_mapping_v2"].([]any); ok && len(devices) > 0 {
		return "novatest has no volumes"
	}
	return ""
}

// networks validates the networks. Since 2.37 they are required, may be a word, and have ids that are UUIDs. Since 2.32
// and 2.42 they have tags.
func networks(server map[string]any, micro int) string {
	value, ok := server["networks"]
	if !ok {
		if micro >= 37 {
			return "'networks' is a required property"
		}
		return ""
	}
	if word, ok := value.(string); ok && micro >= 37 && (word == "none" || word == "auto") {
		return ""
	}
	list, ok := value.([]any)
	if !ok {
		return invalid("networks", value, "is not valid under any of the given schemas")
	}
	for _, entry := range list {
		fields, ok := entry.(map[string]any)
		if !ok {
			return invalid("networks", entry, "is not of type 'object'")
		}
		for key := range fields {
			if !slices.Contains([]string{"uuid", "port", "fixed_ip"}, key) && (key != "tag" || micro < 42) {
				return unexpected(key)
			}
		}
		if id, ok := fields["uuid"].(string); !ok || !uuid.MatchString(id) {
			return invalid("uuid", fields["uuid"], "is not a 'uuid'")
		}
	}
	return ""
}

func hints(raw json.RawMessage) string {
	if raw == nil {
		return ""
	}
	var fields map[string]any
	if json.Unmarshal(raw, &fields) != nil {
		return invalid("os:scheduler_hints", string(raw), "is not of type 'object'")
	}
	if group, ok := fields["group"]; ok {
		if text, ok := group.(string); !ok || !uuid.MatchString(text) {
			return invalid("group", group, "is not a 'uuid'")
		}
	}
	return ""
}
