package agent

// Action is what a tick will do.
type Action string

// Reason says why, as a sentence.
type Reason string
