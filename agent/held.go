package agent

// Held reports whether any hold concerns the node, and tells the strictest one in words.
func (d Desired) Held() (why string, held bool) {
	h := strictest(d.Holds)
	if h == nil {
		return "", false
	}
	return h.String(), true
}
