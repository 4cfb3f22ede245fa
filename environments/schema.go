package environments

import (
	"bytes"
	_ "embed" // the schemas
	"encoding/json"
	"strings"

	"pulley/internal/firstboot"
	"pulley/internal/schedule"
)

// schemaText is the schema of environment files, without the patterns of schedules and the definition of userdata.
//
//go:embed environment.schema.json
var schemaText string

// Schema returns the JSON Schema of environment files, for editors. It contains every rule that a schema can express.
func Schema() string {
	interval := "^(@every ([0-9]+(\\.[0-9]+)?[hms])+|" + schedule.Pattern() + ")$"
	return strings.NewReplacer(`"INTERVAL"`, string(encoded(interval)), `"userdata": {}`, `"userdata": `+string(encoded(userdataSchema()))).Replace(schemaText)
}

// CloudSchema returns the JSON Schema of cloud files. Its definitions are those of environment files.
func CloudSchema() string {
	all := Schema()
	return cloudSchemaHead + all[strings.Index(all, `  "$defs": {`):]
}

const cloudSchemaHead = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Pulley cloud",
  "description": "What an environment's words stand for in one cloud; ` + "`--cloud NAME`" + ` reads clouds/NAME.yaml. The environment's own words win.",
  "type": "object",
  "properties": {
    "provider": {"$ref": "#/$defs/provider"},
    "flavors": {"$ref": "#/$defs/flavors"},
    "images": {"$ref": "#/$defs/images"},
    "networks": {"$ref": "#/$defs/networks"},
    "userdata": {"$ref": "#/$defs/userdata"}
  },
  "additionalProperties": false,
`

// schema is the part of JSON Schema that userdata needs.
type schema struct {
	Description          string             `json:"description,omitempty"`
	Type                 string             `json:"type,omitempty"`
	Enum                 []string           `json:"enum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	MinLength            int                `json:"minLength,omitempty"`
	MaxLength            int                `json:"maxLength,omitempty"`
	Items                *schema            `json:"items,omitempty"`
	Properties           map[string]*schema `json:"properties,omitempty"`
	PropertyNames        *schema            `json:"propertyNames,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"`
	Examples             []string           `json:"examples,omitempty"`
}

// userdataSchema is generated from the rules of the settings: the parser and the schema cannot differ.
func userdataSchema() *schema {
	all := &schema{
		Description: "Settings of first boots. A role's settings stand for the environment's; its scripts come after them.",
		Type:        "object", Properties: map[string]*schema{}, AdditionalProperties: false,
	}
	for _, f := range new(firstboot.Settings).Fields() {
		value := &schema{Type: "string", Pattern: f.Pattern(), MinLength: 1, MaxLength: f.MaxLength()}
		if f.Like != "" {
			value.Examples = []string{f.Like}
		}
		property := value
		switch f.Value.(type) {
		case *[]string:
			property = &schema{Type: "array", Items: value}
		case *map[string]string:
			property = &schema{Type: "object", PropertyNames: &schema{Enum: f.Keys()}, AdditionalProperties: value}
		}
		property.Description = f.Help
		all.Properties[f.Name] = property
	}
	return all
}

// encoded returns v as JSON, indented for the definitions of a schema.
func encoded(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("    ", "  ")
	_ = enc.Encode(v) // strings, and maps of strings: encoding cannot fail
	return bytes.TrimSpace(b.Bytes())
}
