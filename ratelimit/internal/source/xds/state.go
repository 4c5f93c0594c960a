package xds

import (
	"fmt"
	"strings"
	"time"
)

// State is the state of the connection to a control plane, as the debug port shows it.
type State struct {
	Server    string `json:"server"`
	Connected bool   `json:"connected"`
	// Since is when the present stream began or, without a stream, when the last stream ended.
	Since time.Time `json:"since"`
	// Awaiting is set until the first set of rules is accepted; until then every decision is UNAVAILABLE.
	Awaiting bool `json:"awaiting_first_set"`
	// Version is the version of the rules in force, Resources is the number of its resources, and AckedAt is when it
	// was acknowledged.
	Version   string    `json:"version"`
	Resources int       `json:"resources"`
	AckedAt   time.Time `json:"acked_at,omitzero"`
	// NackedVersion is the version that was refused last, and NackReason is the reason. Both stay when a later version
	// is accepted.
	NackedVersion string    `json:"nacked_version,omitempty"`
	NackReason    string    `json:"nack_reason,omitempty"`
	NackedAt      time.Time `json:"nacked_at,omitzero"`
	// Error is the reason why there is no stream; AgainAt is when the client will try again.
	Error   string    `json:"error,omitempty"`
	AgainAt time.Time `json:"again_at,omitzero"`
}

// State returns a copy of the present state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Client) change(f func(*State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
}

func (c *Client) connected() {
	c.change(func(s *State) {
		s.Connected, s.Since, s.Error, s.AgainAt = true, time.Now(), "", time.Time{}
	})
}

// disconnected records an error and the pause before the next try. If the client was already disconnected, the recorded
// time at which the stream ended stays.
func (c *Client) disconnected(err error, pause time.Duration) {
	c.change(func(s *State) {
		now := time.Now()
		if s.Connected {
			s.Since = now
		}
		s.Connected, s.AgainAt = false, now.Add(pause)
		if s.Error = ""; err != nil {
			s.Error = err.Error()
		}
	})
}

func (c *Client) acked(version string, resources int) {
	c.change(func(s *State) { s.Awaiting, s.Version, s.Resources, s.AckedAt = false, version, resources, time.Now() })
}

func (c *Client) nacked(version, reason string) {
	c.change(func(s *State) { s.NackedVersion, s.NackReason, s.NackedAt = version, reason, time.Now() })
}

// Text returns the state as text, for people.
func (s State) Text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s  %s\n", name, fmt.Sprintf(format, args...))
	}
	at := func(t time.Time) string { return t.Format(time.RFC3339) }
	line("server", "%s", s.Server)
	if s.Connected {
		line("connected", "since %s", at(s.Since))
	} else {
		line("connected", "no, since %s", at(s.Since))
	}
	if s.Error != "" {
		line("error", "%s", s.Error)
		line("next try", "%s", at(s.AgainAt))
	}
	if s.AckedAt.IsZero() {
		line("accepted", "nothing yet: every decision is UNAVAILABLE until a first good set")
	} else {
		line("accepted", "version %q with %d resources at %s", s.Version, s.Resources, at(s.AckedAt))
	}
	if !s.NackedAt.IsZero() {
		line("refused", "version %q at %s:", s.NackedVersion, at(s.NackedAt))
		for reason := range strings.SplitSeq(s.NackReason, "\n") {
			fmt.Fprintf(&b, "  %s\n", reason)
		}
	}
	return b.String()
}
