package environments

import "gopkg.in/yaml.v3"

// Cloud maps an environment's symbols to the names of one provider. Stage, cloud and layout are independent: one
// environment file serves several clouds.
type Cloud struct {
	Provider                  Provider
	Flavors, Images, Networks map[string]string
	Userdata                  Userdata

	file string
	root *yaml.Node
}

// ParseCloud reads a cloud file of at most 4 MiB. The error is an Errors with all problems.
func ParseCloud(filename string, data []byte) (*Cloud, error) {
	p, c := newParser(filename), &Cloud{file: filename}
	if c.root = p.document(data, "a cloud", "words like `flavors:`"); c.root != nil {
		p.keys(c.root, "a cloud", p.cloudFields(&c.Provider, &c.Flavors, &c.Images, &c.Networks, &c.Userdata))
	}
	e := &Environment{Provider: c.Provider, Flavors: c.Flavors, Images: c.Images, Networks: c.Networks, Userdata: c.Userdata}
	checker{e, true, p.report}.checkCloud()
	if err := p.end(); err != nil {
		return nil, err
	}
	return c, nil
}

// under adds the values of a cloud file that the environment file does not have.
func (p *parser) under(root *yaml.Node, c *Cloud) {
	p.of(c.file, c.root)
	p.merge(root, c.root)
}

// of records that nodes come from another file.
func (p *parser) of(file string, n *yaml.Node) {
	p.elsewhere[n] = file
	for _, child := range n.Content {
		p.of(file, child)
	}
}

// merge adds to own the values that only other has. It merges mappings key by key; of any other value, it keeps own.
// Two providers with different drivers are not merged, nor are the checksums of agents: these belong to their URLs.
func (p *parser) merge(own, other *yaml.Node) {
	if own.Kind != yaml.MappingNode || other.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(other.Content); i += 2 {
		key, value := other.Content[i], other.Content[i+1]
		at := indexOf(own, key.Value)
		switch {
		case at < 0:
			own.Content = append(own.Content, key, value)
		case key.Value == "provider":
			mine, theirs := unfolded(own.Content[at]), unfolded(value)
			p.elsewhere[theirs] = p.elsewhere[value]
			driver, other := valueOf(mine, "driver"), valueOf(theirs, "driver")
			if driver != nil && other != nil && driver.Value == other.Value {
				own.Content[at] = mine
				p.merge(mine, theirs)
			}
		case key.Value != "agent_sha256":
			p.merge(own.Content[at], value)
		}
	}
}

// indexOf returns the index of a key's value in a mapping, or -1.
func indexOf(n *yaml.Node, key string) int {
	if n.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Value == key {
			return i + 1
		}
	}
	return -1
}

// valueOf returns the value of a key, or nil.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	if i := indexOf(n, key); i >= 0 {
		return n.Content[i]
	}
	return nil
}
