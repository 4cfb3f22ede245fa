package environments

import "gopkg.in/yaml.v3"

// Cloud is what an environment's symbols stand for in one place where machines can be made: stage, cloud and layout are
// three things, so that one environment file serves several clouds.
type Cloud struct {
	Provider                  Provider
	Flavors, Images, Networks map[string]string
	Userdata                  Userdata

	file string
	root *yaml.Node
}

// ParseCloud reads a cloud file of at most 4 MiB. The error is an Errors with everything that was found.
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

// under lays a cloud under the file: each word that the file does not have itself it gets from there.
func (p *parser) under(root *yaml.Node, c *Cloud) {
	p.of(c.file, c.root)
	p.merge(root, c.root)
}

// of remembers that nodes are of another file.
func (p *parser) of(file string, n *yaml.Node) {
	p.elsewhere[n] = file
	for _, child := range n.Content {
		p.of(file, child)
	}
}

// merge adds to own what other has beside it. Mappings are merged key by key, all else is the one or the other's: also a
// provider where they are two drivers, and the checksums of agents, which belong to their URLs.
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

// indexOf returns where the value of a key is in a mapping, or -1.
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
