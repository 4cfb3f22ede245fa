package model

import "encoding/json"

// A status names up to four targets, which are mostly equal. The JSON leaves out a target that equals its neighbour.
// last_good is always present. A missing enforcing equals last_good, a missing target equals enforcing, and a missing
// target of the attempt or the refusal equals target.

type plainStatus Status

type wireStatus struct {
	plainStatus
	Enforcing *Target      `json:"enforcing,omitempty"`
	Target    *Target      `json:"target,omitempty"`
	Attempt   *wireAttempt `json:"attempt,omitempty"`
	Refusal   *wireRefusal `json:"refusal,omitempty"`
}

type plainAttempt Attempt

type wireAttempt struct {
	plainAttempt
	Target *Target `json:"target,omitempty"`
}

type plainRefusal Refusal

type wireRefusal struct {
	plainRefusal
	Target *Target `json:"target,omitempty"`
}

// MarshalJSON leaves out repeated targets.
func (s Status) MarshalJSON() ([]byte, error) {
	w := wireStatus{plainStatus: plainStatus(s), Enforcing: unless(s.Enforcing, s.LastGood), Target: unless(s.Target, s.Enforcing)}
	if s.Attempt != nil {
		w.Attempt = &wireAttempt{plainAttempt: plainAttempt(*s.Attempt), Target: unless(s.Attempt.Target, s.Target)}
	}
	if s.Refusal != nil {
		w.Refusal = &wireRefusal{plainRefusal: plainRefusal(*s.Refusal), Target: unless(s.Refusal.Target, s.Target)}
	}
	return json.Marshal(w)
}

// UnmarshalJSON restores repeated targets.
func (s *Status) UnmarshalJSON(b []byte) error {
	var w wireStatus
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*s = Status(w.plainStatus)
	s.Enforcing = or(w.Enforcing, s.LastGood)
	s.Target = or(w.Target, s.Enforcing)
	s.Attempt, s.Refusal = nil, nil
	if w.Attempt != nil {
		a := Attempt(w.Attempt.plainAttempt)
		a.Target = or(w.Attempt.Target, s.Target)
		s.Attempt = &a
	}
	if w.Refusal != nil {
		r := Refusal(w.Refusal.plainRefusal)
		r.Target = or(w.Refusal.Target, s.Target)
		s.Refusal = &r
	}
	return nil
}

func unless(t, same Target) *Target {
	if t == same {
		return nil
	}
	return &t
}

func or(t *Target, same Target) Target {
	if t == nil {
		return same
	}
	return *t
}
