package environments

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"pulley/internal/model"
)

// standardLayers are the layers of live data of every environment, the highest first.
var standardLayers = []string{"node", "role", "environment", "common"}

// HasAttribute reports whether a name is that of an attribute, which layers of live data may follow.
func (e *Environment) HasAttribute(name string) bool {
	return slices.Contains(e.DataLayers, name) && !slices.Contains(standardLayers, name)
}

// AttributeOf returns an attribute of a node by its name with the stack; "" without one. The node's own wins over its role's.
func (e *Environment) AttributeOf(role, node, attribute string) string {
	if e.Stack != "" {
		node = strings.TrimSuffix(node, "_"+e.Stack)
	}
	if own := e.ByNode[node].Attributes[attribute]; own != "" {
		return own
	}
	r, _ := e.Role(role)
	return r.Attributes[attribute]
}

// checkLayers checks the order of the layers of live data, and that each attribute is one of them: no node would see the data
// of another.
func (c checker) checkLayers() {
	at := spot{noRole, "layers"}
	for i, name := range c.DataLayers {
		item := spot{noRole, "layers." + strconv.Itoa(i)}
		switch {
		case slices.Contains(c.DataLayers[:i], name):
			c.add(item, "keep one of them", "layers has %s twice", model.Quoted(name))
		case name == "nodes" || name == "roles":
			c.add(item, "write "+strings.TrimSuffix(name, "s"), "layers has %s", model.Quoted(name))
		}
	}
	for _, name := range standardLayers {
		if len(c.DataLayers) > 0 && !slices.Contains(c.DataLayers, name) {
			c.add(at, "list it also if it has no data", "layers lacks %s", name)
		}
	}
	for i, r := range c.Roles {
		c.checkAttributes(i, "attributes", r.Attributes)
	}
	for _, name := range slices.Sorted(maps.Keys(c.ByNode)) {
		c.checkAttributes(noRole, "nodes."+name+".attributes", c.ByNode[name].Attributes)
	}
}

func (c checker) checkAttributes(role int, field string, attributes map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		at := spot{role, field + "." + name}
		switch {
		case slices.Contains(standardLayers, name) || name == "nodes" || name == "roles":
			c.add(at, "give it another name", "%s.%s has the name of a layer of every environment", field, name)
		case !slices.Contains(c.DataLayers, name):
			c.add(at, c.layerHint(name), "%s.%s is not one of the layers", field, name)
		}
	}
}

func (c checker) layerHint(name string) string {
	if near := model.SuggestName(name, c.DataLayers); near != "" {
		return "did you mean " + near + "?"
	}
	if len(c.DataLayers) == 0 {
		return fmt.Sprintf("write `layers: [node, role, %s, environment, common]`", name)
	}
	return fmt.Sprintf("add it to layers, which has %s", strings.Join(c.DataLayers, ", "))
}
