package environments

import _ "embed" // the schemas

// Schema is the JSON Schema of environment files, for editors: it says all of the format that a schema can say.
//
//go:embed environment.schema.json
var Schema string

// CloudSchema is the JSON Schema of cloud files.
//
//go:embed cloud.schema.json
var CloudSchema string
