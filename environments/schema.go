package environments

import (
	"bytes"
	"encoding/json"
	"strings"

	"pulley/environments/settings"
	"pulley/internal/model"
)

// schema is a part of a JSON Schema.
type schema = map[string]any

// Schema returns the JSON Schema of environment files, for editors. It is generated from the fields, and contains every
// rule that a schema can express.
func Schema() string {
	s := object(fieldsOf(new(Environment)))
	s["required"] = []string{"roles"}
	return schemaText(s, "Pulley environment", "A fleet: its roles, their numbers of machines, and the driver that creates these. The name of the file is the environment's name.")
}

// CloudSchema returns the JSON Schema of cloud files.
func CloudSchema() string {
	return schemaText(object(cloudFields(new(Environment))), "Pulley cloud",
		"The names of one provider for an environment's symbols; `--cloud NAME` reads clouds/NAME.yaml. The environment file wins.")
}

func schemaText(s schema, title, description string) string {
	s["$schema"], s["title"], s["description"] = "https://json-schema.org/draft/2020-12/schema", title, description
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(s) // texts and numbers: encoding cannot fail
	return b.String()
}

// object describes a mapping with known keys.
func object(fields []field) schema {
	properties := schema{}
	for _, f := range fields {
		properties[f.key] = f.schema()
	}
	return schema{"type": "object", "properties": properties, "additionalProperties": false}
}

func (f field) schema() schema {
	var s schema
	var example any = f.like
	switch f.value.(type) {
	case *string:
		s = valueSchema(f.form)
	case *int:
		s = schema{"type": "integer", "minimum": 0, "maximum": maxNodes}
		if f.form == "port" {
			s = schema{"type": "integer", "minimum": 1, "maximum": settings.MaxPort}
		}
	case *bool:
		s = schema{"type": "boolean"}
	case *model.Duration:
		s = valueSchema("duration")
	case *[]string:
		s, example = schema{"type": "array", "items": valueSchema(f.form)}, []string{f.like}
		switch f.form {
		case "role", "member", "seen", "datalayer":
			s["uniqueItems"] = true
		case "command":
			s["maxItems"] = maxCommand
		case "export":
			s["maxItems"] = maxExports - 1
		}
		if f.form == "seen" {
			s = schema{"anyOf": []schema{s, {"const": AllRoles}}}
		}
	case *map[string]string:
		key, value, _ := strings.Cut(f.like, "=")
		s, example = schema{"type": "object", "propertyNames": valueSchema(f.form), "additionalProperties": valueSchema(f.valueForm())}, schema{key: value}
		if f.form == "label" {
			s["maxProperties"] = maxLabels
		}
	case *map[string]int:
		key, value, _ := strings.Cut(f.like, "=")
		s = schema{"type": "object", "propertyNames": valueSchema(f.form), "additionalProperties": schema{"type": "integer", "minimum": 1, "maximum": maxNodes}}
		example = schema{key: json.Number(value)}
	case *map[string]RoleRollout:
		s = schema{"type": "object", "additionalProperties": object(fieldsOf(new(RoleRollout)))}
	case *Applications:
		table := func(of schema) schema {
			return schema{"type": "object", "propertyNames": valueSchema("word"), "additionalProperties": of}
		}
		component := object(fieldsOf(new(Component)))
		component["oneOf"] = []schema{{"required": []string{"node"}}, {"required": []string{"role"}}}
		s = table(table(table(component)))
	case *map[string]NodeSettings:
		s = schema{"type": "object", "additionalProperties": object(fieldsOf(new(NodeSettings)))}
	case *map[string]settings.PuppetServer:
		server := object(fieldsOf(new(settings.PuppetServer)))
		server["required"] = []string{"address"}
		s = schema{"type": "object", "propertyNames": valueSchema(f.form), "additionalProperties": server}
	case *Provider:
		s = providerSchema()
	case *Classification:
		values := schema{"type": "object", "propertyNames": valueSchema("variable")}
		parameters := schema{"type": "object", "propertyNames": schema{"allOf": []schema{valueSchema("variable"), {"not": schema{"anyOf": []schema{{"enum": reservedVariables}, {"pattern": "^" + ownVariables}}}}}}}
		classes := schema{"anyOf": []schema{
			{"type": "array", "items": valueSchema("class")},
			{"type": "object", "propertyNames": valueSchema("class"), "additionalProperties": schema{"anyOf": []schema{{"type": "null"}, values}}},
		}}
		s, example = schema{"type": "object", "properties": schema{"classes": classes, "parameters": parameters}, "additionalProperties": false}, schema{"classes": []string{f.like}}
	case *Userdata:
		s = userdataSchema()
	case *UnreadyPolicy:
		s, example = schema{"anyOf": []schema{valueSchema("unready"), object(f.fields())}}, "skip"
		s["examples"] = []any{example}
	case *[]Role:
		role := object(fieldsOf(new(Role)))
		role["anyOf"] = []schema{{"required": []string{"cardinality"}}, {"required": []string{"members"}}}
		s = schema{"type": "object", "maxProperties": maxRoles, "propertyNames": valueSchema("role"), "additionalProperties": role}
	default:
		s = object(f.fields())
	}
	s["description"] = f.help
	if f.like != "" {
		s["examples"] = []any{example}
	}
	return s
}

// valueSchema describes a text of a form.
func valueSchema(name string) schema {
	f := forms()[name]
	s := schema{"type": "string", "minLength": 1, "pattern": f.pattern}
	if f.max > 0 {
		s["maxLength"] = f.max
	}
	if f.not != "" {
		s["not"] = schema{"pattern": f.not}
	}
	least := map[string]int{"batch": 1, "failures": 0}
	if min, ok := least[name]; ok {
		s = schema{"anyOf": []schema{s, {"type": "integer", "minimum": min, "maximum": maxNodes}}}
	}
	return s
}

func providerSchema() schema {
	anyOf := []schema{{"type": "string", "enum": drivers()}}
	for _, driver := range drivers() {
		s := object(driverFields(driver))
		s["title"], s["required"] = driver, []string{"driver"}
		s["properties"].(schema)["driver"] = schema{"const": driver, "description": driverHelp[driver]}
		anyOf = append(anyOf, s)
	}
	return schema{"anyOf": anyOf}
}

func userdataSchema() schema {
	properties := schema{}
	for _, f := range new(Userdata).Fields() {
		value := schema{"type": "string", "minLength": 1, "maxLength": f.MaxLength()}
		if pattern := f.Pattern(); pattern != "" {
			value["pattern"] = pattern
		}
		if f.Like != "" {
			value["examples"] = []string{f.Like}
		}
		property := value
		switch f.Value.(type) {
		case *[]string:
			property = schema{"type": "array", "items": value}
		case *map[string]string:
			property = schema{"type": "object", "propertyNames": schema{"enum": f.Keys()}, "additionalProperties": value}
		}
		property["description"] = f.Help
		properties[f.Name] = property
	}
	return schema{"type": "object", "properties": properties, "additionalProperties": false}
}
